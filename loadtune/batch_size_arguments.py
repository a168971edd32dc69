"""What `find_batch_size` was given, checked. In: its arguments. Out: records, or a UsageError.

Every message names the argument, what was found, what is allowed and what to do. Apart from `batch_size`, because no
device and no process is needed to say so.
"""

import operator
from typing import Any, cast, get_args

from loadtune.errors import UsageError
from loadtune.objects import label_of
from loadtune.records import PRECISIONS, LiveObjects, MemoryFormat, OptimizerName, Recipe, WorkloadSpec

_RANDOM = "random"
_WANTED_DATA = (
    "Pass the shape of one sample such as (3, 224, 224), a map-style dataset, a function without arguments that makes "
    "one, or an import path `pkg.mod:factory`."
)


def recipe_of(precision: str, channels_last: bool, fused: bool, compile: bool, optimizer: object) -> Recipe:
    """How the script trains."""
    if precision not in PRECISIONS:
        raise UsageError(
            f"precision is {precision!r}; it can be {', '.join(PRECISIONS)}, of which fp32 is training without AMP."
            " Name one of these."
        )
    if fused and callable(optimizer):
        raise UsageError("fused is True, but the optimizer is your own: leave fused out and make it fused in there.")
    if fused and precision == "fp16" and optimizer == "sgd":
        raise UsageError(
            "fused is True for SGD in fp16, which trains nothing: under a GradScaler its momentum starts undefined. "
            "Leave fused out, or use adamw or bf16."
        )
    layout: MemoryFormat = "channels_last" if channels_last else "contiguous"
    return Recipe(precision=precision, memory_format=layout, fused_optimizer=fused, compile=compile)


def at_least_1(name: str, value: object) -> int:
    """The same number, as an int."""
    number = _whole(value)
    if number is None or number < 1:
        raise UsageError(f"{name} is {value!r}; it must be a whole number of at least 1. Raise it, or leave it out.")
    return number


def _whole(value: object) -> int | None:
    """The number, NumPy's too. None: it is none; True and False are none either."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(cast(int, value))
    except TypeError:
        return None


def workload_of(
    model: object, data: object, loss: object, optimizer: object, num_classes: int | None
) -> tuple[WorkloadSpec, LiveObjects | None]:
    """Names into the spec, objects packed. Raises UsageError where an argument can be neither."""
    shape = _shape(data)
    _check_kinds(model, data, loss, optimizer)
    objects: dict[str, Any] = {
        "model": None if isinstance(model, str) else model,
        "dataset": None if isinstance(data, str) or shape else data,
        "input_shape": shape,
        "loss": loss,
        "optimizer": None if isinstance(optimizer, str) else optimizer,
    }
    spec = WorkloadSpec(
        dataset=f"{_RANDOM} {'×'.join(map(str, shape))}" if shape else label_of(data),
        model=label_of(model),
        image_size=shape[-1] if shape and len(shape) > 1 and shape[-1] == shape[-2] else None,
        num_classes=num_classes,
        optimizer=cast(OptimizerName, optimizer) if isinstance(optimizer, str) else "sgd",
    )
    if all(part is None for part in objects.values()):
        return spec, None
    from loadtune.workload.live import LiveParts, pack_parts  # imports torch, which whoever has such objects has done

    return spec, pack_parts(LiveParts(**objects))


def is_random(spec: WorkloadSpec) -> bool:
    """Whether the samples are made up from a shape, and so without end."""
    return spec.dataset.startswith(f"{_RANDOM} ")


def _shape(data: object) -> tuple[int, ...] | None:
    """The shape of one sample. None: `data` is a dataset, or makes or names one."""
    is_shape = isinstance(data, tuple) or (isinstance(data, list) and data and all(_whole(n) is not None for n in data))
    if not is_shape:
        return None
    sizes = tuple(_whole(size) for size in cast(tuple[object, ...], data))
    if not sizes or any(size is None or size < 1 for size in sizes):
        raise UsageError(
            f"the input shape is {data!r}; it must be whole numbers of at least 1, without the batch. {_WANTED_DATA}"
        )
    return cast(tuple[int, ...], sizes)


def _check_kinds(model: object, data: object, loss: object, optimizer: object) -> None:
    if not (isinstance(model, str) or callable(model)):
        raise UsageError(
            f"the model is a {type(model).__name__}; pass a torch.nn.Module, a function without arguments that makes "
            "one, a torchvision name, or an import path `pkg.mod:factory`."
        )
    if not (isinstance(data, str) or callable(data) or hasattr(data, "__getitem__")):
        hint = " Its `.dataset` is what is wanted." if hasattr(data, "dataset") else ""
        raise UsageError(f"the second argument is a {type(data).__name__}.{hint} {_WANTED_DATA}")
    if not (loss is None or callable(loss)):
        raise UsageError(f"loss is {loss!r}; it can be a function (outputs, targets) → scalar tensor, or left out.")
    if not (callable(optimizer) or optimizer in get_args(OptimizerName)):
        found = repr(optimizer) if isinstance(optimizer, str) else f"a {type(optimizer).__name__}"
        raise UsageError(
            f"optimizer is {found}; it can be 'sgd' (with momentum 0.9), 'adamw', or a function that makes one: "
            "`lambda parameters: torch.optim.Adam(parameters, lr=1e-3)`."
        )
