"""Find out what the workload is: read a few samples, collate them, train one small batch, say what does not work."""

import contextlib
import itertools
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from loadtune.bench.line import Line
from loadtune.bench.memory import DeviceMemory
from loadtune.bench.training import ResidentModel, Trainer, resident_batch
from loadtune.errors import WorkloadError
from loadtune.records import Device, Precision, Recipe, WorkloadFacts
from loadtune.units import counted
from loadtune.workload import (
    IGNORED_TARGET,
    Batch,
    RandomSamples,
    Workload,
    code_of,
    collate_samples,
    fetch_samples,
    last_line,
    num_classes_of_output,
    sample_text,
    torchvision_version,
    user_traceback,
)

_MAX_SAMPLES = 16  # kept, to make batches of
# Samples are read in groups of so many, fewer where this time is over: at least two. Of fast ones more groups are read,
# until `_ENOUGH_S` is over, and of three or more the slowest tenth does not count, one at the least: 64 samples of 2 µs
# read 33 to 60 µs each where a pause of the interpreter, 2 ms, fell among them.
_GROUP, _MAX_GROUPS = 64, 64
_MAX_SAMPLING_S, _ENOUGH_S = 0.5, 0.25


class Samples:
    """A few samples from all over the dataset, and how long one takes to make."""

    def __init__(self, workload: Workload, line: Line) -> None:
        line.enter("samples")
        with _one_thread(), line.samples.reading() as note:
            self.samples, indices, self.sample_s, self.sample_cpu_s = _read_samples(workload, line, note)
        self.batch: Batch = collate_samples(self.samples, indices, any_target=workload.own_loss)


def check_labels(batch: Batch, num_classes: int) -> None:
    """Raises WorkloadError for a label no class has, before a GPU answers it with an assert that ends its context.

    Where each position of a sample has a label, those may be told not to count.
    """
    labels = batch[1] if batch[1].dim() == 1 else batch[1][batch[1] != IGNORED_TARGET]
    if labels.numel() == 0:
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        but = "" if batch[1].dim() == 1 else f", or be {IGNORED_TARGET} where it does not count"
        raise WorkloadError(
            f"a sample's target is {low if low < 0 else high}, but the model has {counted(num_classes, 'class')}, so "
            f"it has to lie between 0 and {num_classes - 1}{but}. Give --num-classes, or correct labels or model."
        )


def train_small(workload: Workload, model: ResidentModel, samples: Samples, line: Line) -> tuple[int, int]:
    """(smallest batch that trains, number of classes): one step at 2 samples, then one at 1."""
    line.enter("first step")
    num_classes = workload.num_classes
    trainer = Trainer(model, Recipe(), workload)
    with model_errors(workload, samples.samples[0]):
        batch = resident_batch(samples.batch, 2, trainer)
        if not workload.own_loss:
            num_classes = _checked_classes(workload, model, samples.batch, batch)
        trainer.step(batch)
        trainer.synchronize()
    smallest = _smallest_batch(trainer, samples, line)
    trainer.close()
    return smallest, num_classes


