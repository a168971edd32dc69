"""A training job that was given as objects in Python: checked, named and packed for the training process.

In: what a caller passed. Out: a `TuneConfig` that holds the names of the parts, and their bytes. Needs no torch until
there is an object, and whoever has one has imported it.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from loadtune.errors import UsageError
from loadtune.records import LiveObjects, OptimizerName, Precision, TuneConfig, WorkloadPart, WorkloadSpec

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

_BENCH_MAIN = "loadtune.bench.__main__"
_PARTS: tuple[WorkloadPart, ...] = get_args(WorkloadPart)
_HELD_BY_STEP: tuple[WorkloadPart, ...] = ("model", "loss", "compute_loss", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to train, as Python objects: the arguments of `tune`. None: ``TuneConfig.workload`` names it."""

    loader: "DataLoader[Any] | Callable[[], DataLoader[Any]] | None" = None
    """A DataLoader, or a function without arguments that returns one. Its settings are the baseline."""
    dataset: "Dataset[Any] | Callable[[], Dataset[Any]] | None" = None
    """A dataset, or a function without arguments that returns one. A loader brings its own."""
    collate: Callable[[list[Any]], Any] | None = None
    """The collate function for ``dataset``. None: PyTorch's."""
    model: "nn.Module | Callable[[], nn.Module] | None" = None
    """A ``torch.nn.Module``, or a function without arguments that returns one."""
    loss: "Callable[[Any, Any], torch.Tensor] | None" = None
    """(outputs, targets) → scalar tensor. None: cross entropy, or ``model(**batch).loss`` for mappings."""
    compute_loss: Callable[[Any, Any], Any] | None = None
    """(model, batch) → scalar tensor, for a model that is not called with the inputs alone."""
    optimizer: "str | Callable[[Any], torch.optim.Optimizer] | None" = None
    """``sgd`` (momentum 0.9), ``adamw``, or a function (parameters) → optimizer. None: as the config says."""
    step: Callable[[Any], Callable[[Any], Any]] | None = None
    """``make_step(device)`` → ``step(batch)``, a whole training step, in place of model, loss and optimizer."""
    accumulate: int = 1
    """Batches whose gradients are summed before the optimizer steps, at least 1."""
    precision: Precision | None = None
    """The baseline's. None: as the config says, else fp32."""


def job_of(loader: Any, **parts: Any) -> Job:
    """The job that `tune` was called with. Raises UsageError where a `Job` stands beside other parts."""
    if not isinstance(loader, Job):
        return Job(loader=loader, **parts)
    beside = [name for name, part in parts.items() if part is not None]
    if beside:
        raise UsageError(
            f"tune was given a Job and {_listed(beside)} beside it. Put all parts into the Job, or pass none of them "
            "as a Job."
        )
    return loader


def refuse_nothing(job: Job, spec: WorkloadSpec) -> None:
    """Job and names together have to say what to load and what to train. Beside objects a default name does not count:
    nobody can tell that it was meant."""
    default = WorkloadSpec()
    data, training = (job.loader, job.dataset, spec.loader), (job.model, job.step, spec.step)
    if all(part is None for part in data) and spec.dataset == default.dataset:
        raise UsageError(
            "tune was given no data. Pass a DataLoader as loader, or a dataset, or names: "
            "config=TuneConfig(workload=WorkloadSpec(dataset=..., model=...)). Beside objects, pass the default "
            f"{default.dataset} as an object too: dataset=torchvision.datasets.FakeData(...)."
        )
    if all(part is None for part in training) and spec.model == default.model:
        raise UsageError(
            "tune was given no model. Pass model=..., or a whole training step as step=..., or a name: "
            "config=TuneConfig(workload=WorkloadSpec(model=...)). Beside objects, pass the default "
            f"{default.model} as an object too: model=torchvision.models.resnet50."
        )


def has_objects(job: Job) -> bool:
    """Whether any part is an object, not a name."""
    return any(not isinstance(getattr(job, name), str | None) for name in _PARTS)


def with_objects(config: TuneConfig, job: Job) -> tuple[TuneConfig, LiveObjects | None]:
    """The config with a label for each object, and the objects packed. Raises UsageError for what cannot be used."""
    spec = config.workload
    _check_names(spec)
    _check_objects(job)
    given: dict[WorkloadPart, Any] = {name: getattr(job, name) for name in _PARTS if getattr(job, name) is not None}
    config, spec = _with_values(config, job)
    if isinstance(job.optimizer, str):
        given.pop("optimizer")
    missing = [name for name in spec.objects if name not in given]
    if missing:
        raise UsageError(
            f"The {' and the '.join(missing)} of this run {'was' if len(missing) == 1 else 'were'} passed to "
            "loadtune.tune as Python objects, which are not stored. To resume the run, call loadtune.tune from Python "
            f"with folder, resume=True and the same {', '.join(f'{name}=...' for name in missing)}. "
            "Otherwise start a new run without --resume."
        )
    if not given:
        return config, None
    from loadtune.workload.live import LiveParts, pack_parts

    parts: dict[str, Any] = {str(name): part for name, part in given.items()}
    if is_loader(job.loader):
        from loadtune.workload.loaders import LoaderParts

        parts["loader"] = LoaderParts.of(job.loader)  # type: ignore[arg-type]  # no function that returns one
    labels: dict[str, Any] = {name: label_of(part) for name, part in given.items()}
    spec = replace(spec, **labels, objects=tuple(given))
    return replace(config, workload=spec), pack_parts(LiveParts(**parts))


