"""A workload's parts that were given as objects in Python: checked, named and packed for the training process.

In: what a caller passed. Out: a `TuneConfig` that holds their names, and their bytes. Needs no torch until there is an
object, and whoever has one has imported it.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from loadtune.errors import UsageError
from loadtune.records import LiveObjects, TuneConfig, WorkloadPart

_BENCH_MAIN = "loadtune.bench.__main__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job as Python objects. None: the part was not given."""

    loader: Any = None
    """A ``DataLoader``, whose settings are the baseline."""
    dataset: Any = None
    """A dataset, or a function without arguments that returns one; in place of ``loader``."""
    collate: Callable[[list[Any]], Any] | None = None
    """The collate function for ``dataset``. None: PyTorch's."""
    model: Any = None
    """A module, or a function without arguments that returns one."""
    loss: Callable[..., Any] | None = None
    """(outputs, targets) -> scalar."""
    compute_loss: Callable[..., Any] | None = None
    """(model, batch) -> scalar."""
    optimizer: Any = None
    """A name, or a function (parameters) -> optimizer."""
    step: Callable[..., Any] | None = None
    """(device) -> step(batch); in place of model, loss and optimizer."""
    accumulate: int = 1
    """Batches whose gradients are summed before the optimizer steps."""
    precision: Literal["fp32", "fp16", "bf16"] | None = None
    """The baseline's. None: not known."""


def with_objects(
    config: TuneConfig, *, dataset: Any, model: Any, loss: Callable[..., Any] | None
) -> tuple[TuneConfig, LiveObjects | None]:
    """The config with a label for each object, and the objects packed. Raises UsageError for what cannot be used."""
    spec = config.workload
    _check_names(spec.dataset, spec.model)
    _check_objects(dataset, model, loss)
    given: dict[WorkloadPart, Any] = {"dataset": dataset, "model": model, "loss": loss}
    given = {name: part for name, part in given.items() if part is not None}
    missing = [name for name in spec.objects if name not in given]
    if missing:
        raise UsageError(
            f"The {' and the '.join(missing)} of this run {'was' if len(missing) == 1 else 'were'} passed to "
            "tune_loader as Python objects, which are not stored. To resume the run, call tune_loader from Python with "
            f"folder, resume=True and the same {', '.join(f'{name}=...' for name in missing)}. "
            "Otherwise start a new run without --resume."
        )
    if not given:
        return config, None
    from loadtune.workload.live import LiveParts, pack_parts

    spec = replace(
        spec,
        dataset=spec.dataset if dataset is None else label_of(dataset),
        model=spec.model if model is None else label_of(model),
        objects=tuple(given),
    )
    return replace(config, workload=spec), pack_parts(LiveParts(**given))


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


def _check_names(dataset: object, model: object) -> None:
    for name, value in (("dataset", dataset), ("model", model)):
        if not isinstance(value, str):
            raise UsageError(
                f"WorkloadSpec({name}=...) is a {type(value).__name__}, but it takes a name: a torchvision name or an "
                f"import path `pkg.mod:factory`. Pass the object to tune_loader instead: tune_loader(config, "
                f"{name}=...)."
            )


def _check_objects(dataset: Any, model: Any, loss: Any) -> None:
    for name, part in (("dataset", dataset), ("model", model)):
        if isinstance(part, str):
            raise UsageError(
                f"tune_loader({name}={part!r}) is a name, but the argument takes an object. Put names into the config: "
                f"TuneConfig(workload=WorkloadSpec({name}={part!r}))."
            )
    if not (dataset is None or callable(dataset) or hasattr(dataset, "__getitem__")):
        hint = " Pass its `.dataset`." if hasattr(dataset, "dataset") else ""
        raise UsageError(
            f"dataset is a {type(dataset).__name__}; it can be a map-style dataset, with `__len__` and `__getitem__`, "
            f"or a function without arguments that returns one.{hint}"
        )
    if not (model is None or callable(model)):
        raise UsageError(
            f"model is a {type(model).__name__}; it can be a torch.nn.Module, or a function without arguments that "
            "returns one."
        )
    if not (loss is None or callable(loss)):
        raise UsageError(f"loss is {loss!r}; it can be a function (outputs, targets) -> scalar tensor, or left out.")
