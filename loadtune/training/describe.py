"""Find out what the workload is: read a few samples, collate them, train one small batch, say what does not work."""

import contextlib
import multiprocessing
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torchvision

from loadtune.errors import WorkloadError
from loadtune.records.config import Precision
from loadtune.records.facts import Device, WorkloadFacts
from loadtune.records.measurement import MEMORY_KINDS
from loadtune.training.failures import classify_error
from loadtune.training.memory import DeviceMemory
from loadtune.training.protocol import Line
from loadtune.training.samples import Samples
from loadtune.training.trainer import ResidentModel, Trainer
from loadtune.units import counted
from loadtune.workload import (
    IGNORED_TARGET,
    Batch,
    RandomSamples,
    Workload,
    cause,
    class_dimension,
    code_of,
    is_pair,
    last_line,
    model_logits,
    num_bytes,
    num_classes_of_output,
    sample_shape,
    structure_text,
    tensors_of,
    transform_text,
    user_traceback,
)


def check_labels(batch: Batch, num_classes: int, *, is_own: bool = True) -> None:
    """Raises WorkloadError for a label no class has, before a GPU answers it with an assert that ends its context.

    Where each position of a sample has a label, those may be told not to count. ``is_own``: the model is the user's.
    """
    labels = batch[1] if batch[1].dim() == 1 else batch[1][batch[1] != IGNORED_TARGET]
    if labels.numel() == 0:
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        but = "" if batch[1].dim() == 1 else f", or be {IGNORED_TARGET} where it does not count"
        advice = "Correct the labels or the model" if is_own else "Give --num-classes, or correct the labels"
        raise WorkloadError(
            f"a sample's target is {low if low < 0 else high}, but the model has {counted(num_classes, 'class')}, so "
            f"it has to lie between 0 and {num_classes - 1}{but}. {advice}."
        )


def train_small(
    workload: Workload, trainer: Trainer, model: ResidentModel, samples: Samples, line: Line
) -> tuple[int, int]:
    """(smallest batch that trains, number of classes): one step at 2 samples, then one at 1.

    Where the user's code makes the batches, or a step holds its own models, one step on a batch as it comes.
    """
    line.enter("first step")
    num_classes = workload.num_classes
    own_sizes = not workload.loader.batch_size_is_free
    with model_errors(workload, samples.samples[0]):
        batch = samples.resident(samples.num if own_sizes else 2, trainer)
        own_loss = workload.own_loss or workload.own_batches
        if not own_loss and is_pair(batch) and all(isinstance(part, torch.Tensor) for part in batch):
            with torch.no_grad():
                num_classes = num_classes_of_output(model.module(batch[0]), batch[1])
            check_labels(samples.batch, num_classes, is_own=workload.own_model)
        for _ in range(trainer.accumulate):
            trainer.step(batch)
        trainer.synchronize()
    smallest = 1 if own_sizes else _smallest_batch(trainer, samples, line)
    trainer.close()
    return smallest, num_classes