def _with_values(config: TuneConfig, job: Job) -> tuple[TuneConfig, WorkloadSpec]:
    """What of a job is no object goes into the config."""
    spec, yours = config.workload, config.yours
    if isinstance(job.optimizer, str):
        spec = replace(spec, optimizer=job.optimizer)
    if job.accumulate != 1:
        spec = replace(spec, accumulate=job.accumulate)
    if job.precision is not None:
        yours = replace(yours, precision=job.precision)
    return replace(config, workload=spec, yours=yours), spec


def refuse_recursion(function: str) -> None:
    """The training process imports the caller's modules: one that calls this while it is imported would never end."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == _BENCH_MAIN:
        raise UsageError(
            f"{function} was called again in the training process, while it imported the module that calls it. Put the "
            'call under `if __name__ == "__main__":`, or move the model and the dataset to a module of their own.'
        )


def label_of(part: object) -> str:
    """A name as it is; of an object that of its function or class."""
    return part if isinstance(part, str) else str(getattr(part, "__name__", type(part).__name__))


def _listed(names: list[str]) -> str:
    return ", ".join(f"{name}=..." for name in names)


def is_loader(part: object) -> bool:
    """Whether it is a DataLoader; needs no torch."""
    return any(
        each.__name__ == "DataLoader" and each.__module__.startswith("torch.utils.data") for each in type(part).__mro__
    )


def _check_names(spec: WorkloadSpec) -> None:
    for name in _PARTS:
        value = getattr(spec, name)
        if not (isinstance(value, str) or value is None):
            raise UsageError(
                f"WorkloadSpec({name}=...) is a {type(value).__name__}, but it takes a name, such as an import path "
                f"`pkg.mod:name`. Pass the object to loadtune.tune instead: tune({name}=...)."
            )


def _check_objects(job: Job) -> None:
    for name in _PARTS:
        part = getattr(job, name)
        if isinstance(part, str) and name != "optimizer":
            raise UsageError(
                f"{name} is {part!r}, a name, but the argument takes an object. Put names into the config: "
                f"TuneConfig(workload=WorkloadSpec({name}={part!r}))."
            )
    _check_data(job)
    _check_functions(job)
    _check_together(job)


def _check_data(job: Job) -> None:
    if is_loader(job.dataset):
        raise UsageError(
            "dataset is a DataLoader. Pass it as loader: tune(loader, model=...). Its settings are then the baseline."
        )
    dataset = job.dataset
    if not (dataset is None or callable(dataset) or hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")):
        raise UsageError(
            f"dataset is a {type(dataset).__name__}; it can be a dataset, with `__getitem__` or `__iter__`, or a "
            "function without arguments that returns one."
        )
    if not (job.loader is None or is_loader(job.loader) or callable(job.loader)):
        raise UsageError(
            f"loader is a {type(job.loader).__name__}; it can be a torch.utils.data.DataLoader, or a function without "
            "arguments that returns one. Pass a dataset as dataset=...."
        )


_FUNCTIONS: dict[WorkloadPart, str] = {
    "collate": "a function (list of samples) -> batch, or left out",
    "model": "a torch.nn.Module, or a function without arguments that returns one",
    "loss": "a function (outputs, targets) -> scalar tensor, or left out",
    "compute_loss": "a function (model, batch) -> scalar tensor, or left out",
    "step": "a function make_step(device) that returns step(batch)",
}


def _check_functions(job: Job) -> None:
    for name, allowed in _FUNCTIONS.items():
        part = getattr(job, name)
        if not (part is None or callable(part)):
            raise UsageError(f"{name} is {_found(part)}; it can be {allowed}.")
    optimizer = job.optimizer
    if not (optimizer is None or callable(optimizer) or optimizer in get_args(OptimizerName)):
        made = hasattr(optimizer, "param_groups")
        hint = " Pass a function that makes it, because its parameters are those of another model." if made else ""
        raise UsageError(
            f"optimizer is {_found(optimizer)}; it can be 'sgd' (with momentum 0.9), 'adamw', or a function that "
            f"returns an optimizer, such as `lambda parameters: torch.optim.Adam(parameters, lr=1e-3)`.{hint}"
        )


def _found(part: object) -> str:
    return repr(part) if isinstance(part, str | int | float) else f"a {type(part).__name__}"


def _check_together(job: Job) -> None:
    beside = [name for name in ("dataset", "collate") if getattr(job, name) is not None]
    if job.loader is not None and beside:
        raise UsageError(f"loader stands beside {_listed(beside)}, but a loader brings its own. Leave one of them out.")
    if job.loss is not None and job.compute_loss is not None:
        raise UsageError("loss and compute_loss are both given. compute_loss takes the place of loss: leave one out.")
    held: list[str] = [name for name in _HELD_BY_STEP if getattr(job, name) is not None]
    held += ["accumulate"] if job.accumulate != 1 else []
    held += ["precision"] if job.precision is not None else []
    if job.step is not None and held:
        raise UsageError(f"step stands beside {_listed(held)}, but a step holds all of that. Leave one of them out.")
