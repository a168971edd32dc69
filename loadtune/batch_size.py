"""`find_batch_size`: the largest batch size that trains, and nothing else.

In: a model and its samples, as objects of the caller's script or by name. Out: a `MemoryCeiling`. Beside `tune`,
because it needs no loader and no study. It measures in a separate process, as `tune` does.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from loadtune.arguments import check_at_least
from loadtune.batch_size_arguments import at_least_1, is_random, job_of, recipe_of
from loadtune.bench import BenchClient
from loadtune.calibration import find_ceiling
from loadtune.errors import UsageError, WorkloadError
from loadtune.host import choose_device, read_host
from loadtune.objects import Job, pack_job, refuse_recursion
from loadtune.probe.tries import StepLimit
from loadtune.records import CeilingLimit, ComputePoint, MemoryCeiling, Precision, Recipe, WorkloadFacts
from loadtune.seams import Bench

if TYPE_CHECKING:
    import torch

STEP_LIMIT_S = 5.0
"""Longest training step that is tried on a CPU. Its RAM would hold batches whose steps take minutes."""


def find_batch_size(
    model_or_factory: "torch.nn.Module | Callable[[], torch.nn.Module] | Job | str",
    input_shape_or_dataset: Any = None,
    *,
    loss: "Callable[[Any, Any], torch.Tensor] | None" = None,
    compute_loss: Callable[[Any, Any], Any] | None = None,
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
    loss: (outputs, targets) → scalar tensor. None: cross entropy. It takes outputs of shape (batch, classes),
        (batch, classes, …) or (batch, …, classes).
    compute_loss: (model, batch) → scalar tensor, in place of ``loss``, for samples that are no (input, target).
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
    num_steps = at_least_1("num_steps", num_steps)
    largest = None if max_batch_size is None else at_least_1("max_batch_size", max_batch_size)
    classes = None if num_classes is None else at_least_1("num_classes", num_classes)
    check_at_least("batch_dim", batch_dim, 0)
    job, names, shapes = job_of(
        model_or_factory,
        input_shape_or_dataset,
        num_classes=classes,
        output_shape=output_shape,
        batch_dim=batch_dim,
        loss=loss,
        compute_loss=compute_loss,
        collate=collate,
        optimizer=optimizer,
    )
    recipe = recipe_of(precision, channels_last, fused, compile, job)
    spec, objects = pack_job(names, job, **shapes)
    host = read_host()
    chosen = choose_device(host, None if device is None else str(device))
    with BenchClient(spec, chosen, objects=objects) as bench:
        facts = bench.describe()
        caps = _caps(facts, largest, recipe.precision, has_length=not is_random(spec))
        limit = None if chosen.kind == "cuda" else _step_limit(bench, recipe, facts)
        return find_ceiling(
            bench, recipe, facts, read_host(), host, chosen, caps, num_steps=num_steps, step_limit=limit
        )


def _step_limit(bench: Bench, recipe: Recipe, facts: WorkloadFacts) -> StepLimit:
    """On a CPU even the first size may take long, so the smallest batch is timed before."""
    smallest = min(max(2, facts.smallest_batch), facts.largest_batch or 2)
    scout = bench.time_compute(recipe, smallest, 0.0)  # where it fails, the probe says why
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