@contextlib.contextmanager
def model_errors(workload: Workload, sample: Any) -> Iterator[None]:
    """What a model raises on its first samples becomes a WorkloadError; lack of memory stays what it is."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, AttributeError, IndexError, KeyError, AssertionError) as error:
        if classify_error(error) in MEMORY_KINDS:
            raise
        like = f"a batch of samples like {structure_text(sample)}"
        message, advice = f"model {workload.spec.model} does not train on {like}: {last_line(error)}", ""
        if named := cause(error):
            message = f"{named}. It was called with {like}"
            advice = "" if isinstance(workload.dataset, RandomSamples) else "Correct it, and run again."
        trace = user_traceback(error) if workload.has_own_code else None
        raise WorkloadError(f"{message}. {advice or _shape_advice(workload, sample)}", trace) from error


def _shape_advice(workload: Workload, sample: Any) -> str:
    if isinstance(sample, Mapping) and not workload.own_loss:
        return (
            "The model is called as model(**batch) and has to return an object with `.loss`. Rename the keys, or give "
            "a function `fn(model, batch) -> scalar`: --loss FILE.py:fn."
        )
    if not isinstance(workload.dataset, RandomSamples):
        if not workload.named_dataset:
            return "The model has to take what the dataset delivers: change the dataset or the model."
        return (
            f"The dataset {workload.spec.dataset} comes with the transform {transform_text(workload.dataset)}: change "
            "--image-size or the model, or give a function that makes the dataset: --dataset FILE.py:fn."
        )
    return (
        "The model has to take the input shape: change the shape or the model. If the loss takes other targets than "
        "class indices, pass a dataset instead of the shape."
    )


def describe(
    workload: Workload, samples: Samples, trained: tuple[int, int], device: Device, memory: DeviceMemory, line: Line
) -> WorkloadFacts:
    """The record of it all."""
    loader, batch = workload.loader, samples.batch
    first = next(tensors_of(batch), None)
    own = workload.make_step is not None
    return WorkloadFacts(
        dataset_length=samples.num_per_epoch,
        input_shape=sample_shape(batch, samples.places),
        input_dtype="none" if first is None else str(first.dtype).removeprefix("torch."),
        sample_bytes=num_bytes(batch) // max(1, samples.num_in_batch),
        sample_s=samples.sample_s,
        sample_cpu_s=samples.sample_cpu_s,
        num_classes=trained[1],
        num_parameters=None if own else sum(parameter.numel() for parameter in workload.model.parameters()),
        precisions=("own",) if own else _precisions(device),
        min_batch_size=trained[0],
        start_method=loader.multiprocessing_context or multiprocessing.get_start_method(),
        device_name=torch.cuda.get_device_name(0) if device.kind == "cuda" else device.name,
        memory_capacity_bytes=memory.capacity_bytes(),
        memory_budget_bytes=memory.budget_bytes(),
        code=code_of(workload),
        torchvision=str(torchvision.__version__),
        own_loader=loader.settings(samples.num) if workload.own_loader else None,
        loader_class=loader.loader_class,
        fixed_batch_size=None if loader.batch_size_is_free else samples.num,
        max_workers=1 if loader.is_iterable and not samples.is_shared_out else None,
        largest_sample_bytes=samples.largest_bytes,
        batch_is_mapping=isinstance(batch, Mapping),
        own_batches=workload.own_batches,
    )


def _smallest_batch(trainer: Trainer, samples: Samples, line: Line) -> int:
    """Models that train on 2 and not on 1 mostly refuse by batch normalisation; others squeeze the batch away."""
    line.pulse()
    try:
        trainer.step(samples.resident(1, trainer))
        trainer.synchronize()
    except (ValueError, TypeError, RuntimeError, IndexError, AssertionError, WorkloadError) as error:
        if classify_error(error) in MEMORY_KINDS:
            raise
        return 2
    return 1


def _precisions(device: Device) -> tuple[Precision, ...]:
    if device.kind != "cuda":
        return ("fp32", "bf16")  # fp16 on a CPU is emulated, and no GradScaler helps that
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return ("fp32", "fp16", "bf16")
    return ("fp32", "fp16")


_NUM_SAMPLES = 2  # batch normalisation over vectors refuses one


def match_random_targets(workload: Workload, model: ResidentModel) -> None:
    """Have random samples bring the targets that the model's own output asks for, from one forward pass.

    Raises WorkloadError where the model does not take samples of that shape. Does nothing to real datasets.
    """
    samples = workload.dataset
    if not isinstance(samples, RandomSamples):
        return
    if workload.make_step is not None:
        samples.num_classes = workload.num_classes
        return
    if workload.own_batches:
        samples.num_classes = workload.spec.num_classes or 0
    model.reset("contiguous")
    inputs = torch.stack([samples[index][0] for index in range(_NUM_SAMPLES)]).to(model.device)
    # A function of model and batch may call the model in another way: then the number of classes is not known.
    errors = contextlib.suppress(Exception) if workload.own_batches else model_errors(workload, samples[0])
    with errors, torch.no_grad():
        output = model.module(inputs)
        if not (workload.own_loss or workload.own_batches):
            logits = model_logits(output)
            class_dimension(logits, logits.new_empty((_NUM_SAMPLES, *logits.shape[2:])))  # raises where there are none
            samples.take_targets_of(logits)
        elif isinstance(output, torch.Tensor) and output.dim() > 1:  # the likeliest; who needs others brings a dataset
            samples.take_targets_of(output)
