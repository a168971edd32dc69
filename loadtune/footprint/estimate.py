"""The account of a step that is never run, and the largest batch that follows from two of them.

In: a `StepPlan` and a batch size. The step is taken through on fake tensors: every operation is dispatched and
allocates nothing. They lie on a fake CPU, because autograd refuses a fake GPU where there is no real one, and where
there is one a context would be created. Autocast and dropout then go the CPU's way; `CudaWays` puts them right.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from loadtune.errors import WorkloadError
from loadtune.footprint.account import PeakLines, StepWatch, StorageBooks
from loadtune.footprint.layers import LayerWatch
from loadtune.footprint.plan import StepPlan
from loadtune.records.footprint import (
    BatchEstimate,
    Checkpoint,
    Checkpointed,
    LayerFootprint,
    MemoryLines,
    StepAccount,
)
from loadtune.workload import AUTOCAST_DTYPES, Batch, checkpointed, last_line, num_classes_of_output, tensors_of

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
        return _take_step(plan, batch_size)[1]


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
        below, above = (_take_step(plan, size, checkpoint)[0].peak_bytes for size in LINE_BATCH_SIZES)
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
        lines, _, found = _take_step(plan, batch_size, checkpoint)
        forward = _take_forward(plan, batch_size)
    return StepAccount(
        model=plan.name,
        precision=plan.precision,
        optimizer=plan.optimizer,
        batch_size=batch_size,
        input_shape=plan.input_shape,
        estimated=True,
        has_loss=plan.has_loss,
        checkpointed=found,
        num_parameters=sum(parameter.numel() for parameter in plan.model.parameters()),
        largest=_unmeasured(lines.largest),
        at_peak=_unmeasured(lines.at_peak),
        peak_bytes=lines.peak_bytes,
        forward_only=_unmeasured(forward.at_peak),
        forward_only_peak_bytes=forward.peak_bytes,
    )


@contextmanager
def _named_errors(plan: StepPlan, batch_size: int) -> Iterator[None]:
    """What the model raises on fake tensors becomes a WorkloadError; PyTorch's log of it is left out. No gradient
    stays."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    except _NEEDS_VALUES as error:
        raise WorkloadError(
            f"the memory of {plan.name} cannot be estimated: its forward pass depends on the values of tensors, as in"
            " detection models, and an estimate knows only shapes. Run loadtune memory on a GPU."
        ) from error
    except (ValueError, TypeError, RuntimeError, IndexError, AttributeError, AssertionError) as error:
        raise WorkloadError(
            f"{plan.name} does not train on a batch of {batch_size} inputs of shape {plan.input_shape}:"
            f" {last_line(error)}. Change --batch-size, --image-size, --dataset or --model."
        ) from error
    finally:
        plan.model.zero_grad(set_to_none=True)
        log.disabled = was_disabled


def _take_step(
    plan: StepPlan, batch_size: int, checkpoint: Checkpoint | None = None
) -> tuple[PeakLines, tuple[LayerFootprint, ...], Checkpointed | None]:
    """A training step after a first one, which made the optimizer's state."""
    books = StorageBooks()
    watch = StepWatch(books)
    plan.model.train()
    checkpoints = (
        nullcontext()
        if checkpoint is None
        else checkpointed(plan.model, lambda tensor: watch.keep(tensor), checkpoint, preserve_rng_state=False)
    )
    with plan.fake, CudaWays(), checkpoints as found:
        batch = _batch(plan, batch_size)
        with watch:
            optimizer = _optimizer(plan)
            _step(plan, watch, optimizer, batch)
            optimizer.zero_grad(set_to_none=True)
            watch.claim_owned(plan.model, _state(optimizer, books), batch)
        standing = books.begin_anew()
        watch = StepWatch(books)
        watch.claim_owned(plan.model, _state(optimizer, books), batch)
        with watch:
            layers = _step(plan, watch, optimizer, batch)
        watch.claim_owned(plan.model, _state(optimizer, books), batch)
        events = list(books.events)
        plan.model.zero_grad(set_to_none=True)
    return watch.lines(standing, events), layers, found


