"""Takes a plan's step through, on fake tensors: every operation is dispatched and allocates nothing.

In: a `StepPlan` and a batch size. Out: the account's lines with their peak, and the layers of the forward pass.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from loadtune.errors import WorkloadError
from loadtune.footprint.cuda_ways import CudaWays
from loadtune.footprint.layers import LayerWatch
from loadtune.footprint.live import BUFFERS, GRADIENTS, INPUT, PARAMETERS, STATE, LiveMemory
from loadtune.footprint.plan import StepPlan
from loadtune.records import Checkpoint, Checkpointed, LayerFootprint, MemoryLines
from loadtune.workload import AUTOCAST_DTYPES, Batch, checkpointed, tensors_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one pass through the model showed."""

    largest: MemoryLines
    at_peak: MemoryLines
    peak_bytes: int
    layers: tuple[LayerFootprint, ...] = ()
    checkpointed: Checkpointed | None = None


def take_step(plan: StepPlan, batch_size: int, checkpoint: Checkpoint | None = None) -> Taken:
    """A training step after a first one, which made the optimizer's state."""
    live = LiveMemory()
    plan.model.train()
    with _on_fake_device(plan, live), ExitStack() as until_end:
        found = None
        if checkpoint is not None:
            running = checkpointed(plan.model, live.keep, checkpoint, preserve_rng_state=False)
            found = until_end.enter_context(running)
        batch = _start(plan, live, batch_size)
        optimizer = _optimizer(plan)
        until_end.callback(plan.model.zero_grad, set_to_none=True)
        until_end.enter_context(_gradients_marked(plan.model, live))
        _step(plan, live, optimizer, batch)
        _mark_state(optimizer, live)
        optimizer.zero_grad(set_to_none=True)
        live.start_anew()
        layers = _step(plan, live, optimizer, batch)
        return Taken(
            largest=live.largest,
            at_peak=live.at_peak,
            peak_bytes=live.peak_bytes,
            layers=layers,
            checkpointed=found,
        )


def take_forward(plan: StepPlan, batch_size: int) -> Taken:
    """A forward pass in evaluation mode without gradients."""
    live = LiveMemory()
    plan.model.eval()
    with _on_fake_device(plan, live), torch.no_grad(), _autocast(plan):
        batch = _start(plan, live, batch_size)
        if plan.takes_inputs:
            plan.model(batch[0])
        else:
            plan.compute_loss(plan.model, batch)
    return Taken(largest=live.largest, at_peak=live.at_peak, peak_bytes=live.peak_bytes)


@contextmanager
def _on_fake_device(plan: StepPlan, live: LiveMemory) -> Iterator[None]:
    with plan.fake, live, CudaWays():
        yield


def _start(plan: StepPlan, live: LiveMemory, batch_size: int) -> Batch:
    """The batch; without a loss, only its inputs."""
    live.mark(plan.model.parameters(), PARAMETERS)
    live.mark(plan.model.buffers(), BUFFERS)
    batch = plan.batch(batch_size)
    if not plan.has_loss:
        batch = (batch[0],)
    live.mark(tensors_of(batch), INPUT)
    return batch


def _step(
    plan: StepPlan, live: LiveMemory, optimizer: torch.optim.Optimizer, batch: Batch
) -> tuple[LayerFootprint, ...]:
    watch = LayerWatch(live)
    with watch.watching(plan.model), _autocast(plan):
        start = plan.compute_loss(plan.model, batch) if plan.has_loss else mean_of(plan.model(batch[0]))
    torch.autograd.backward(start)
    optimizer.step()
    return watch.rows()


def mean_of(output: object) -> torch.Tensor:
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


@contextmanager
def _gradients_marked(model: nn.Module, live: LiveMemory) -> Iterator[None]:
    def mark(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            live.mark((parameter.grad,), GRADIENTS)

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    handles = [parameter.register_post_accumulate_grad_hook(mark) for parameter in trained]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mark_state(optimizer: torch.optim.Optimizer, live: LiveMemory) -> None:
    tensors = [leaf for leaf in tree_leaves(list(optimizer.state.values())) if isinstance(leaf, torch.Tensor)]
    live.forget(tensor for tensor in tensors if tensor.dim() == 0)  # Adam counts its steps on the CPU
    live.mark((tensor for tensor in tensors if tensor.dim() > 0), STATE)
