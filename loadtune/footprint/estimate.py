"""The account of a step that is never run, its layers, and the largest batch that follows from two accounts.

In: a `StepPlan` and a batch size. The step is taken through on fake tensors: every operation is dispatched and
allocates nothing. They lie on a fake CPU, because autograd refuses a fake GPU where there is no real one, and where
there is one a context would be created. Autocast and dropout then go the CPU's way; `CudaWays` puts them right.
"""

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
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
from loadtune.footprint.plan import StepPlan, checkpointed
from loadtune.records.footprint import BatchEstimate, LayerFootprint, MemoryLines, StepAccount, block_bytes
from loadtune.workload import AUTOCAST_DTYPES, Batch, last_line, tensors_of

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


def estimate_layers(plan: StepPlan, batch_size: int) -> tuple[LayerFootprint, ...]:
    """The layers of a step in the order of their calls. Raises WorkloadError as `estimate_step` does."""
    return _take_step(plan, batch_size)[1]


def largest_batch(
    plan: StepPlan, memory_bytes: int, *, checkpoint: bool = False, context_bytes: int = CUDA_CONTEXT_BYTES
) -> BatchEstimate:
    """Where the line through two estimated peaks meets the memory that the CUDA context leaves. 0: nothing fits."""
    low, high = LINE_BATCH_SIZES
    below, above = (_take_step(plan, size, checkpoint)[0].peak_bytes for size in LINE_BATCH_SIZES)
    slope = (above - below) / (high - low)
    fixed = below - slope * low
    left = memory_bytes - context_bytes - fixed
    return BatchEstimate(
        memory_bytes=memory_bytes,
        context_bytes=context_bytes,
        fixed_bytes=fixed,
        bytes_per_sample=slope,
        batch_size=max(0, int(left // slope)) if slope > 0 else 0,
    )


def estimate_step(plan: StepPlan, batch_size: int, *, checkpoint: bool = False) -> StepAccount:
    """The memory of one training step from tensor shapes.

    Raises WorkloadError for a model that needs the values of its tensors, or that does not take such a batch.
    """
    lines, _, num_blocks = _take_step(plan, batch_size, checkpoint)
    return StepAccount(
        model=plan.name,
        precision=plan.precision,
        optimizer=plan.optimizer,
        batch_size=batch_size,
        input_shape=plan.input_shape,
        estimated=True,
        num_checkpointed_blocks=num_blocks,
        num_parameters=sum(parameter.numel() for parameter in plan.model.parameters()),
        largest=_unmeasured(lines.largest),
        at_peak=_unmeasured(lines.at_peak),
        peak_bytes=lines.peak_bytes,
    )


def _unmeasured(lines: MemoryLines) -> MemoryLines:
    """Without what only shows when it is run."""
    return replace(lines, workspace_bytes=None, rounding_bytes=None)


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
    plan: StepPlan, batch_size: int, checkpoint: bool = False
) -> tuple[PeakLines, tuple[LayerFootprint, ...], int]:
    """A training step after a first one, which made the optimizer's state. The last: number of checkpointed blocks."""
    books = StorageBooks()
    watch = StepWatch(books)
    plan.model.train()
    checkpoints = (
        checkpointed(plan.model, lambda tensor: watch.keep(tensor), preserve_rng_state=False)
        if checkpoint
        else nullcontext(0)
    )
    with _named_errors(plan, batch_size), plan.fake, CudaWays(), checkpoints as num_blocks:
        batch = plan.batch(batch_size)
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
    return watch.lines(standing, events), layers, num_blocks


def _step(
    plan: StepPlan, watch: StepWatch, optimizer: torch.optim.Optimizer, batch: Batch
) -> tuple[LayerFootprint, ...]:
    layers = _LayerWatch(watch, (*plan.model.parameters(), *plan.model.buffers(), *tensors_of(batch)))
    dtype = AUTOCAST_DTYPES[plan.precision]
    with layers.watching(plan.model), torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss = plan.compute_loss(plan.model, batch)
    torch.autograd.backward(loss)
    optimizer.step()
    return tuple(call.row() for call in layers.calls if call.is_shown)


def _optimizer(plan: StepPlan) -> torch.optim.Optimizer:
    """As PyTorch takes it on CUDA where nothing else is asked for: all parameters in one call, not one by one."""
    optimizer = plan.make_optimizer(plan.model)
    for group in optimizer.param_groups:
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = True
    return optimizer


def _state(optimizer: torch.optim.Optimizer, books: StorageBooks) -> list[torch.Tensor]:
    """What it keeps on the device: Adam counts its steps on the CPU."""
    tensors = _tensors(list(optimizer.state.values()))
    for tensor in tensors:
        if tensor.dim() == 0:
            books.forget(books.address_of(tensor))
    return [tensor for tensor in tensors if tensor.dim() > 0]


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


@dataclass(slots=True)
class _Call:
    """One call of one module; what follows the model's has none."""

    name: str
    module: nn.Module | None = None
    num_parameters: int = 0
    output_shape: tuple[int, ...] | None = None
    kept_bytes: int = 0

    @property
    def is_shown(self) -> bool:
        """Leaf modules, and other modules with parameters or activations of their own."""
        is_leaf = self.module is not None and next(self.module.children(), None) is None
        return is_leaf or self.kept_bytes > 0 or self.num_parameters > 0

    def row(self) -> LayerFootprint:
        return LayerFootprint(
            name=self.name or "(model)",
            kind="" if self.module is None else type(self.module).__name__,
            output_shape=self.output_shape,
            num_parameters=self.num_parameters,
            kept_bytes=self.kept_bytes,
        )


class _LayerWatch:
    """The calls of one forward pass and its loss, by modules' hooks and by what autograd saves."""

    def __init__(self, watch: StepWatch, others: Iterable[torch.Tensor]) -> None:
        """``others``: tensors that are no activations, whoever saves them."""
        self._watch = watch
        storages = (tensor.untyped_storage() for tensor in others)
        self._saved = {storage._cdata: weakref.ref(storage) for storage in storages}
        self._stack: list[_Call] = []
        self._counted: set[nn.Parameter] = set()
        self._loss = _Call("(loss)")
        self.calls: list[_Call] = []
        """In their order; the loss comes last."""

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Hooks on every module, and on what autograd saves."""
        handles = []
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(self._enter(name)))
            handles.append(module.register_forward_hook(self._leave))
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda packed: packed):
                yield
        finally:
            self.calls.append(self._loss)
            for handle in handles:
                handle.remove()

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        call = self._stack[-1] if self._stack else self._loss
        storage = tensor.untyped_storage()
        saved = self._saved.get(storage._cdata)
        if saved is None or saved() is None:  # a freed storage's address may be another's by now
            self._saved[storage._cdata] = weakref.ref(storage)
            call.kept_bytes += block_bytes(storage.nbytes())
        return self._watch.keep(tensor)

    def _enter(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any) -> None:
            own = set(module.parameters(recurse=False)) - self._counted
            self._counted |= own
            self._stack.append(_Call(name, module, sum(parameter.numel() for parameter in own)))
            self.calls.append(self._stack[-1])

        return hook

    def _leave(self, module: nn.Module, inputs: Any, returned: Any) -> None:
        call, outputs = self._stack.pop(), _tensors(returned)
        call.output_shape = tuple(outputs[0].shape) if outputs else None


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