def _take_forward(plan: StepPlan, batch_size: int) -> PeakLines:
    """A forward pass in evaluation mode without gradients."""
    books = StorageBooks()
    watch = StepWatch(books)
    plan.model.eval()
    with plan.fake, CudaWays(), torch.no_grad(), _autocast(plan):
        batch = _batch(plan, batch_size)
        with watch:
            watch.claim_owned(plan.model, (), batch)
            if plan.takes_inputs:
                plan.model(batch[0])
            else:
                plan.compute_loss(plan.model, batch)
        events = list(books.events)
    return watch.lines({}, events)


def _unmeasured(lines: MemoryLines) -> MemoryLines:
    """Without what only shows when it is run."""
    return replace(lines, workspace_bytes=None, rounding_bytes=None)


def _batch(plan: StepPlan, batch_size: int) -> Batch:
    """Without a loss, only its inputs."""
    batch = plan.batch(batch_size)
    return batch if plan.has_loss else (batch[0],)


def _state(optimizer: torch.optim.Optimizer, books: StorageBooks) -> list[torch.Tensor]:
    """What it keeps on the device: Adam counts its steps on the CPU."""
    tensors = [leaf for leaf in tree_leaves(list(optimizer.state.values())) if isinstance(leaf, torch.Tensor)]
    for tensor in tensors:
        if tensor.dim() == 0:
            books.forget(books.address_of(tensor))
    return [tensor for tensor in tensors if tensor.dim() > 0]


def _step(
    plan: StepPlan, watch: StepWatch, optimizer: torch.optim.Optimizer, batch: Batch
) -> tuple[LayerFootprint, ...]:
    layers = LayerWatch(watch, (*plan.model.parameters(), *plan.model.buffers(), *tensors_of(batch)))
    with layers.watching(plan.model), _autocast(plan):
        start = plan.compute_loss(plan.model, batch) if plan.has_loss else _mean_of(plan.model(batch[0]))
    torch.autograd.backward(start)
    optimizer.step()
    return layers.rows()


def _mean_of(output: object) -> torch.Tensor:
    """A scalar to start a backward pass from without a loss. Raises WorkloadError where there is nothing to train."""
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not tensors:
        raise WorkloadError(
            f"the model returned a {type(output).__name__} without a tensor that requires a gradient, so there is no"
            " backward pass. Return the tensor that the loss is computed from."
        )
    return torch.stack([tensor.mean() for tensor in tensors]).sum()


def _autocast(plan: StepPlan) -> torch.autocast:
    dtype = AUTOCAST_DTYPES[plan.precision]
    return torch.autocast("cpu", dtype=dtype, enabled=dtype is not None)


def _optimizer(plan: StepPlan) -> torch.optim.Optimizer:
    """As PyTorch takes it on CUDA where nothing else is asked for: all parameters in one call, not one by one."""
    optimizer = plan.make_optimizer(plan.model)
    for group in optimizer.param_groups:
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True
    return optimizer


# Of autocast's fp32 list for CUDA (torch/amp/autocast_mode), those in models; the CPU's list lacks them.
_IN_FP32 = frozenset(
    {
        functional.layer_norm,
        functional.group_norm,
        functional.softmax,
        functional.log_softmax,
        functional.cross_entropy,
        functional.nll_loss,
        torch.softmax,
        torch.log_softmax,
        torch.Tensor.softmax,
        torch.Tensor.log_softmax,
    }
)
_HALVES = (torch.float16, torch.bfloat16)


class CudaWays(TorchFunctionMode):
    """While it is entered, these functions allocate as they do on CUDA."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.dropout and not kwargs.get("inplace", False):
            return _dropout(*args, **kwargs)
        if func in _IN_FP32 and torch.is_autocast_enabled("cpu"):
            args = tuple(_widened(argument) for argument in args)
        return func(*args, **kwargs)


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """CUDA's fused kernel: a mask of one byte an element; the CPU keeps one in the input's dtype."""
    if inplace or not training or p == 0:
        return functional.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def _widened(argument: Any) -> Any:
    is_half = isinstance(argument, torch.Tensor) and argument.dtype in _HALVES
    return argument.float() if is_half else argument
