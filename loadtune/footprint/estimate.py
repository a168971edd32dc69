"""The account of a step that is never run, its layers, and the largest batch that follows from two accounts.

The step is taken through on fake tensors: every operation is dispatched and allocates nothing. They lie on a fake CPU,
because autograd refuses a fake GPU where there is no real one, and where there is one a context would be created.
Autocast and dropout then go the CPU's way; `CudaWays` puts them right.
"""

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch import nn
from torch._subclasses import FakeTensorMode, fake_tensor
from torch.nn import functional, init
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from loadtune.errors import WorkloadError
from loadtune.footprint.account import PeakLines, StepWatch, StorageBooks
from loadtune.records.config import LiveObjects, Precision, WorkloadSpec
from loadtune.records.memory import BatchEstimate, LayerFootprint, StepAccount, block_bytes
from loadtune.workload.batches import Batch, Places, leaf_tensors, sample_shape, tensors_of, uncounted_text
from loadtune.workload.build import AUTOCAST_DTYPES, Workload, build_workload, check_targets, make_optimizer
from loadtune.workload.loaders import fetch_samples, find_places, stream_samples
from loadtune.workload.user_code import last_line

# What a process holds of the GPU outside the allocator: measured on an H200 with torch 2.11, context and libraries.
CUDA_CONTEXT_BYTES = 3 * 2**30 // 4
# Two sizes that a GPU trains at: below these, memory departs from a line (workspaces, the optimizer's temporaries).
LINE_BATCH_SIZES = (32, 64)

_NEEDS_VALUES = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedFakeTensorException,
    fake_tensor.UnsupportedOperatorException,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One training step, ready to be taken through at any batch size."""

    fake: FakeTensorMode
    """Under which the model was made, and everything else of the step has to be."""
    workload: Workload
    example: Batch
    """A few samples, of which only shapes and types count."""
    places: Places
    """Where a batch keeps its samples."""
    precision: Precision


def plan_of_spec(spec: WorkloadSpec, precision: Precision = "fp32", objects: LiveObjects | None = None) -> StepPlan:
    """The workload's step. Raises WorkloadError as a run of it would."""
    fake = _OneFakeMode(allow_non_fake_inputs=True)  # real tensors, such as the class weights of a loss
    workload = build_workload(spec, objects, making=_making(fake))
    loader, indices = workload.loader, workload.epoch.indices[:1]
    few = [*islice(stream_samples(loader.dataset), 3)] if loader.is_iterable else fetch_samples(loader, indices)
    example, places = find_places(loader, few)
    check_targets(workload, example, few[0])
    if not places.are_known:
        raise WorkloadError(f"{uncounted_text(example)} Its memory cannot be estimated for another batch size.")
    return StepPlan(fake=fake, workload=workload, example=example, places=places, precision=precision)


class _OneFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]  # PyTorch's own
    """Stays the same when a layer is copied, as nn.TransformerEncoder copies its own: modes do not mix."""

    def __deepcopy__(self, memo: dict[int, object]) -> "_OneFakeMode":
        return self


@contextmanager
def _making(fake: FakeTensorMode) -> Iterator[None]:
    """Within it modules are made of fake tensors, whose initial values are left out: some ask for a value they drew."""
    found = [name for name, made in vars(init).items() if name[0] != "_" and name[-1] == "_" and callable(made)]
    left_out: dict[str, Any] = dict.fromkeys(found, lambda tensor, *args, **kwargs: tensor)
    with warnings.catch_warnings(), patch.multiple(init, **left_out), fake:
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # by PyTorch's own copying
        yield


def estimate_step(plan: StepPlan, batch_size: int) -> tuple[StepAccount, tuple[LayerFootprint, ...]]:
    """The memory of one training step from tensor shapes, and the step's layers in the order of their calls.

    Raises WorkloadError for a model that needs the values of its tensors, or that does not take such a batch.
    """
    with _named_errors(plan, batch_size):
        lines, layers = _take_steps(plan, batch_size)
    spec = plan.workload.spec
    unseen: dict[str, Any] = {"workspace_bytes": None, "rounding_bytes": None}  # only a run shows these
    account = StepAccount(
        model=spec.model,
        precision=plan.precision,
        optimizer=spec.optimizer,
        batch_size=batch_size,
        input_shape=sample_shape(plan.example, plan.places),
        estimated=True,
        num_parameters=sum(parameter.numel() for parameter in plan.workload.model.parameters()),
        largest=replace(lines.largest, **unseen),
        at_peak=replace(lines.at_peak, **unseen),
        peak_bytes=lines.peak_bytes,
    )
    return account, layers


