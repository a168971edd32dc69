"""What can be chosen: the loader's arguments, the precision, and the recipe that goes with a precision."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

Precision = Literal["fp32", "fp16", "bf16"]
"""Autocast's dtype, which is what "AMP on or off" really asks; fp32 is AMP off. fp16 comes with a GradScaler."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

MemoryFormat = Literal["contiguous", "channels_last"]


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

    @property
    def num_prefetched(self) -> int:
        """Batches in flight: 1 at 0 workers (the one being made)."""
        return max(1, self.num_workers * self.prefetch_factor)

    def kwargs(self) -> dict[str, Any]:
        """What ``DataLoader(dataset, **kwargs)`` takes; arguments that raise at 0 workers are left out there."""
        chosen: dict[str, Any] = {
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "pin_memory": self.pin_memory,
        }
        if self.num_workers > 0:
            chosen |= {"prefetch_factor": self.prefetch_factor, "persistent_workers": self.persistent_workers}
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What only concerns compute, decided once per precision and applied to every trial of it."""

    precision: Precision = "fp32"
    memory_format: MemoryFormat = "contiguous"
    fused_optimizer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfig:
    """One point of the search space: how data is loaded and under which recipe it is trained on."""

    loader: LoaderConfig
    recipe: Recipe

    @property
    def precision(self) -> Precision:
        return self.recipe.precision

    @property
    def batch_size(self) -> int:
        return self.loader.batch_size
