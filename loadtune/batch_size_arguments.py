"""Checks the arguments of `find_batch_size`. In: the arguments. Out: records, or a UsageError.

Every message names the argument, what was found, what is allowed and what to do. Apart from `batch_size`, because the
checks need neither a device nor a process.
"""

import operator
from typing import Any, cast, get_args

from loadtune.errors import UsageError
from loadtune.objects import is_loader, label_of
from loadtune.records import PRECISIONS, LiveObjects, MemoryFormat, OptimizerName, Recipe, WorkloadSpec

_RANDOM = "random"
_WANTED_DATA = (
    "Pass the shape of one sample such as (3, 224, 224), a map-style dataset, a DataLoader, a function without "
    "arguments that returns a dataset, or an import path `pkg.mod:factory`."
)


def recipe_of(precision: str, channels_last: bool, fused: bool, compile: bool, optimizer: object) -> Recipe:
    """The recipe that the script trains with. Raises UsageError."""
    if precision not in PRECISIONS:
        raise UsageError(
            f"precision is {precision!r}; it can be {', '.join(PRECISIONS)}. fp32 is training without AMP, the others"
            " are mixed precision."
        )
    if fused and callable(optimizer):
        raise UsageError(
            "fused is True, but the optimizer is a function: leave fused out, and pass fused=True to the optimizer that"
            " the function returns."
        )
    if fused and precision == "fp16" and optimizer == "sgd":
        raise UsageError(
            "fused is True for SGD in fp16, which does not train: if the GradScaler skips the first step, the momentum "
            "buffers of fused SGD stay uninitialized. Leave fused out, or use adamw or bf16."
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
    model: object,
    data: object,
    loss: object,
    optimizer: object,
    num_classes: int | None,
    output_shape: object = None,
    *,
    compute_loss: object = None,
    collate: object = None,
) -> tuple[WorkloadSpec, LiveObjects | None]:
    """Names into the spec, objects packed. Raises UsageError where an argument can be neither."""
    shape = _shape(data)
    _check_kinds(model, data, loss, optimizer)
    _check_functions(data, shape, loss, compute_loss, collate)
    target_shape = None if output_shape is None else _checked_output_shape(output_shape, shape, loss)
    objects: dict[str, Any] = {
        "model": None if isinstance(model, str) else model,
        "loader": None,
        "dataset": None if isinstance(data, str) or shape else data,
        "collate": collate,
        "input_shape": shape,
        "output_shape": target_shape,
        "loss": loss,
        "compute_loss": compute_loss,
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

    if is_loader(data):
        from loadtune.workload.loaders import LoaderParts

        objects |= {"loader": LoaderParts.of(cast(Any, data)), "dataset": None}
    return spec, pack_parts(LiveParts(**{name: part for name, part in objects.items() if part is not None}))


def is_random(spec: WorkloadSpec) -> bool:
    """Whether the samples are random, made from a shape; their number is then not limited."""
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


def _checked_output_shape(value: object, input_shape: object, loss: object) -> tuple[int, ...]:
    """The shape of one dense target. Raises UsageError where it is none, or nothing uses it."""
    sizes = tuple(_whole(size) for size in value) if isinstance(value, tuple | list) else (None,)
    if any(size is None or size < 1 for size in sizes):
        raise UsageError(
            f"output_shape is {value!r}; it must be a tuple of whole numbers of at least 1, without the batch: (10,), "
            "(3, 224, 224), or () for one number per sample."
        )
    if input_shape is None:
        raise UsageError(
            f"output_shape is {value!r}, but the second argument is a dataset, which has targets of its own. Leave "
            "output_shape out, or pass the shape of one sample instead of the dataset."
        )
    if loss is None:
        raise UsageError(
            f"output_shape is {value!r}, but no loss was given, and the default, cross entropy, takes class indices. "
            "Pass a loss for such targets, for example loss=torch.nn.MSELoss()."
        )
    return cast(tuple[int, ...], sizes)


def _check_functions(data: object, shape: object, loss: object, compute_loss: object, collate: object) -> None:
    for name, function in (("compute_loss", compute_loss), ("collate", collate)):
        if not (function is None or callable(function)):
            raise UsageError(f"{name} is {function!r}; it must be a function, or left out.")
    if loss is not None and compute_loss is not None:
        raise UsageError("loss and compute_loss are both given. compute_loss takes the place of loss: leave one out.")
    if collate is not None and (shape is not None or is_loader(data)):
        found = "a loader, which has its own" if is_loader(data) else "a shape, whose samples are random tensors"
        raise UsageError(f"collate is given, but the second argument is {found}. Leave collate out.")


def _check_kinds(model: object, data: object, loss: object, optimizer: object) -> None:
    if not (isinstance(model, str) or callable(model)):
        raise UsageError(
            f"the model is a {type(model).__name__}; pass a torch.nn.Module, a function without arguments that returns "
            "one, the name of a torchvision model, or an import path `pkg.mod:factory`."
        )
    if not (isinstance(data, str) or callable(data) or hasattr(data, "__getitem__") or is_loader(data)):
        raise UsageError(f"the second argument is a {type(data).__name__}. {_WANTED_DATA}")
    if not (loss is None or callable(loss)):
        raise UsageError(
            f"loss is {loss!r}; it must be a function (outputs, targets) → scalar tensor. For cross entropy leave it"
            " out."
        )
    if not (callable(optimizer) or optimizer in get_args(OptimizerName)):
        found = repr(optimizer) if isinstance(optimizer, str) else f"a {type(optimizer).__name__}"
        raise UsageError(
            f"optimizer is {found}; it can be 'sgd' (with momentum 0.9), 'adamw', or a function that returns an "
            "optimizer, such as `lambda parameters: torch.optim.Adam(parameters, lr=1e-3)`."
        )
