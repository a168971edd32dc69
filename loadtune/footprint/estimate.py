"""The account of a step that is never run, and the largest batch that follows from two of them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from loadtune.errors import WorkloadError
from loadtune.footprint.plan import StepPlan
from loadtune.footprint.step import take_forward, take_step
from loadtune.records import BatchEstimate, Checkpoint, LayerFootprint, StepAccount
from loadtune.workload import last_line, num_classes_of_output

# What a process holds of the GPU outside the allocator: measured on an H200 with torch 2.11, context and libraries.
CUDA_CONTEXT_BYTES = 3 * 2**30 // 4
# Two sizes that a GPU trains at: below these, memory departs from a line (workspaces, the optimizer's temporaries).
LINE_BATCH_SIZES = (32, 64)

_NEEDS_VALUES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)


def with_loss_if_it_applies(plan: StepPlan, batch_size: int) -> StepPlan:
    """The same plan, without a loss where cross entropy does not take the model's output: it is not class scores."""
    if not plan.has_loss or not (plan.takes_inputs and plan.scores_classes):
        return plan
    try:
        with _named_errors(plan, batch_size), plan.fake, torch.no_grad():
            inputs, targets = plan.batch(batch_size)
            output = plan.model(inputs)
    except WorkloadError:  # the estimate itself says why
        return plan
    try:
        num_classes_of_output(output, targets)
    except WorkloadError:
        return replace(plan, has_loss=False)
    return plan


def estimate_layers(plan: StepPlan, batch_size: int) -> tuple[LayerFootprint, ...]:
    """The layers of a step in the order of their calls. Raises WorkloadError as `estimate_step` does."""
    with _named_errors(plan, batch_size):
        return take_step(plan, batch_size).layers


def largest_batch(
    plan: StepPlan,
    memory_bytes: int,
    *,
    checkpoint: Checkpoint | None = None,
    context_bytes: int = CUDA_CONTEXT_BYTES,
) -> BatchEstimate:
    """Where the line through two estimated peaks meets the memory that the CUDA context leaves. 0: nothing fits."""
    low, high = LINE_BATCH_SIZES
    with _named_errors(plan, high):
        below, above = (take_step(plan, size, checkpoint).peak_bytes for size in LINE_BATCH_SIZES)
    slope = (above - below) / (high - low)
    fixed = below - slope * low
    left = memory_bytes - context_bytes - fixed
    return BatchEstimate(
        memory_bytes=memory_bytes,
        context_bytes=context_bytes,
        fixed_bytes=fixed,
        bytes_per_sample=slope,
        batch_sizes=LINE_BATCH_SIZES,
        batch_size=max(0, int(left // slope)) if slope > 0 else 0,
    )


def estimate_step(plan: StepPlan, batch_size: int, checkpoint: Checkpoint | None = None) -> StepAccount:
    """The memory of one training step from tensor shapes.

    Raises WorkloadError for a model that needs the values of its tensors, or that does not take such a batch.
    """
    with _named_errors(plan, batch_size):
        step = take_step(plan, batch_size, checkpoint)
        forward = take_forward(plan, batch_size)
    return StepAccount(
        model=plan.name,
        precision=plan.precision,
        optimizer=plan.optimizer,
        batch_size=batch_size,
        input_shape=plan.input_shape,
        estimated=True,
        has_loss=plan.has_loss,
        checkpointed=step.checkpointed,
        num_parameters=sum(parameter.numel() for parameter in plan.model.parameters()),
        largest=step.largest,
        at_peak=step.at_peak,
        peak_bytes=step.peak_bytes,
        forward_only=forward.at_peak,
        forward_only_peak_bytes=forward.peak_bytes,
    )


@contextmanager
def _named_errors(plan: StepPlan, batch_size: int) -> Iterator[None]:
    """What the model raises on fake tensors becomes a WorkloadError; PyTorch's log of it is left out."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    except _NEEDS_VALUES as error:
        raise WorkloadError(
            f"the memory of {plan.name} cannot be estimated: its forward pass depends on the values of tensors, as in"
            " detection models, and an estimate knows only shapes. Run loadtune memory on a GPU without --estimate."
        ) from error
    except (ValueError, TypeError, RuntimeError, IndexError, AttributeError, AssertionError) as error:
        raise WorkloadError(
            f"{plan.name} does not train on a batch of {batch_size} inputs of shape {plan.input_shape}:"
            f" {last_line(error)}. Change --batch-size, --image-size, --dataset or --model."
        ) from error
    finally:
        log.disabled = was_disabled
