"""What can be chosen: the loader's arguments, the precision, and the recipe that goes with a precision."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

Precision = Literal["fp32", "fp16", "bf16", "own"]
"""Autocast's dtype, which is what "AMP on or off" really asks; fp32 is AMP off. fp16 comes with a GradScaler.
``own``: a training step of the user's own (``make_step``) decides, and nothing of it is tuned."""
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")
"""Those that can be chosen."""

MemoryFormat = Literal["contiguous", "channels_last"]
MEMORY_FORMATS: tuple[MemoryFormat, ...] = get_args(MemoryFormat)

OptionalDimension = Literal["prefetch_factor", "memory_format", "in_order", "persistent_workers", "compile"]
"""Searched where ``--tune`` names them; else PyTorch's defaults hold, and the recipe's memory format. ``compile`` is
decided with the recipe, once per precision."""
OPTIONAL_DIMENSIONS: tuple[OptionalDimension, ...] = get_args(OptionalDimension)

Dimension = Literal["batch_size", "num_workers", "pin_memory", "precision", "code"] | OptionalDimension
"""What a study can choose, or ``--fix`` can pin."""
DIMENSIONS: tuple[Dimension, ...] = ("batch_size", "num_workers", "pin_memory", "precision", *OPTIONAL_DIMENSIONS)

Setting = int | bool | str
"""A value of a dimension, in PyTorch's own spelling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A dimension that is not searched, because ``--fix`` says what it is."""

    name: Dimension
    value: Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderConfig:
    """Arguments of ``torch.utils.data.DataLoader``, in PyTorch's own spelling."""

    batch_size: int
    num_workers: int = 0
    pin_memory: bool = False
    prefetch_factor: int = 2
    """Batches asked for ahead per worker (PyTorch's default is 2). Without meaning at 0 workers."""
    persistent_workers: bool = True
    """Keep workers from one epoch to the next. Without meaning at 0 workers."""
    in_order: bool = True
    """Hand batches out in the order they were asked for. False: as they are made, so that none waits for a slow one;
    the order of training then differs from run to run. Without meaning at 0 workers."""

    @property
    def keeps_workers(self) -> bool:
        """Whether no epoch begins with a start of workers: they outlive epochs, or there are none."""
        return self.num_workers == 0 or self.persistent_workers

    @property
    def num_prefetched(self) -> int:
        """Batches in flight: 1 at 0 workers (the one being made)."""
        return max(1, self.num_workers * self.prefetch_factor)

    @property
    def num_pinned(self) -> int:
        """Page-locked blocks in use at most: beside the batches in flight one being filled, one being copied."""
        return self.num_prefetched + 2

    def block_bytes(self, sample_bytes: int) -> int:
        """Of the page-locked block that a batch goes into: PyTorch rounds it up to a power of two."""
        return 1 << (self.batch_size * sample_bytes - 1).bit_length()

    def kwargs(self) -> dict[str, Any]:
        """What ``DataLoader(dataset, **kwargs)`` takes; arguments that raise at 0 workers are left out there."""
        chosen: dict[str, Any] = {
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "pin_memory": self.pin_memory,
        }
        if self.num_workers > 0:
            chosen |= {"prefetch_factor": self.prefetch_factor, "persistent_workers": self.persistent_workers}
            chosen |= {} if self.in_order else {"in_order": False}  # PyTorch's default needs no line in a script
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What only concerns compute, decided once per precision and applied to every trial of it."""

    precision: Precision = "fp32"
    memory_format: MemoryFormat = "contiguous"
    fused_optimizer: bool = False
    compile: bool = False
    """``torch.compile(model, dynamic=False)``: each batch size is compiled for itself. Loss and optimizer are not."""

    @property
    def waits_each_step(self) -> bool:
        """The host waits for the device in every step: a GradScaler reads there whether gradients overflowed, where no
        fused optimizer does that on the device (``torch.amp.GradScaler.step``)."""
        return self.precision == "fp16" and not self.fused_optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfig:
    """One point of the search space: how data is loaded and under which recipe it is trained on."""

    loader: LoaderConfig
    recipe: Recipe
    remedies: tuple[str, ...] = ()
    """Names of changes outside of DataLoader's arguments, in the order in which they are applied. Empty in the search
    and the confirmation."""

    @property
    def precision(self) -> Precision:
        return self.recipe.precision

    @property
    def batch_size(self) -> int:
        return self.loader.batch_size
