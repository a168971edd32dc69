"""Find out what the workload is: read a few samples, collate them, train one small batch, say what does not work."""

import itertools
import multiprocessing
import time
from typing import Any

import torch

from loadtune.bench.line import Line
from loadtune.bench.memory import DeviceMemory
from loadtune.bench.training import ResidentModel, Trainer, resident_batch
from loadtune.errors import WorkloadError
from loadtune.records import Device, Precision, Recipe, WorkloadFacts
from loadtune.workload import (
    Batch,
    Workload,
    class_logits,
    collate_samples,
    fetch_samples,
    is_import_path,
    last_line,
    sample_text,
    user_traceback,
)

# What `sample_s` is the mean of: this many samples, or as many as this time allows, whichever is less; at least two.
_MAX_SAMPLES = 16
_MAX_SAMPLING_S = 0.5


class Samples:
    """A few samples from all over the dataset, and how long one takes to make."""

    def __init__(self, workload: Workload, line: Line) -> None:
        line.enter("samples")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as DataLoader does in each worker
        try:
            self.samples, self.sample_s = _read_samples(workload, line)
        finally:
            torch.set_num_threads(threads)
        self.batch: Batch = collate_samples(self.samples)


def check_labels(batch: Batch, num_classes: int) -> None:
    """Raises WorkloadError for a label no class has, before a GPU answers it with an assert that ends its context."""
    low, high = int(batch[1].min()), int(batch[1].max())
    if low < 0 or high >= num_classes:
        raise WorkloadError(
            f"a sample's target is {low if low < 0 else high}, but the model has {num_classes} classes, so it "
            f"has to lie between 0 and {num_classes - 1}. Give --num-classes, or correct the labels or the model."
        )


def train_small(workload: Workload, model: ResidentModel, samples: Samples, line: Line) -> tuple[int, int]:
    """(smallest batch that trains, number of classes): one step at 2 samples, then one at 1."""
    line.enter("first step")
    num_classes = workload.num_classes
    trainer = Trainer(model, Recipe(), workload)
    try:
        batch = resident_batch(samples.batch, 2, trainer)
        if workload.family in ("classification", "video"):
            num_classes = _output_classes(model, batch)
        check_labels(samples.batch, num_classes)
        trainer.step(batch)
        trainer.synchronize()
    except WorkloadError:
        raise
    except (ValueError, TypeError, RuntimeError, AttributeError, IndexError, KeyError, AssertionError) as error:
        if is_memory_error(error):
            raise
        raise WorkloadError(
            f"model {workload.spec.model} does not train on a batch of samples like "
            f"{sample_text(samples.samples[0])}: {last_line(error)}. Its input has to be what the dataset delivers: "
            "change --image-size, the dataset or the model.",
            user_traceback(error) if is_import_path(workload.spec.model) else None,
        ) from error
    smallest = _smallest_batch(trainer, samples, line)
    trainer.close()
    return smallest, num_classes


def is_memory_error(error: BaseException) -> bool:
    """Whether memory, not the model, is what was wrong."""
    from loadtune.bench.failures import classify_error

    return classify_error(error) in ("oom", "host_oom")


def describe(
    workload: Workload, samples: Samples, trained: tuple[int, int], device: Device, memory: DeviceMemory
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
    )


def _read_samples(workload: Workload, line: Line) -> tuple[list[Any], float]:
    length = workload.dataset_length
    indices = [i * length // _MAX_SAMPLES for i in range(_MAX_SAMPLES)]
    samples = fetch_samples(workload.dataset, indices[:1])  # untimed: files open and modules load on the first
    started = time.monotonic()
    # Wraps around in a dataset of one sample: reading it again is the only way to time it.
    for index in itertools.islice(itertools.cycle(indices), 1, _MAX_SAMPLES):
        samples += fetch_samples(workload.dataset, [index])
        line.pulse()
        if time.monotonic() - started > _MAX_SAMPLING_S:
            break
    # Above 0 whatever the clock's resolution: it is divided by.
    return samples, max(1e-9, time.monotonic() - started) / (len(samples) - 1)


def _output_classes(model: ResidentModel, batch: Batch) -> int:
    with torch.no_grad():
        return class_logits(model.module(batch[0])).shape[1]


def _smallest_batch(trainer: Trainer, samples: Samples, line: Line) -> int:
    """Models that train on 2 and not on 1 mostly refuse by batch normalisation; others squeeze the batch away."""
    line.pulse()
    try:
        trainer.step(resident_batch(samples.batch, 1, trainer))
        trainer.synchronize()
    except (ValueError, TypeError, RuntimeError, IndexError, AssertionError) as error:
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
