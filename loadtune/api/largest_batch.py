"""The largest batch alone, without a loader and a study."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loadtune.api.objects import Job, is_loader, job_of, pack_job, refuse_recursion
from loadtune.api.options import check, checked, python_names, whole
from loadtune.decide.baseline import problems
from loadtune.decide.bounds import caps_of
from loadtune.decide.ceiling import MemoryProbe, verifying_seconds
from loadtune.errors import UsageError, one_of
from loadtune.host.machine import choose_device, read_host
from loadtune.records.config import PRECISIONS, Precision, Recipe, TuneConfig, WorkloadSpec, YourSettings
from loadtune.records.measurement import ComputePoint
from loadtune.records.memory import MemoryCeiling
from loadtune.seams import drive
from loadtune.training.client import TrainingClient

if TYPE_CHECKING:
    import torch

VERIFY_S = 60.0
"""Longest verification on a CPU. Its RAM would hold batches whose steps take minutes: these are predicted."""


def find_batch_size(
    model_or_factory: "torch.nn.Module | Callable[[], torch.nn.Module] | Job | str",
    input_shape_or_dataset: Any = None,
    *,
    loss: "Callable[[Any, Any], torch.Tensor] | str | None" = None,
    collate: Callable[[list[Any]], Any] | None = None,
    optimizer: "str | Callable[[Any], torch.optim.Optimizer] | None" = None,
    precision: Precision | None = None,
    max_batch_size: int | None = None,
    device: "str | torch.device | None" = None,
) -> MemoryCeiling:
    """Find the largest batch size that trains on this machine.

    Use ``.safe_batch_size`` of the returned `MemoryCeiling` for training; ``print`` the ceiling for a table of every
    size that was tried. Sizes are tried by real training steps in a separate process. Afterwards nothing is left on the
    GPU, the model is unchanged, and the script needs no ``if __name__ == "__main__"``. Call it before anything of this
    process is on the GPU: memory that this process holds is not free.

    model_or_factory: a module; a function or class without arguments that returns one; the name of a torchvision model
        or ``timm:NAME``; an import path ``pkg.mod:factory``; or a `Job`, which holds all that is trained.
    input_shape_or_dataset: the shape of one sample, for random float32 inputs and classes; or a dataset, a function or
        class without arguments that returns one, an import path, or ``FakeData``; or a ``DataLoader``. Left out for a
        `Job`.
    loss: (outputs, targets) → scalar tensor; or (model, batch) → scalar tensor, with arguments of these names, for
        samples that are no (input, target). None: cross entropy. It takes outputs of shape (batch, classes),
        (batch, classes, …) or (batch, …, classes).
    collate: the collate function for a dataset. None: PyTorch's.
    optimizer: ``sgd`` (momentum 0.9), ``adamw``, or a function (parameters) → torch.optim.Optimizer. None: ``sgd``.
    precision: ``fp32`` (no AMP), ``fp16`` or ``bf16`` (mixed precision). None: that of the `Job`, else ``fp32``.
    max_batch_size: largest size to try. None: no limit but memory and the dataset's length.
    device: ``cpu``, ``cuda``, ``cuda:1`` or a GPU's UUID. None: the GPU with the most free memory, else the CPU.

    On a CPU, a ceiling that would take more than a minute to verify is predicted: ``verified`` of the result is False.

    Raises UsageError or WorkloadError for arguments that cannot be used, DeviceError where the device is missing, and
    NothingFitsError where not even the smallest batch trains.
    """
    refuse_recursion("find_batch_size")
    largest = None if max_batch_size is None else checked("max_batch_size", int, max_batch_size, 1)
    names, shape = WorkloadSpec(), _shape(input_shape_or_dataset)
    others: dict[str, Any] = {"loss": loss, "collate": collate, "optimizer": optimizer}
    data = input_shape_or_dataset if shape is None else f"random {'×'.join(map(str, shape))}"
    if data is None and not isinstance(model_or_factory, Job):
        raise UsageError("find_batch_size was given no data. Pass the shape of a sample, a dataset or a DataLoader.")
    parts = others | {"model": model_or_factory, "loader" if is_loader(data) else "dataset": data}
    beside = {"input_shape_or_dataset": input_shape_or_dataset, **others}
    job = job_of("find_batch_size", model_or_factory, beside, parts)
    if shape is not None and len(shape) > 1 and shape[-1] == shape[-2]:
        names = replace(names, image_size=shape[-1])
    with python_names():
        asked_for = precision or job.precision or "fp32"
        recipe = Recipe(precision=one_of("precision", asked_for, PRECISIONS))
        spec, objects = pack_job(names, job, input_shape=shape)
        check(TuneConfig(workload=spec))
        host = read_host()
        chosen = choose_device(host, None if device is None else str(device))
        with TrainingClient(spec, chosen, objects=objects) as training:
            facts = training.describe()
            if shape is not None:
                facts = replace(facts, dataset_length=None)  # the number of random samples is no limit
            given = TuneConfig(yours=YourSettings(precision=recipe.precision), max_batch_size=largest)
            for problem in problems(given, facts, chosen.kind):
                raise UsageError(problem)
            caps = caps_of(facts, largest, read_host())
            step_s: dict[int, float] | None = None
            if chosen.kind == "cpu":  # even the first size may take long, so the smallest batch is timed before
                smallest = min(max(2, facts.smallest_batch), facts.largest_batch or 2)
                scout = training.time_compute(recipe, smallest, 0.0)  # where it fails, the probe says why
                step_s = {smallest: scout.quickest_step_s} if isinstance(scout, ComputePoint) else {}
            probe = MemoryProbe(recipe, caps, smallest=facts.smallest_batch, step_s=step_s)
            found = drive(probe.bound(), training.try_batch)
            if chosen.kind != "cpu" or verifying_seconds(found) <= VERIFY_S:
                found = drive(probe.verify(), training.try_batch)
            return replace(found, capacity_bytes=facts.memory_capacity_bytes)


def _shape(data: object) -> tuple[int, ...] | None:
    """The shape of one sample. None: `data` is a dataset, or makes or names one. Raises UsageError."""
    if not isinstance(data, tuple | list):
        return None
    sizes = [whole(size) for size in data]
    if isinstance(data, list) and (not data or None in sizes):
        return None
    known = tuple(size for size in sizes if size is not None and size > 0)
    if len(known) < max(1, len(sizes)):
        raise UsageError(
            f"the input shape is {data!r}; it must be a tuple of whole numbers of at least 1, without the batch, such"
            " as (3, 224, 224)."
        )
    return known
