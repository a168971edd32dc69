"""A training job that was given as objects in Python: checked, named and packed for the training process."""

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from loadtune.api.options import checked, fixed_of, with_settings
from loadtune.errors import UsageError, one_of
from loadtune.records.config import PRECISIONS, LiveObjects, Precision, TuneConfig, WorkloadPart, WorkloadSpec

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

_TRAINING_MAIN = "loadtune.training.__main__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to train: the arguments of `tune`, as objects, or by name. None: not given."""

    loader: "DataLoader[Any] | Callable[[], DataLoader[Any]] | str | None" = None
    """A DataLoader, or a function without arguments that returns one. Its settings are the baseline."""
    dataset: "Dataset[Any] | Callable[[], Dataset[Any]] | str | None" = None
    """A dataset, or a function without arguments that returns one. A loader brings its own."""
    collate: Callable[[list[Any]], Any] | str | None = None
    """The collate function for ``dataset``. None: PyTorch's."""
    model: "nn.Module | Callable[[], nn.Module] | str | None" = None
    """A ``torch.nn.Module``, or a function without arguments that returns one."""
    loss: "Callable[[Any, Any], torch.Tensor] | str | None" = None
    """(outputs, targets) → scalar tensor; or (model, batch) → scalar tensor, where its arguments have these names.
    None: cross entropy, or ``model(**batch).loss`` for mappings."""
    optimizer: "str | Callable[[Any], torch.optim.Optimizer] | None" = None
    """``sgd`` (momentum 0.9), ``adamw``, or a function (parameters) → optimizer, or (model) → optimizer. None:
    ``sgd``."""
    accumulate: int = 1
    """Batches whose gradients are summed before the optimizer steps, at least 1."""
    precision: Precision | None = None
    """The baseline's. None: fp32."""

    @property
    def parts(self) -> dict[WorkloadPart, Any]:
        """Those that are given, by name."""
        return {name: getattr(self, name) for name in get_args(WorkloadPart) if getattr(self, name) is not None}


def config_of(function: str, settings: Mapping[str, Any], names: Collection[str]) -> TuneConfig:
    """With these keywords of a function that takes ``names`` of the table of options; not yet checked."""
    for name in settings:
        if name not in names:
            raise UsageError(f"{function} has no argument {name}. It takes {', '.join(names)}.")
    chosen = dict(settings)
    if isinstance(chosen.get("fix"), Mapping):
        chosen["fix"] = fixed_of([f"{name}={value}" for name, value in chosen["fix"].items()])
    return with_settings(TuneConfig(), chosen)


def job_of(function: str, first: object, others: Mapping[str, Any], parts: Mapping[str, Any]) -> Job:
    """The ``first`` argument itself where it is a Job, else one of these ``parts``.

    Raises UsageError where a Job came with ``others``, or where data or a model is missing: the command line's default
    names are none in Python.
    """
    if isinstance(first, Job) and (beside := [name for name, part in others.items() if part is not None]):
        raise UsageError(
            f"{function} got a Job and also {', '.join(beside)}. Put all parts into the Job, or pass them all as"
            " arguments."
        )
    job = first if isinstance(first, Job) else Job(**parts)
    for kind, names in (("data", ("loader", "dataset")), ("model", ("model",))):
        if not job.parts.keys() & set(names):
            raise UsageError(
                f"{function} was given no {kind}. Pass {' or '.join(names)}, as an object or by the path of a function"
                " that returns it."
            )
    return job


def pack_job(spec: WorkloadSpec, job: Job, **shapes: tuple[int, ...] | None) -> tuple[WorkloadSpec, LiveObjects | None]:
    """The spec with the job's numbers and a label for each object, and the objects packed.

    ``shapes``: the ``input_shape`` of random samples. Raises UsageError for what cannot be used.
    """
    _check_objects(job)
    names: dict[str, Any] = {name: part for name, part in job.parts.items() if isinstance(part, str)}
    given = {name: part for name, part in job.parts.items() if name not in names}
    spec = replace(spec, **names, accumulate=job.accumulate if job.accumulate != 1 else spec.accumulate)
    parts: dict[str, Any] = given | {name: shape for name, shape in shapes.items() if shape is not None}
    if not parts:
        return spec, None
    from loadtune.workload.user_code import pack_parts

    if is_loader(job.loader):
        from loadtune.workload.loaders import LoaderParts

        parts["loader"] = LoaderParts.of(job.loader)  # type: ignore[arg-type]  # no function that returns one
    labels: dict[str, Any] = {name: getattr(part, "__name__", type(part).__name__) for name, part in given.items()}
    return replace(spec, **labels, objects=tuple(given)), pack_parts(parts)


def refuse_recursion(function: str) -> None:
    """The training process imports the caller's modules: one that calls this while it is imported would never end."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == _TRAINING_MAIN:
        raise UsageError(
            f"{function} was called again in the training process, while it imported the module that calls it. Put the "
            'call under `if __name__ == "__main__":`, or move the model and the dataset to a module of their own.'
        )


def is_loader(part: object) -> bool:
    """Whether it is a DataLoader; needs no torch."""
    return any(
        each.__name__ == "DataLoader" and each.__module__.startswith("torch.utils.data") for each in type(part).__mro__
    )


_ALLOWED: dict[WorkloadPart, str] = {
    "loader": "a torch.utils.data.DataLoader, or a function without arguments that returns one. Pass a dataset as"
    " dataset",
    "dataset": "a dataset, with `__getitem__` or an `__iter__` that begins anew, or a function without arguments that"
    " returns one. Pass a DataLoader as loader",
    "collate": "a function (list of samples) -> batch",
    "model": "a torch.nn.Module, or a function without arguments that returns one",
    "loss": "a function (outputs, targets) -> scalar tensor, or (model, batch) -> scalar tensor",
    "optimizer": "'sgd' (with momentum 0.9), 'adamw', or a function that makes an optimizer of the model's parameters: "
    "`lambda parameters: torch.optim.Adam(parameters, lr=1e-3)`",
}


def _check_objects(job: Job) -> None:
    for name, part in job.parts.items():
        if isinstance(part, str) or callable(part) or (name == "loader" and is_loader(part)):
            continue
        readable = hasattr(part, "__getitem__") or (hasattr(part, "__iter__") and not hasattr(part, "__next__"))
        if name != "dataset" or is_loader(part) or not readable:
            found = repr(part) if isinstance(part, int | float) else f"of type {type(part).__name__}"
            raise UsageError(f"{name} is {found}; it can be {_ALLOWED[name]}.")
    checked("accumulate", int, job.accumulate, 1)
    if job.precision is not None:
        one_of("precision", job.precision, PRECISIONS)