@contextlib.contextmanager
def model_errors(workload: Workload, sample: Any) -> Iterator[None]:
    """What a model raises on its first samples becomes a WorkloadError; lack of memory stays what it is."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, AttributeError, IndexError, KeyError, AssertionError) as error:
        if is_memory_error(error):
            raise
        raise WorkloadError(
            f"model {workload.spec.model} does not train on a batch of samples like "
            f"{sample_text(sample)}: {last_line(error)}. {_shape_advice(workload)}",
            user_traceback(error) if workload.own_model or workload.own_loss else None,
        ) from error


def _shape_advice(workload: Workload) -> str:
    samples = workload.dataset
    if not isinstance(samples, RandomSamples):
        return "The model has to take what the dataset delivers: change --image-size, the dataset or the model."
    if samples.output_shape is not None:
        return "Change the input shape, output_shape, the loss or the model so that they fit together."
    advice = "The model has to take the input shape: change the shape or the model."
    if not workload.own_loss:
        return advice
    return f"{advice} If the loss takes other targets than class indices, give output_shape, the shape of one target."


def is_memory_error(error: BaseException) -> bool:
    """Whether memory, not the model, is what was wrong."""
    from loadtune.bench.failures import classify_error

    return classify_error(error) in ("oom", "host_oom")


def describe(
    workload: Workload, samples: Samples, trained: tuple[int, int], device: Device, memory: DeviceMemory, line: Line
) -> WorkloadFacts:
    """The record of it all."""
    inputs, targets = samples.batch
    parameters = workload.model.parameters()
    return WorkloadFacts(
        dataset_length=workload.dataset_length,
        input_shape=tuple(inputs.shape[1:]),
        input_dtype=str(inputs.dtype).removeprefix("torch."),
        sample_bytes=(inputs.nbytes + targets.nbytes) // len(inputs),
        sample_s=samples.sample_s,
        sample_cpu_s=samples.sample_cpu_s,
        num_classes=trained[1],
        num_parameters=sum(parameter.numel() for parameter in parameters),
        precisions=_precisions(device),
        min_batch_size=trained[0],
        start_method=multiprocessing.get_start_method(),
        device_name=torch.cuda.get_device_name(0) if device.kind == "cuda" else device.name,
        torch=str(torch.__version__),  # TorchVersion is a str that only torch can read back
        cuda=torch.version.cuda,
        memory_capacity_bytes=memory.capacity_bytes(),
        memory_budget_bytes=memory.budget_bytes(),
        code=code_of(workload),
        torchvision=torchvision_version(),
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """As DataLoader has it in each worker."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _drawn(workload: Workload) -> list[int]:
    """Indices from all over the dataset, in random order: any first of them are a fair sample too.

    A group at the least, of a small dataset the same ones again: it is the only way to time its only sample. No more
    than a quarter of the dataset beyond that: what keeps its samples would have them all before a worker asks.
    """
    length = workload.dataset_length
    count = max(_GROUP, min(length // 4, _MAX_GROUPS * _GROUP))
    drawn = random.Random(workload.spec.seed).sample(range(length), min(length, count))
    return list(itertools.islice(itertools.cycle(drawn), count))


def _read_samples(
    workload: Workload, line: Line, note: Callable[[int], None]
) -> tuple[list[Any], list[int], float, float]:
    """(Samples to make batches of, their indices, seconds of one, CPU seconds of one).

    As many are timed as there is time for. ``note`` is called with the index of a sample before the sample is loaded.
    """
    note(0)
    samples, indices = fetch_samples(workload.dataset, [0]), [0]  # untimed: files open and modules load on the first
    drawn, means, started = _drawn(workload), [], time.monotonic()
    used_s, num_read = _busy_s(), 0
    for at in range(0, len(drawn) - _GROUP + 1, _GROUP):
        group, mean_s, num = _read_group(workload, drawn[at : at + _GROUP], line, note)
        kept = group[: _MAX_SAMPLES - len(samples)]
        samples, indices = samples + kept, indices + drawn[at : at + len(kept)]
        means.append(mean_s)
        num_read += num
        if time.monotonic() - started > _ENOUGH_S:
            break
    counted_in = sorted(means)[: len(means) - max(1, len(means) // 10)] if len(means) > 2 else means
    sample_s = max(1e-9, statistics.fmean(counted_in))  # whatever the clock's resolution: it is divided by
    cpu_s = (_busy_s() - used_s) / num_read
    return samples, indices, sample_s, min(sample_s, max(1e-9, cpu_s))


def _busy_s() -> float:
    """CPU seconds of this process so far, and seconds in which this thread was ready and waited for a core: other load
    on the machine makes no sample one that waits for storage."""
    try:
        queued_s = int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        queued_s = 0.0
    return time.process_time() + queued_s


def _read_group(
    workload: Workload, indices: list[int], line: Line, note: Callable[[int], None]
) -> tuple[list[Any], float, int]:
    """(Its first samples, mean seconds of one, how many were read); fewer of them where they are slow."""
    group: list[Any] = []
    num_read, started = 0, time.monotonic()
    for index in indices:
        note(index)
        sample = fetch_samples(workload.dataset, [index])
        group += sample if len(group) < _MAX_SAMPLES else []
        num_read += 1
        line.pulse()
        if time.monotonic() - started > _MAX_SAMPLING_S:
            break
    return group, (time.monotonic() - started) / num_read, num_read


def _checked_classes(workload: Workload, model: ResidentModel, samples: Batch, batch: Batch) -> int:
    """Classes the model tells apart. Raises WorkloadError where the samples' labels are not among them."""
    num_classes = workload.num_classes
    if workload.answers_with_logits:
        with torch.no_grad():
            num_classes = num_classes_of_output(model.module(batch[0]), batch[1])
    elif batch[1].dim() > 1 and workload.family != "segmentation":
        raise WorkloadError(
            f"the target of a sample is a tensor of shape {tuple(batch[1].shape[1:])}; for {workload.spec.model} it "
            "has to be a class index: one whole number."
        )
    check_labels(samples, num_classes)
    return num_classes


def _smallest_batch(trainer: Trainer, samples: Samples, line: Line) -> int:
    """Models that train on 2 and not on 1 mostly refuse by batch normalisation; others squeeze the batch away."""
    line.pulse()
    try:
        trainer.step(resident_batch(samples.batch, 1, trainer))
        trainer.synchronize()
    except (ValueError, TypeError, RuntimeError, IndexError, AssertionError, WorkloadError) as error:
        if is_memory_error(error):
            raise
        return 2
    return 1


def _precisions(device: Device) -> tuple[Precision, ...]:
    if device.kind != "cuda":
        return ("fp32", "bf16")  # fp16 on a CPU is emulated, and no GradScaler helps that
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return ("fp32", "fp16", "bf16")
    return ("fp32", "fp16")
