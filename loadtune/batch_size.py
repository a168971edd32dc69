"""`find_batch_size`: the largest batch size that trains, and nothing else.

In: a model and its samples, as objects of the caller's script or by name. Out: a `MemoryCeiling`. Beside `tune`,
because it needs no loader and no study. It measures in a separate process, as `tune` does.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loadtune.calibration import find_ceiling
from loadtune.errors import UsageError, WorkloadError
from loadtune.host import choose_device, read_host
from loadtune.limits.step_limit import StepLimit
from loadtune.objects import Job, is_loader, pack_job, refuse_beside_job, refuse_missing, refuse_recursion
from loadtune.options import check, check_at_least, one_of, python_names, whole
from loadtune.records.config import PRECISIONS, MemoryFormat, Precision, Recipe, TuneConfig, WorkloadSpec
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import ComputePoint
from loadtune.records.memory import CeilingLimit, MemoryCeiling
from loadtune.seams import Training
from loadtune.training import TrainingClient

if TYPE_CHECKING:
    import torch

STEP_LIMIT_S = 5.0
"""Longest training step that is tried on a CPU. Its RAM would hold batches whose steps take minutes."""


def find_batch_size(
    model_or_factory: "torch.nn.Module | Callable[[], torch.nn.Module] | Job | str",
    input_shape_or_dataset: Any = None,
    *,
    loss: "Callable[[Any, Any], torch.Tensor] | str | None" = None,
    collate: Callable[[list[Any]], Any] | None = None,
    optimizer: "str | Callable[[Any], torch.optim.Optimizer] | None" = None,
    precision: Precision | None = None,
    num_steps: int = 3,
    max_batch_size: int | None = None,
    device: "str | torch.device | None" = None,
    num_classes: int | None = None,
    output_shape: "Sequence[int] | None" = None,
    batch_dim: int | None = None,
    channels_last: bool = False,
    fused: bool = False,
    compile: bool = False,
) -> MemoryCeiling:
    """Find the largest batch size that trains on this machine.

    Use ``.safe_batch_size`` of the returned `MemoryCeiling` for training; ``print`` the ceiling for a table of every
    size that was tried. Sizes are tried by real training steps in a separate process. Afterwards nothing is left on the
    GPU, the model is unchanged, and the script needs no ``if __name__ == "__main__"``. Call it before anything of this
    process is on the GPU: memory that this process holds is not free.

    model_or_factory: a module; a function or class without arguments that returns one; the name of a torchvision model
        or ``timm:NAME``; an import path ``pkg.mod:factory``; or a `Job`, which holds all that is trained, also of
        `from_lightning` and `from_trainer`.
    input_shape_or_dataset: the shape of one sample, for random float32 inputs; or a dataset, a function or class
        without arguments that returns one, an import path, or ``FakeData``; or a ``DataLoader``. Left out for a `Job`.
    loss: (outputs, targets) → scalar tensor; or (model, batch) → scalar tensor, with arguments of these names, for
        samples that are no (input, target). None: cross entropy. It takes outputs of shape (batch, classes),
        (batch, classes, …) or (batch, …, classes).
    collate: the collate function for a dataset. None: PyTorch's.
    optimizer: ``sgd`` (momentum 0.9), ``adamw``, or a function (parameters) → torch.optim.Optimizer. None: ``sgd``.
    precision: ``fp32`` (no AMP), ``fp16`` or ``bf16`` (mixed precision). None: that of the `Job`, else ``fp32``.
    num_steps: number of training steps that each size has to complete.
    max_batch_size: largest size to try. None: no limit but memory and the dataset's length.
    device: ``cpu``, ``cuda``, ``cuda:1`` or a GPU's UUID. None: the GPU with the most free memory, else the CPU.
    num_classes: number of classes, for torchvision models and ``FakeData``.
    output_shape: the shape of one target, for a loss that takes dense targets, such as a regression. Targets are then
        random float32 numbers of this shape; () is one number per sample. It needs an input shape and a ``loss``.
        None: targets are class indices in the range of the model's output.
    batch_dim: dimension of a batch's tensors that counts samples. None: found from batches of different size.
    channels_last, fused: train in this memory format, with the fused optimizer. If ``optimizer`` is a function, pass
        ``fused=True`` to the optimizer in there.
    compile: train with torch.compile. Pass the model uncompiled; every size that is tried is compiled for itself.

    On a CPU, sizes are not tried if one step is predicted to take more than 5 s. ``limit`` of the result is then
    ``time``.

    Raises UsageError or WorkloadError for arguments that cannot be used, DeviceError where the device is missing, and
    NothingFitsError where not even the smallest batch trains.
    """
    refuse_recursion("find_batch_size")
    check_at_least("num_steps", num_steps, 1)
    largest, classes = (
        check_at_least("max_batch_size", max_batch_size, 1),
        check_at_least("num_classes", num_classes, 1),
    )
    names = WorkloadSpec(num_classes=classes, batch_dim=check_at_least("batch_dim", batch_dim, 0))
    parts = {"loss": loss, "collate": collate, "optimizer": optimizer}
    shape = _shape(input_shape_or_dataset)
    if isinstance(model_or_factory, Job):
        job = model_or_factory
        beside = {"input_shape_or_dataset": input_shape_or_dataset, "output_shape": output_shape, **parts}
        refuse_beside_job("find_batch_size", beside)
        refuse_missing(job, names, function="find_batch_size")
    else:
        job = _job(model_or_factory, input_shape_or_dataset, parts)
    target_shape = None if output_shape is None else _output_shape(output_shape, shape, loss)
    if shape is not None:
        is_square = len(shape) > 1 and shape[-1] == shape[-2]
        names = replace(names, image_size=shape[-1] if is_square else None)
    with python_names():
        recipe = _recipe(precision, channels_last, fused, compile, job)
        spec, objects = pack_job(names, job, input_shape=shape, output_shape=target_shape)
        check(TuneConfig(workload=spec))
        host = read_host()
        chosen = choose_device(host, None if device is None else str(device))
        with TrainingClient(spec, chosen, objects=objects) as training:
            facts = training.describe()
            caps = _caps(facts, largest, recipe.precision, has_length=shape is None)
            limit = None if chosen.kind == "cuda" else _step_limit(training, recipe, facts)
            return find_ceiling(
                training, recipe, facts, read_host(), host, chosen, caps, num_steps=num_steps, step_limit=limit
            )


def _job(model: Any, data: Any, parts: dict[str, Any]) -> Job:
    if not (isinstance(model, str) or callable(model)):
        raise UsageError(
            f"the model is a {type(model).__name__}; pass a torch.nn.Module, a function without arguments that returns "
            "one, the name of a model of torchvision or timm, an import path `pkg.mod:factory`, or a loadtune.Job."
        )
    if _shape(data) is not None:
        if parts["collate"] is not None:
            raise UsageError("collate is given, but the samples are random tensors of a shape. Leave collate out.")
        return Job(model=model, dataset=f"random {'×'.join(map(str, data))}", **parts)
    if not (isinstance(data, str) or callable(data) or hasattr(data, "__getitem__") or is_loader(data)):
        raise UsageError(
            f"the second argument is a {type(data).__name__}. Pass the shape of one sample such as (3, 224, 224), a "
            "map-style dataset, a DataLoader, a function without arguments that returns a dataset, or an import path."
        )
    return Job(model=model, **{"loader" if is_loader(data) else "dataset": data}, **parts)


def _step_limit(training: Training, recipe: Recipe, facts: WorkloadFacts) -> StepLimit:
    """On a CPU even the first size may take long, so the smallest batch is timed before."""
    smallest = min(max(2, facts.smallest_batch), facts.largest_batch or 2)
    scout = training.time_compute(recipe, smallest, 0.0)  # where it fails, the probe says why
    known = {smallest: scout.quickest_step_s} if isinstance(scout, ComputePoint) else {}
    return StepLimit(seconds=STEP_LIMIT_S, known=known, admitted=facts.smallest_batch)


def _caps(
    facts: WorkloadFacts, max_batch_size: int | None, precision: Precision, *, has_length: bool
) -> dict[CeilingLimit, int]:
    """Limits of the batch size other than memory. Raises where the workload cannot be trained as asked for."""
    if precision not in facts.precisions:
        raise UsageError(
            f"precision is {precision!r}, which {facts.device_name} does not support; it can be "
            f"{', '.join(facts.precisions)} there. Choose one of these, or another device."
        )
    least = facts.min_batch_size
    if facts.fixed_batch_size is not None:
        raise UsageError(
            f"the loader's batch sampler or dataset makes batches of {facts.fixed_batch_size} samples, so no other "
            "size can be tried. Pass a loader with batch_size=..., or the dataset."
        )
    if facts.dataset_length is not None and facts.dataset_length < least:
        raise WorkloadError(
            f"the dataset has {facts.dataset_length} sample, but the model needs at least {least} samples to train "
            "(batch normalization does). Pass a larger dataset."
        )
    if max_batch_size is not None and max_batch_size < least:
        raise UsageError(
            f"max_batch_size is {max_batch_size}, but the model needs at least {least} samples to train (batch "
            "normalization does). Raise max_batch_size, or leave it out."
        )
    # The number of random samples is not limited.
    caps: dict[CeilingLimit, int] = {}
    if has_length and facts.dataset_length is not None:
        caps["dataset"] = facts.dataset_length
    if max_batch_size is not None:
        caps["cap"] = max_batch_size
    return caps


def _recipe(asked: Precision | None, channels_last: bool, fused: bool, compile: bool, job: Job) -> Recipe:
    """The recipe that the script trains with. Raises UsageError."""
    if job.step is not None:
        found = {"precision": asked, "channels_last": channels_last, "fused": fused, "compile": compile}
        if beside := ", ".join(name for name, value in found.items() if value):
            raise UsageError(f"The Job has a step, which already contains {beside}. Leave {beside} out.")
        return Recipe(precision="own")
    precision, optimizer = asked or job.precision or "fp32", job.optimizer or "sgd"
    one_of("precision", precision, PRECISIONS)
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


def _sizes(name: str, value: object) -> tuple[int, ...]:
    """Whole numbers of at least 1. Raises UsageError."""
    sizes = [whole(size) for size in value] if isinstance(value, tuple | list) else [None]
    known = tuple(size for size in sizes if size is not None and size > 0)
    if len(known) < len(sizes):
        raise UsageError(
            f"{name} is {value!r}; it must be a tuple of whole numbers of at least 1, without the batch, such as"
            " (3, 224, 224)."
        )
    return known


def _shape(data: object) -> tuple[int, ...] | None:
    """The shape of one sample. None: `data` is a dataset, or makes or names one."""
    if isinstance(data, tuple) or (isinstance(data, list) and data and all(whole(size) is not None for size in data)):
        return _sizes("the input shape", data or None)
    return None


def _output_shape(value: object, input_shape: object, loss: object) -> tuple[int, ...]:
    """The shape of one dense target. Raises UsageError where it is none, or nothing uses it."""
    sizes = _sizes("output_shape", value)
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
    return sizes
