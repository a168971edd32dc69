"""What can be chosen, and what a run is asked for. `WorkloadSpec`, `YourSettings` and `TuneConfig` are the table of
options, of which command line, keywords of `tune`, checks, help and docs/options.md are made (`loadtune.api.given`).
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any, Literal, get_args

Precision = Literal["fp32", "fp16", "bf16", "own"]
"""Autocast's dtype; fp32 is training without autocast. fp16 comes with a GradScaler.
``own``: the user's script decides, and nothing of it is tuned."""
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")
"""Those that can be chosen."""

MemoryFormat = Literal["contiguous", "channels_last"]

Dimension = Literal[
    "batch_size",
    "num_workers",
    "pin_memory",
    "precision",
    "prefetch_factor",
    "memory_format",
    "in_order",
    "persistent_workers",
]
"""What ``--fix`` can pin."""
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)

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
    def num_prefetched(self) -> int:
        """Batches in flight: 1 at 0 workers (the one being made)."""
        return max(1, self.num_workers * self.prefetch_factor)

    def kwargs(self) -> dict[str, Any]:
        """What ``DataLoader(dataset, **kwargs)`` takes; arguments that raise at 0 workers are left out there."""
        left_out = {"in_order"} if self.in_order else set[str]()  # PyTorch's default needs no line in a script
        if self.num_workers == 0:
            left_out = {"prefetch_factor", "persistent_workers", "in_order"}
        return {name: value for name, value in asdict(self).items() if name not in left_out}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What only concerns compute, decided once per precision and applied to every trial of it."""

    precision: Precision = "fp32"
    memory_format: MemoryFormat = "contiguous"
    fused_optimizer: bool = False

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


RemedyMode = Literal["none", "auto", "all"]
"""Which remedies are tried: ``none``; ``auto``, those whose expected gain is 3% or more; ``all`` that apply."""

OptimizerName = Literal["sgd", "adamw"]
WorkloadPart = Literal["loader", "dataset", "collate", "model", "loss", "optimizer"]

Panel = Literal["What to train", "What you use now", "Limits", "What is searched", "Output"]
PANELS: tuple[Panel, ...] = get_args(Panel)


def _option(panel: Panel, help: str, usual: Any = None, **described: Any) -> Any:
    """A field with this default, described as a `Row` of the table of options is."""
    return field(default=usual, metadata={"panel": panel, "help": help, **described})


_train, _now, _limit, _search, _output = (partial(_option, panel) for panel in PANELS)
_train_path = partial(_train, value="PATH:FN")

TIMM = "timm:"  # before the name of a model of timm's


def is_import_path(word: str) -> bool:
    """Whether it is ``pkg.mod:name`` or ``FILE.py:name``, and no name of timm's."""
    path = r"(?:[^\W\d]\w*(?:\.[^\W\d]\w*)*|.+\.py):[^\W\d]\w*(?:\.[^\W\d]\w*)*"
    return not word.startswith(TIMM) and re.fullmatch(path, word) is not None


_LAUNCHERS = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "accelerate.commands.launch",
)
"""Programs and modules that start a script or, after ``-m``, a module."""


