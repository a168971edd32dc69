"""What can be chosen, and what a run is asked for: the loader's arguments, precision, recipe, workload, search."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """Deliver batches in the order of the sampler. False: as they are finished, so none waits for a slow one, and the
    order differs from run to run. Without meaning at 0 workers."""

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
        """The host waits for the device in every step: GradScaler reads whether gradients overflowed, where no fused
        optimizer does that on the device."""
        return self.precision == "fp16" and not self.fused_optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfig:
    """One point of the search space: how data is loaded and under which recipe it is trained on."""

    loader: LoaderConfig
    recipe: Recipe
    remedies: tuple[str, ...] = ()
    """Names of changes of the code, outside of DataLoader's arguments, in the order in which they are applied."""

    @property
    def precision(self) -> Precision:
        return self.recipe.precision

    @property
    def batch_size(self) -> int:
        return self.loader.batch_size


Objective = Literal["samples-per-s", "samples-per-joule"]
"""What a configuration is judged by: throughput, or samples for a joule that the GPU's whole board takes."""
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

SCORE_UNITS: Mapping[Objective, str] = {"samples-per-s": "samples/s", "samples-per-joule": "samples/J"}

ProbeMode = Literal["bound", "all"]
"""Memory ceilings of a run. ``bound``: two sizes are run in each precision and predict its ceiling; that of the
precision about to win is verified. ``all``: every precision's ceiling is verified before the search."""
PROBE_MODES: tuple[ProbeMode, ...] = get_args(ProbeMode)

RemedyMode = Literal["none", "auto", "all"]
"""Which remedies are tried: ``none``; ``auto``, those whose expected gain is 3% or more; ``all`` that apply."""
REMEDY_MODES: tuple[RemedyMode, ...] = get_args(RemedyMode)


OptimizerName = Literal["sgd", "adamw"]
WorkloadPart = Literal["loader", "dataset", "collate", "model", "loss", "compute_loss", "optimizer", "step"]

TIMM = "timm:"
"""Before the name of a model of timm's."""


def is_import_path(word: str) -> bool:
    """Whether it is ``pkg.mod:name`` or ``FILE.py:name``, and no name of timm's."""
    path = r"(?:[^\W\d]\w*(?:\.[^\W\d]\w*)*|.+\.py):[^\W\d]\w*(?:\.[^\W\d]\w*)*"
    return not word.startswith(TIMM) and re.fullmatch(path, word) is not None


