"""Checks the arguments of `find_batch_size`. In: the arguments. Out: records, or a UsageError.

Every message names the argument, what was found, what is allowed and what to do. Apart from `batch_size`, because the
checks need neither a device nor a process.
"""

from dataclasses import replace
from typing import Any, cast

from loadtune.arguments import check_together, whole
from loadtune.errors import UsageError
from loadtune.objects import Job, as_argument, is_loader, refuse_beside_job, refuse_missing
from loadtune.records import PRECISIONS, MemoryFormat, Precision, Recipe, WorkloadSpec

_RANDOM = "random"
_WANTED_DATA = (
    "Pass the shape of one sample such as (3, 224, 224), a map-style dataset, a DataLoader, a function without "
    "arguments that returns a dataset, or an import path `pkg.mod:factory`."
)


def recipe_of(asked: Precision | None, channels_last: bool, fused: bool, compile: bool, job: Job) -> Recipe:
    """The recipe that the script trains with. Raises UsageError."""
    given = {"precision": asked, "channels_last": channels_last, "fused": fused, "compile": compile}
    if job.step is not None:
        check_together(["step", *(name for name, value in given.items() if value)], as_argument)
        return Recipe(precision="own")
    precision, optimizer = asked or job.precision or "fp32", job.optimizer or "sgd"
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
    number = whole(value)
    if number is None or number < 1:
        raise UsageError(f"{name} is {value!r}; it must be a whole number of at least 1. Raise it, or leave it out.")
    return number


def job_of(
    model: object,
    data: object,
    *,
    num_classes: int | None = None,
    output_shape: object = None,
    batch_dim: int | None = None,
    **parts: Any,
) -> tuple[Job, WorkloadSpec, dict[str, tuple[int, ...] | None]]:
    """Objects, names, and the shapes of random samples. ``parts``: of the `Job`. Raises UsageError."""
    names = WorkloadSpec(num_classes=num_classes, batch_dim=batch_dim)
    if isinstance(model, Job):
        refuse_beside_job("find_batch_size", {"input_shape_or_dataset": data, "output_shape": output_shape, **parts})
        refuse_missing(model, None, "find_batch_size")
        return model, names, {}
    shape = _shape(data)
    _check_kinds(model, data)
    if shape is not None and parts["collate"] is not None:
        raise UsageError(
            "collate is given, but the second argument is a shape, whose samples are random tensors. Leave collate out."
        )
    target_shape = None if output_shape is None else _checked_output_shape(output_shape, shape, parts["loss"])
    if shape is not None:
        is_square = len(shape) > 1 and shape[-1] == shape[-2]
        random = f"{_RANDOM} {'×'.join(map(str, shape))}"
        names = replace(names, dataset=random, image_size=shape[-1] if is_square else None)
    elif isinstance(data, str):
        names = replace(names, dataset=data)
    elif is_loader(data):
        parts["loader"] = data
    else:
        parts["dataset"] = data
    if isinstance(model, str):
        names = replace(names, model=model)
    else:
        parts["model"] = model
    return Job(**parts), names, {"input_shape": shape, "output_shape": target_shape}


def is_random(spec: WorkloadSpec) -> bool:
    """Whether the samples are random, made from a shape; their number is then not limited."""
    return spec.dataset.startswith(f"{_RANDOM} ")


def _shape(data: object) -> tuple[int, ...] | None:
    """The shape of one sample. None: `data` is a dataset, or makes or names one."""
    is_shape = isinstance(data, tuple) or (isinstance(data, list) and data and all(whole(n) is not None for n in data))
    if not is_shape:
        return None
    sizes = tuple(whole(size) for size in cast(tuple[object, ...], data))
    if not sizes or any(size is None or size < 1 for size in sizes):
        raise UsageError(
            f"the input shape is {data!r}; it must be whole numbers of at least 1, without the batch. {_WANTED_DATA}"
        )
    return cast(tuple[int, ...], sizes)


def _checked_output_shape(value: object, input_shape: object, loss: object) -> tuple[int, ...]:
    """The shape of one dense target. Raises UsageError where it is none, or nothing uses it."""
    sizes = tuple(whole(size) for size in value) if isinstance(value, tuple | list) else (None,)
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


def _check_kinds(model: object, data: object) -> None:
    if not (isinstance(model, str) or callable(model)):
        raise UsageError(
            f"the model is a {type(model).__name__}; pass a torch.nn.Module, a function without arguments that returns "
            "one, the name of a model of torchvision or timm, an import path `pkg.mod:factory`, or a loadtune.Job."
        )
    if not (isinstance(data, str) or callable(data) or hasattr(data, "__getitem__") or is_loader(data)):
        raise UsageError(f"the second argument is a {type(data).__name__}. {_WANTED_DATA}")