def script_at(command: Sequence[str]) -> int:
    """Index of the script: a ``.py`` file, or the module after ``-m``. 0, the program's, where there is neither."""
    can_run_modules = False
    for at, word in enumerate(command):
        name = PurePath(word).name
        is_module = can_run_modules and command[at - 1] == "-m" and name not in _LAUNCHERS
        if word.endswith(".py") or is_module:
            return at
        can_run_modules |= name.startswith("python") or name in _LAUNCHERS
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What to train, by name; the training process looks the names up. ``PATH:FN`` is an import path, ``pkg.mod:name``
    or ``FILE.py:name``."""

    loader: str | None = _train_path(
        "Your DataLoader, or a function that returns it, in place of --dataset. Its settings are the baseline."
    )
    dataset: str = _train(
        "FakeData (random images), a class of torchvision.datasets, or PATH:FN that returns a dataset.", "FakeData"
    )
    model: str = _train("A model of torchvision, timm:NAME, or PATH:FN that returns a model.", "resnet50")
    loss: str | None = _train_path(
        "Your loss: fn(outputs, targets), or fn(model, batch) with arguments of these names.",
        default="cross entropy; model(**batch).loss for mappings",
    )
    optimizer: str = _train(
        "sgd (with momentum 0.9), adamw, or PATH:FN: fn(parameters) or fn(model) that returns an optimizer.", "sgd"
    )
    collate: str | None = _train_path("Collate function for --dataset.", default="PyTorch's")
    data_root: str | None = _train("Folder that the torchvision dataset reads. Nothing is downloaded.", value="FOLDER")
    image_size: int | None = _train("Height and width of the images, in pixels.", default="the model's", least=1)
    num_classes: int | None = _train("Number of classes.", default="the dataset's, else 1000", least=1)
    accumulate: int = _train("Batches per optimizer step, which uses the mean of their gradients.", 1, least=1)
    seed: int = 0
    objects: tuple[WorkloadPart, ...] = ()
    """Parts that were passed to ``tune`` as Python objects; set by it. The name of such a part is only a label."""
    command: tuple[str, ...] = ()
    """Of the user's script, as typed after ``--``. Empty: the job is described by the other fields."""

    @property
    def title(self) -> str:
        """``FakeData + resnet50``, or ``train.py``, for people."""
        if self.command:
            return PurePath(self.command[script_at(self.command)]).name
        return f"{self.loader or self.dataset} + {self.model}"

    @property
    def named_optimizer(self) -> OptimizerName | None:
        """None: a function of the user's own makes the optimizer, or the script has it."""
        if self.command or "optimizer" in self.objects:
            return None
        return next((name for name in get_args(OptimizerName) if name == self.optimizer), None)

    @property
    def label(self) -> str:
        """``FakeData-resnet50``, or ``train.py``: the name of the folder of its results."""
        parts = (self.title,) if self.command else (self.loader or self.dataset, self.model)
        return "-".join(part.replace(":", ".").replace("/", ".").strip(".") for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveObjects:
    """The caller's objects on their way to the training process. Never stored."""

    pickled: bytes
    """The objects, pickled by `loadtune.workload.user_code`."""
    search_path: tuple[str, ...]
    """The caller's ``sys.path``, absolute: where the modules that define the objects are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class YourSettings:
    """The settings that the user trains with today. None: not given; a default is assumed, and marked as assumed."""

    batch_size: int | None = _now(
        "Your batch size. The best settings at this size are reported too.", default="your loader's, else 64", least=1
    )
    num_workers: int | None = _now("Your number of worker processes.", default="your loader's, else 0", least=0)
    pin_memory: bool | None = _now("Whether you pin memory.", default="your loader's, else no")
    precision: Precision | None = _now(
        "Your precision: fp32, or mixed precision (AMP).", flags=("--amp",), default="fp32", allowed=PRECISIONS
    )
    persistent_workers: bool | None = _now("Whether your workers outlive an epoch.", default="your loader's, else no")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneConfig:
    """One tuning run: what to train, which settings to compare with, which settings to search, and for how long."""

    workload: WorkloadSpec = field(default_factory=WorkloadSpec)
    yours: YourSettings = field(default_factory=YourSettings)
    unprotected: bool = _train(
        "Run a script that cannot be isolated here: only its Python code is kept from changing existing files.",
        False,
        flags=("--unprotected",),
        default="no",
    )
    device: str | None = _limit(
        "cpu, cuda, cuda:1, or a GPU's UUID.", value="DEVICE", default="the GPU with the most free memory, else the CPU"
    )
    time_budget_s: float = _limit(
        "Time limit of the whole run, at least 5. A run ends earlier once it knows enough.", 240.0, least=5.0
    )
    num_trials: int = _limit("Most configurations that the search runs.", 12, flags=("--trials",), least=1)
    max_batch_size: int | None = _limit(
        "Largest batch size to try.", default="what fits, at most a tenth of an epoch", least=1
    )
    max_workers: int | None = _limit(
        "Most workers to try.", default="the usable cores; more if loading waits for storage", least=0
    )
    max_gpu_memory_bytes: int | None = _limit(
        "Most GPU memory that training may use, CUDA context included: 24GiB, 80GB.",
        value="SIZE",
        default="all that is free",
        least=1024**2,
    )
    precisions: tuple[Precision, ...] | None = _search(
        "Precisions to try; repeat, or join by commas.",
        flags=("--precision",),
        default="all that the device supports",
        allowed=PRECISIONS,
    )
    fix: tuple[Fixed, ...] = _search(
        "Keep a setting at this value, as in num_workers=4; repeat, or join by commas.", (), value="NAME=VALUE"
    )
    remedies: RemedyMode = _search(
        "Changes of your code to try: those that are expected to gain 3% or more, or all that apply.",
        "auto",
        allowed=get_args(RemedyMode),
    )
    # The largest that NumPy takes, which Optuna's samplers share.
    seed: int = _search("Seed of the data order and of the order of measurements.", 0, least=0, most=2**32 - 1)
    out: str = _output(
        "Folder in which the run makes a folder of its own.", "loadtune-results", flags=("-o", "--out"), value="FOLDER"
    )

    def fixed(self, name: Dimension) -> Setting | None:
        """The fixed value of this setting. None: it is not fixed."""
        return next((fixed.value for fixed in self.fix if fixed.name == name), None)

    @property
    def considered(self) -> tuple[Precision, ...] | None:
        """Precisions to search after ``fix`` is applied. None: all that the device supports."""
        fixed = tuple(precision for precision in PRECISIONS if precision == self.fixed("precision"))
        return fixed or self.precisions

    @property
    def named_batch_sizes(self) -> list[int]:
        """Those that the user named, in ``fix`` or ``yours``."""
        return [int(size) for size in (self.fixed("batch_size"), self.yours.batch_size) if size is not None]