DEFAULT_DATASET, DEFAULT_MODEL = "FakeData", "resnet50"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What to train, by name. The training process looks the names up, so that making this record needs no torch."""

    dataset: str = DEFAULT_DATASET
    """A class of ``torchvision.datasets``, ``FakeData`` (random images), or the import path of a function without
    arguments that returns a dataset."""
    model: str = DEFAULT_MODEL
    """A name of ``torchvision.models.list_models()``, ``timm:NAME``, or the import path of a function or class that
    returns a ``torch.nn.Module``."""
    data_root: str | None = None
    """Folder that holds the files of a torchvision dataset. None: the dataset needs none."""
    image_size: int | None = None
    """Height and width in pixels of the images of a torchvision dataset. None: the size the model was designed for."""
    num_classes: int | None = None
    """At least 1. None: as the dataset's ``classes`` or ``num_classes`` says, else the model's default."""
    loader: str | None = None
    """Import path of a function without arguments that returns a ``DataLoader``: it takes the place of ``dataset``, and
    its settings are the baseline. An import path is ``pkg.mod:name`` or ``FILE.py:name``."""
    collate: str | None = None
    """Import path of a collate function for ``dataset``. None: PyTorch's."""
    loss: str | None = None
    """Import path of ``fn(outputs, targets) -> scalar``. None: cross entropy for (input, class), and
    ``model(**batch).loss`` for mappings."""
    compute_loss: str | None = None
    """Import path of ``fn(model, batch) -> scalar``. None: the model is called with the inputs."""
    optimizer: str = "sgd"
    """``sgd``: torch.optim.SGD with momentum 0.9. ``adamw``: torch.optim.AdamW. Else the import path of
    ``fn(parameters) -> torch.optim.Optimizer``."""
    step: str | None = None
    """Import path of ``make_step(device) -> step(batch)``, which takes the place of model, loss and optimizer."""
    accumulate: int = 1
    """Batches whose gradients are summed before the optimizer steps."""
    batch_dim: int | None = None
    """Dimension of a batch's tensors that counts samples. None: found from batches of different size."""
    seed: int = 0
    objects: tuple[WorkloadPart, ...] = ()
    """Parts that were passed to ``tune`` as Python objects; set by it. The name of such a part is only a label."""

    @property
    def title(self) -> str:
        """``FakeData + resnet50``, for people."""
        return f"{self.loader or self.dataset} + {self.step or self.model}"

    @property
    def named_optimizer(self) -> OptimizerName | None:
        """None: a function of the user's own makes the optimizer, or the training step has it."""
        if self.step is not None or "optimizer" in self.objects:
            return None
        return next((name for name in get_args(OptimizerName) if name == self.optimizer), None)

    @property
    def label(self) -> str:
        """``FakeData-resnet50``: the name of the folder of its results."""
        parts = (self.loader or self.dataset, self.step or self.model)
        return "-".join(part.replace(":", ".").replace("/", ".").strip(".") for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveObjects:
    """The caller's objects on their way to the training process. Never stored."""

    pickled: bytes
    """The objects, pickled by `loadtune.workload.live`."""
    search_path: tuple[str, ...]
    """The caller's ``sys.path``, absolute: where the modules that define the objects are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class YourSettings:
    """The settings that the user trains with today. None: not given; a default is assumed, and marked as assumed."""

    batch_size: int | None = None
    num_workers: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    precision: Precision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneConfig:
    """One tuning run: what to train, which settings to compare with, which settings to search, and for how long."""

    workload: WorkloadSpec = field(default_factory=WorkloadSpec)
    yours: YourSettings = field(default_factory=YourSettings)
    device: str | None = None
    """``cpu``, ``cuda``, ``cuda:1`` or a GPU's UUID. None: the GPU with the most free memory, else the CPU."""
    precisions: tuple[Precision, ...] | None = None
    """Precisions to search. None: all that the device supports."""
    max_batch_size: int | None = None
    max_workers: int | None = None
    """Most DataLoader workers to try. None: the number of usable cores."""
    num_trials: int = 12
    """Most trials that the search runs, at least 1. Pruned trials are not counted."""
    time_budget_s: float = 240.0
    """Seconds for the whole run, including the confirmation; above 0."""
    out: str = "loadtune-results"
    """Folder below which each run makes a folder of its own."""
    seed: int = 0
    tune: tuple[OptionalDimension, ...] = ()
    """Settings to search in addition to batch size, workers, pinning and precision."""
    fix: tuple[Fixed, ...] = ()
    """Settings with a fixed value, each at most once. The result is compared with ``yours`` all the same."""
    warm_start: str | None = None
    """A ``result.json``, or a folder that holds one: its best configuration is tried first. None: there is none."""
    objective: Objective = "samples-per-s"
    """What to maximise: samples per second, or samples per joule of the GPU board."""
    max_gpu_memory_bytes: int | None = None
    """Bytes of GPU memory that training may use, including the CUDA context. None: all that is free."""
    probe: ProbeMode = "bound"
    """Which memory ceilings are verified."""
    remedies: RemedyMode = "auto"
    """Which changes of the code are tried."""
    ranks_per_node: int = 1
    """Ranks that share the machine, at least 1. The run is one of them, with its share of cores, RAM and /dev/shm."""

    def fixed(self, name: Dimension) -> Setting | None:
        """The fixed value of this setting. None: it is not fixed."""
        return next((fixed.value for fixed in self.fix if fixed.name == name), None)

    @property
    def considered(self) -> tuple[Precision, ...] | None:
        """Precisions to search after ``fix`` is applied. None: all that the device supports."""
        fixed = next((precision for precision in PRECISIONS if precision == self.fixed("precision")), None)
        return self.precisions if fixed is None else (fixed,)

    @property
    def named_batch_size(self) -> int | None:
        """The largest batch size that the user named, in ``fix`` or ``yours``. None: the user named none."""
        named = [int(size) for size in (self.fixed("batch_size"), self.yours.batch_size) if size is not None]
        return max(named, default=None)
