"""A training job that was given as objects in Python: checked, named and packed for the training process.

In: what a caller passed. Out: a `TuneConfig` that holds the names of the parts, and their bytes. Needs no torch until
there is an object, and whoever has one has imported it.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from loadtune.arguments import check_at_least, check_together
from loadtune.errors import UsageError
from loadtune.records.config import (
    DEFAULT_DATASET,
    DEFAULT_MODEL,
    PRECISIONS,
    LiveObjects,
    OptimizerName,
    Precision,
    TuneConfig,
    WorkloadPart,
    WorkloadSpec,
)

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

_BENCH_MAIN = "loadtune.bench.__main__"
_PARTS: tuple[WorkloadPart, ...] = get_args(WorkloadPart)


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
    refuse_beside_job("tune", parts)
    return loader


def refuse_beside_job(function: str, parts: Mapping[str, Any]) -> None:
    """Raises UsageError where any of these was given too."""
    beside = ", ".join(as_argument(name) for name, part in parts.items() if part is not None)
    if beside:
        raise UsageError(
            f"{function} got a Job and also {beside}. Put all parts into the Job, or pass them all as arguments."
        )


def refuse_missing(job: Job, spec: WorkloadSpec | None, function: str = "tune") -> None:
    """Objects need what they do not bring, data or a model, as objects or by name. Raises UsageError.

    The default names do not count: nobody can tell that they were meant. ``spec``: None: no config was given.
    """
    if spec is not None and not _given(job):
        return
    named = WorkloadSpec() if spec is None else spec
    names = ", or names: config=TuneConfig(workload=WorkloadSpec(dataset=..., model=...))" if function == "tune" else ""
    data = (job.loader, job.dataset, named.loader, None if named.dataset == DEFAULT_DATASET else named.dataset)
    if all(part is None for part in data):
        raise UsageError(
            f"{function} was given no data. Pass a DataLoader as loader=..., or a dataset as dataset=...{names}."
        )
    trained = (job.model, job.step, named.step, None if named.model == DEFAULT_MODEL else named.model)
    if all(part is None for part in trained):
        raise UsageError(f"{function} was given no model. Pass model=..., or a whole training step as step=...{names}.")


def _given(job: Job) -> dict[WorkloadPart, Any]:
    return {name: getattr(job, name) for name in _PARTS if getattr(job, name) is not None}


def with_objects(config: TuneConfig, job: Job) -> tuple[TuneConfig, LiveObjects | None]:
    """The config with a label for each object, and the objects packed. Raises UsageError for what cannot be used."""
    _check_names(config.workload)
    _check_no_names(job)
    missing = [name for name in config.workload.objects if getattr(job, name) is None]
    if missing:
        raise UsageError(
            f"The {' and the '.join(missing)} of this run {'was' if len(missing) == 1 else 'were'} passed to "
            "loadtune.tune as Python objects, which are not stored. To resume the run, call loadtune.tune from Python "
            f"with folder, resume=True and the same {', '.join(f'{name}=...' for name in missing)}. "
            "Otherwise start a new run without --resume."
        )
    spec, objects = pack_job(config.workload, job)
    yours = config.yours if job.precision is None else replace(config.yours, precision=job.precision)
    return replace(config, workload=spec, yours=yours), objects


def pack_job(spec: WorkloadSpec, job: Job, **shapes: tuple[int, ...] | None) -> tuple[WorkloadSpec, LiveObjects | None]:
    """The spec with the job's numbers and a label for each object, and the objects packed.

    ``shapes``: `LiveParts` of random samples. Raises UsageError for what cannot be used.
    """
    _check_objects(job)
    given = _given(job)
    if isinstance(job.optimizer, str):
        spec = replace(spec, optimizer=given.pop("optimizer"))
    if job.accumulate != 1:
        spec = replace(spec, accumulate=job.accumulate)
    parts: dict[str, Any] = given | {name: shape for name, shape in shapes.items() if shape is not None}
    if not parts:
        return spec, None
    from loadtune.workload.live import LiveParts, pack_parts

    if is_loader(job.loader):
        from loadtune.workload.loaders import LoaderParts

        parts["loader"] = LoaderParts.of(job.loader)  # type: ignore[arg-type]  # no function that returns one
    labels: dict[str, Any] = {
        name: part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)
        for name, part in given.items()
    }
    return replace(spec, **labels, objects=tuple(given)), pack_parts(LiveParts(**parts))


def refuse_recursion(function: str) -> None:
    """The training process imports the caller's modules: one that calls this while it is imported would never end."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == _BENCH_MAIN:
        raise UsageError(
            f"{function} was called again in the training process, while it imported the module that calls it. Put the "
            'call under `if __name__ == "__main__":`, or move the model and the dataset to a module of their own.'
        )


def as_argument(name: str) -> str:
    """``loss=...``, for messages."""
    return f"{name}=..."


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


def _check_no_names(job: Job) -> None:
    for name, part in _given(job).items():
        if isinstance(part, str) and name != "optimizer":
            raise UsageError(
                f"{name} is {part!r}, a name, but the argument takes an object. Put names into the config: "
                f"TuneConfig(workload=WorkloadSpec({name}={part!r}))."
            )


def _check_objects(job: Job) -> None:
    _check_data(job)
    _check_functions(job)
    check_at_least("accumulate", job.accumulate, 1)
    if job.precision not in (None, *PRECISIONS):
        raise UsageError(
            f"precision is {job.precision!r}; it must be {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}."
        )
    numbers = [name for name, usual in (("accumulate", 1), ("precision", None)) if getattr(job, name) != usual]
    check_together([*_given(job), *numbers], as_argument)


def _check_data(job: Job) -> None:
    if is_loader(job.dataset):
        raise UsageError(
            "dataset is a DataLoader. Pass it as loader: tune(loader, model=...). Its settings are then the baseline."
        )
    dataset = job.dataset
    if hasattr(dataset, "__next__"):
        raise UsageError(
            f"dataset is a {type(dataset).__name__}, which can be read only once. Pass a list, a "
            "torch.utils.data.Dataset, or an IterableDataset whose `__iter__` begins anew."
        )
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
