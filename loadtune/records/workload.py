"""What to train, and what the training process found out about it."""

import re
from dataclasses import dataclass, field
from typing import Literal, get_args

from loadtune.records.configs import PRECISIONS, Dimension, Fixed, LoaderConfig, OptionalDimension, Precision, Setting
from loadtune.records.memory import ProbeMode
from loadtune.records.remedies import RemedyMode
from loadtune.records.score import Objective

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
    """A class of ``torchvision.datasets``, ``FakeData`` (random images), or ``pkg.mod:factory``: a class or function
    that is called without arguments and returns a dataset, with ``__getitem__`` or iterable."""
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
    """Parts that were passed to ``tune`` as Python objects; set by it. Such a part's name is a label of its class, from
    which nothing can be built."""

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
class CodePart:
    """The fingerprint of a part of the workload's code."""

    name: str
    """A file of the user, such as ``pkg/mod.py``, or a description, such as ``the model's layers``."""
    sha256: str
    """SHA-256 of its content, in hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """What the training process found when it built the workload and trained one small batch of it."""

    dataset_length: int | None
    """Samples of an epoch: as many as the loader's sampler draws. None: a stream or a sampler that does not tell."""
    input_shape: tuple[int, ...]
    """Of one sample's first tensor, without the batch dimension: (C, H, W) for images."""
    input_dtype: str
    sample_bytes: int
    """Bytes of one sample in a batch, all tensors of it; the mean where samples differ."""
    sample_s: float
    """Seconds in which one process with one thread, like a worker, loads one sample: mean over some samples, each
    loaded once. The slowest tenth is left out, because other load on the machine slowed them."""
    num_classes: int
    num_parameters: int | None
    """None: a training step of the user's own, which does not show its models."""
    precisions: tuple[Precision, ...]
    """The precisions that this device computes natively, fp32 first."""
    min_batch_size: int
    """Smallest batch that the model trains on: 2 if it raises at 1, as batch normalisation does, else 1."""
    start_method: str
    """How DataLoader starts its workers on this platform: fork, forkserver or spawn."""
    device_name: str
    torch: str
    cuda: str | None
    memory_capacity_bytes: int
    """Total memory of the device; on CPU the RAM limit in force."""
    memory_budget_bytes: int
    """How much of it training may use now, including what the training process holds already."""

    sample_cpu_s: float | None = None
    """CPU seconds of that, and seconds of waiting for a core; the rest is waiting for storage, a network or a timer.
    None: not measured."""
    code: tuple[CodePart, ...] = ()
    torchvision: str | None = None
    """None: not installed, or not known."""
    own_loader: LoaderConfig | None = None
    """Settings of the user's own ``DataLoader``. None: the workload names a dataset."""
    loader_class: str | None = None
    """Name of the class of the user's own loader, a subclass of ``DataLoader``. None: it is ``DataLoader`` itself, or
    the workload names a dataset."""
    fixed_batch_size: int | None = None
    """What a batch has where no other size can be chosen: the user's batch sampler or dataset makes the batches.
    None: any size can be."""
    max_workers: int | None = None
    """Workers beyond which samples would repeat: 1 for a stream that is not shared out. None: no bound."""
    largest_sample_bytes: int | None = None
    """Of the largest sample that was seen. None: all samples have one size."""
    structure: str | None = None
    """What a batch looks like, in words. None: a pair of tensors."""

    @property
    def smallest_batch(self) -> int:
        """Smallest batch that can be trained: the only one where the batch size is fixed."""
        return self.fixed_batch_size or self.min_batch_size

    @property
    def largest_batch(self) -> int | None:
        """Largest batch that an epoch has samples for. None: a stream or a sampler that does not tell its length."""
        return self.fixed_batch_size or self.dataset_length

    @property
    def takes_channels_last(self) -> bool:
        """Whether batches are 4-D tensors, for which channels_last exists."""
        return len(self.input_shape) == 3


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
    """Which memory ceilings are verified: that of the precision about to win (``bound``), or of every precision before
    the search (``all``)."""
    remedies: RemedyMode = "auto"
    """Which changes outside of DataLoader's arguments are tried after the confirmation."""
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
