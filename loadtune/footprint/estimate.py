"""The account of a step that is never run, and the largest batch that follows from two of them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from loadtune.errors import WorkloadError
from loadtune.footprint.plan import StepPlan
from loadtune.footprint.step import take_forward, take_step
from loadtune.records import BatchEstimate, LayerFootprint, StepAccount
from loadtune.workload import last_line

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


def estimate_step(plan: StepPlan, batch_size: int, *, checkpoint: bool = False) -> StepAccount:
    """Raises WorkloadError for a model that cannot be taken through by shapes alone, or not at this size."""
    return _estimated(plan, batch_size, checkpoint)[0]


def estimate_layers(plan: StepPlan, batch_size: int) -> tuple[LayerFootprint, ...]:
    """The same step's layers, in the order of calls."""
    with _told(plan, batch_size):
        return take_step(plan, batch_size).layers


def largest_batch(
    plan: StepPlan, memory_bytes: int, *, checkpoint: bool = False, context_bytes: int = CUDA_CONTEXT_BYTES
) -> BatchEstimate:
    """Where the line through two estimated peaks meets the memory that CUDA's context leaves; 0: it is off already."""
    low, high = LINE_BATCH_SIZES
    with _told(plan, high):
        below, above = (take_step(plan, size, checkpoint=checkpoint).peak_bytes for size in LINE_BATCH_SIZES)
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


def _estimated(plan: StepPlan, batch_size: int, checkpoint: bool) -> tuple[StepAccount, tuple[LayerFootprint, ...]]:
    with _told(plan, batch_size):
        step = take_step(plan, batch_size, checkpoint=checkpoint)
        forward = take_forward(plan, batch_size)
    account = StepAccount(
        model=plan.name,
        precision=plan.precision,
        optimizer=plan.optimizer,
        batch_size=batch_size,
        input_shape=plan.inputs.shape,
        estimated=True,
        checkpointed=checkpoint,
        num_parameters=sum(parameter.numel() for parameter in plan.model.parameters()),
        largest=step.largest,
        at_peak=step.at_peak,
        peak_bytes=step.peak_bytes,
        forward_only=forward.at_peak,
        forward_only_peak_bytes=forward.peak_bytes,
    )
    return account, step.layers


@contextmanager
def _told(plan: StepPlan, batch_size: int) -> Iterator[None]:
    """What shapes alone cannot take, in words: PyTorch's own log of it, traceback and all, is not for users."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    except _NEEDS_VALUES as error:
        raise WorkloadError(
            f"model {plan.name} cannot be estimated: what it computes depends on the values of its tensors, and an"
            " estimate has shapes alone. Detection models do so; run it on a GPU instead, with loadtune run."
        ) from error
    except (ValueError, TypeError, RuntimeError, IndexError, AttributeError, AssertionError) as error:
        raise WorkloadError(
            f"model {plan.name} does not take a batch of {batch_size} inputs of shape {plan.inputs.shape}:"
            f" {last_line(error)}. Change --batch-size, --image-size, the dataset or the model."
        ) from error
    finally:
        log.disabled = was_disabled
