"""What to train, and what the bench found out about it."""

from dataclasses import dataclass, field
from typing import Literal

from loadtune.records.configs import PRECISIONS, Dimension, Fixed, OptionalDimension, Precision, Setting
from loadtune.records.score import Objective

OptimizerName = Literal["sgd", "adamw"]
WorkloadPart = Literal["dataset", "model", "loss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What to train, by names that are resolved inside the bench: the controller needs no torch for it."""

    dataset: str = "FakeData"
    """A class of ``torchvision.datasets``, or ``pkg.mod:factory`` (a callable without arguments)."""
    model: str = "resnet50"
    """A name of ``torchvision.models.list_models()``, or ``pkg.mod:factory``."""
    data_root: str | None = None
    """Folder that torchvision's dataset reads. None: the dataset needs none."""
    image_size: int | None = None
    """Height and width in pixels of the images a torchvision dataset delivers. None: what the model was made for."""
    num_classes: int | None = None
    """None: taken from the dataset where it says, else 1000."""
    optimizer: OptimizerName = "sgd"
    """``sgd`` is SGD with momentum 0.9."""
    seed: int = 0
    objects: tuple[WorkloadPart, ...] = ()
    """Parts that were passed to ``tune_loader`` as Python objects; set by it. Such a part's name is a label of its
    class, from which nothing can be built."""

    @property
    def label(self) -> str:
        """``FakeData-resnet50``: a name for folders."""
        return "-".join(part.replace(":", ".").replace("/", ".") for part in (self.dataset, self.model))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveObjects:
    """Parts of a workload that have no name: objects of the caller on their way to the bench. Never stored."""

    pickled: bytes
    """By `loadtune.workload.live`, which also reads them."""
    search_path: tuple[str, ...]
    """The caller's ``sys.path``, absolute: where the modules that the objects come from are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePart:
    """A part of what the workload is made of, as it was when it was built."""

    name: str
    """A file of the user's as it is imported, ``pkg/mod.py``; else in words, ``the model's layers``."""
    sha256: str
    """Of what is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """What the bench found when it built the workload and trained one small batch of it."""

    dataset_length: int
    input_shape: tuple[int, ...]
    """Of one sample, without the batch dimension: (C, H, W) for images."""
    input_dtype: str
    sample_bytes: int
    """One sample, input and target, as the loader delivers it."""
    sample_s: float
    """Seconds to make one sample in one process: mean over some, each read once, single-threaded like a worker. Of
    many the slowest tenth is left out, which something else held up."""
    num_classes: int
    num_parameters: int
    precisions: tuple[Precision, ...]
    """Those this device runs natively, fp32 first."""
    min_batch_size: int
    """Smallest batch the model trains on: 2 where batch normalisation refuses 1, else 1."""
    start_method: str
    """How DataLoader starts its workers on this platform: fork, forkserver or spawn."""
    device_name: str
    torch: str
    cuda: str | None
    memory_capacity_bytes: int
    """Total memory of the device; on CPU the RAM limit in force."""
    memory_budget_bytes: int
    """What training may take of it now, this process's own share included."""

    least_sample_s: float | None = None
    """Seconds that no process makes one in less than: some read again, with all that is cached of them; the lower end
    of their mean's 95% interval. None: not known, because the dataset is small or slow, or reads whole batches."""
    code: tuple[CodePart, ...] = ()
    """Empty: not known, in results of before it was looked at."""
    torchvision: str | None = None
    """None: not installed, or not known."""

    @property
    def takes_channels_last(self) -> bool:
        """Batches of (C, H, W) samples are the 4-D tensors that channels_last is for."""
        return len(self.input_shape) == 3


@dataclass(frozen=True, slots=True, kw_only=True)
class YourSettings:
    """The user's own configuration as far as it was given; None: not given, a default is assumed and marked."""

    batch_size: int | None = None
    num_workers: int | None = None
    pin_memory: bool | None = None
    precision: Precision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneConfig:
    """One run of the tuner: what to train, what to compare with, how far to look, how long."""

    workload: WorkloadSpec = field(default_factory=WorkloadSpec)
    yours: YourSettings = field(default_factory=YourSettings)
    device: str | None = None
    """``cpu``, ``cuda``, ``cuda:1`` or a GPU's UUID. None: the GPU with the most free memory, else the CPU."""
    precisions: tuple[Precision, ...] | None = None
    """Which to consider. None: all the device supports."""
    max_batch_size: int | None = None
    max_workers: int | None = None
    """None: the usable cores."""
    num_trials: int = 12
    """Most trials of the study that are really run."""
    time_budget_s: float = 300.0
    """The most for the whole run, the confirmation included."""
    out: str = "loadtune-results"
    """Parent of the run's own folder."""
    seed: int = 0
    tune: tuple[OptionalDimension, ...] = ()
    """Dimensions searched beside batch size, workers, pinning and precision."""
    fix: tuple[Fixed, ...] = ()
    """Dimensions that are not searched, each once. The comparison is with ``yours`` all the same."""
    warm_start: str | None = None
    """A ``result.json``, or a folder with one, whose winner is tried first. None: no such result."""
    objective: Objective = "samples-per-s"
    """What the best has most of."""
    max_gpu_memory_bytes: int | None = None
    """What training may hold of the GPU, its context included. None: whatever is free."""

    def fixed(self, name: Dimension) -> Setting | None:
        """What the dimension is fixed at. None: it is not."""
        return next((fixed.value for fixed in self.fix if fixed.name == name), None)

    @property
    def considered(self) -> tuple[Precision, ...] | None:
        """Precisions to look at. None: all the device supports."""
        fixed = next((precision for precision in PRECISIONS if precision == self.fixed("precision")), None)
        return self.precisions if fixed is None else (fixed,)

    @property
    def named_batch_size(self) -> int | None:
        """The largest size that somebody asked for, which is looked at whatever it takes: fixed, or the user's own."""
        named = [int(size) for size in (self.fixed("batch_size"), self.yours.batch_size) if size is not None]
        return max(named, default=None)