def largest_batch(plan: StepPlan, memory_bytes: int) -> BatchEstimate:
    """Where the line through two estimated peaks meets the memory that the CUDA context leaves. 0: nothing fits."""
    low, high = LINE_BATCH_SIZES
    below, above = (estimate_step(plan, size)[0].peak_bytes for size in LINE_BATCH_SIZES)
    slope = (above - below) / (high - low)
    fixed = below - slope * low
    left = memory_bytes - CUDA_CONTEXT_BYTES - fixed
    return BatchEstimate(
        memory_bytes=memory_bytes,
        context_bytes=CUDA_CONTEXT_BYTES,
        fixed_bytes=fixed,
        bytes_per_sample=slope,
        batch_size=max(0, int(left // slope)) if slope > 0 else 0,
    )


@contextmanager
def _named_errors(plan: StepPlan, batch_size: int) -> Iterator[None]:
    """What the model raises on fake tensors becomes a WorkloadError; PyTorch's log is left out. No gradient stays."""
    name, log = plan.workload.spec.model, logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    except _NEEDS_VALUES as error:
        raise WorkloadError(
            f"the memory of {name} cannot be estimated: its forward pass depends on the values of tensors, as in"
            " detection models, and an estimate knows only shapes. Run loadtune memory on a GPU."
        ) from error
    except (ValueError, TypeError, RuntimeError, IndexError, AttributeError, AssertionError) as error:
        raise WorkloadError(
            f"{name} does not train on a batch of {batch_size} inputs of shape"
            f" {sample_shape(plan.example, plan.places)}: {last_line(error)}. Change --batch-size, --image-size,"
            " --dataset or --model."
        ) from error
    finally:
        plan.workload.model.zero_grad(set_to_none=True)
        log.disabled = was_disabled


def _take_steps(plan: StepPlan, batch_size: int) -> tuple[PeakLines, tuple[LayerFootprint, ...]]:
    """Two training steps: the first makes the optimizer's state, the second counts."""
    model, dtype = plan.workload.model.train(), AUTOCAST_DTYPES[plan.precision]
    with plan.fake, CudaWays():
        batch = plan.places.repeated(plan.example, batch_size)
        optimizer = make_optimizer(plan.workload.optimizer, model, fused=False)
        for group in optimizer.param_groups:  # PyTorch's default on CUDA: all parameters in one call, not one by one
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            books = StorageBooks()
            watch = _LayerWatch(books, model, (*model.parameters(), *model.buffers(), *tensors_of(batch)))
            watch.claim_owned(model, _state(optimizer, books), batch)
            with watch:
                with (
                    register_module_forward_pre_hook(watch.enter),
                    register_module_forward_hook(watch.leave),
                    torch.autograd.graph.saved_tensors_hooks(watch.keep, lambda packed: packed),
                    torch.autocast("cpu", dtype=dtype, enabled=dtype is not None),
                ):
                    loss = plan.workload.compute_loss(model, batch)
                torch.autograd.backward(loss)
                optimizer.step()
            watch.claim_owned(model, _state(optimizer, books), batch)
    return watch.lines({}, books.events), watch.rows()


def _state(optimizer: torch.optim.Optimizer, books: StorageBooks) -> list[torch.Tensor]:
    """What it keeps on the device: Adam counts its steps on the CPU."""
    tensors = leaf_tensors(list(optimizer.state.values()))
    for tensor in tensors:
        if tensor.dim() == 0:
            books.forget(books.address_of(tensor))
    return [tensor for tensor in tensors if tensor.dim() > 0]


class _LayerWatch(StepWatch):  # type: ignore[no-untyped-call]
    """Also the calls of the forward pass and its loss, by hooks on modules and on what autograd saves."""

    def __init__(self, books: StorageBooks, model: nn.Module, others: Iterable[torch.Tensor]) -> None:
        """``others``: tensors that are no activations, whoever saves them."""
        super().__init__(books)
        self._names = {module: name for name, module in model.named_modules()}
        self._saved = WeakSet(tensor.untyped_storage() for tensor in others)
        self._counted: set[nn.Parameter] = set()
        self._loss = LayerFootprint(name="(loss)", kind="", num_parameters=0)
        self._calls: list[tuple[LayerFootprint, bool]] = []
        """Each with whether it is of a module without others in it."""
        self._stack = [self._loss]

    def enter(self, module: nn.Module, inputs: Any) -> None:
        if module in self._names:  # a loss may be a module too
            own = set(module.parameters(recurse=False)) - self._counted
            self._counted |= own
            num_parameters = sum(parameter.numel() for parameter in own)
            name, kind = self._names[module] or "(model)", type(module).__name__
            is_leaf = next(module.children(), None) is None
            self._stack.append(LayerFootprint(name=name, kind=kind, num_parameters=num_parameters))
            self._calls.append((self._stack[-1], is_leaf))

    def leave(self, module: nn.Module, inputs: Any, returned: Any) -> None:
        if module in self._names:
            call, outputs = self._stack.pop(), leaf_tensors(returned)
            call.output_shape = tuple(outputs[0].shape) if outputs else None

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Autograd saves it."""
        storage = tensor.untyped_storage()
        if storage not in self._saved:
            self._saved.add(storage)
            self._stack[-1].kept_bytes += block_bytes(storage.nbytes())
        return super().keep(tensor)

    def rows(self) -> tuple[LayerFootprint, ...]:
        """Leaf modules, and other modules with parameters or activations of their own."""
        calls = (*self._calls, (self._loss, False))
        return tuple(call for call, is_leaf in calls if is_leaf or call.kept_bytes or call.num_parameters)


# Of autocast's fp32 list for CUDA (torch/amp/autocast_mode), those in models; the CPU's list lacks them.
_IN_FP32 = {functional.layer_norm, functional.group_norm, functional.cross_entropy, functional.nll_loss}
_IN_FP32 |= {getattr(owner, name) for owner in (functional, torch, torch.Tensor) for name in ("softmax", "log_softmax")}
_HALVES = (torch.float16, torch.bfloat16)


class CudaWays(TorchFunctionMode):
    """While it is entered, these functions allocate as they do on CUDA."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.dropout and not kwargs.get("inplace", False):
            return _dropout(*args, **kwargs)
        if func in _IN_FP32 and torch.is_autocast_enabled("cpu"):
            args = tree_map_only(torch.Tensor, lambda each: each.float() if each.dtype in _HALVES else each, args)
        return func(*args, **kwargs)


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """CUDA's fused kernel: a mask of one byte an element; the CPU keeps one in the input's dtype."""
    if inplace or not training or p == 0:
        return functional.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]
