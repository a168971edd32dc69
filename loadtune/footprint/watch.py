"""Follows a step operation by operation and says whose each block of memory is, and a forward pass module by module.

In: the books of an allocator, every operation that runs, and which tensors are known by name. Out: `PeakLines`. A
real step has the books of CUDA's allocator; one that is only worked out from shapes has those of its storages. Of
modules' hooks and of what autograd saves: `LayerFootprint`s in the order of calls.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from loadtune.footprint.blocks import Claim, Event, Kind, Mark, PeakLines, lines_of
from loadtune.records.footprint import LayerFootprint, block_bytes
from loadtune.workload import Batch, tensors_of


class Books(Protocol):
    """An allocator's, while a step runs."""

    def mark(self) -> Mark:
        """The events so far."""

    def address_of(self, tensor: torch.Tensor) -> int | None:
        """Of its block. None: it has none in this memory."""


class StorageBooks:
    """Of an allocator that gives each storage a block of its own. It knows those that it was asked the address of."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._alive: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}

    def mark(self) -> Mark:
        return Mark(len(self.events), slack_bytes=0)

    def address_of(self, tensor: torch.Tensor) -> int | None:
        storage = tensor.untyped_storage()
        key, count = storage._cdata, block_bytes(storage.nbytes())
        if key not in self._alive and count:
            self._alive[key] = count, weakref.ref(storage, lambda _: self.forget(key))
            self.events.append(Event(key, count))
        return key if count else None

    def forget(self, key: int | None) -> None:
        """The block of this address is gone, or does not lie in the device's memory."""
        if key is not None and self._alive.pop(key, None) is not None:
            self.events.append(Event(key, 0))

    def begin_anew(self) -> dict[int, int]:
        """No event has happened yet. Returns the bytes of every block that is alive, by address."""
        self.events.clear()
        return {key: count for key, (count, _) in self._alive.items()}


class StepWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch's own
    """While it is entered: where each operation begins and ends in the books, and whose the blocks are."""

    def __init__(self, books: Books) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._books = books
        self._ops: list[tuple[int, int]] = []
        self._claims: list[Claim] = []
        self._marks: list[Mark] = [books.mark()]

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        begin = self._mark().position
        returned = func(*args, **(kwargs or {}))
        self._ops.append((begin, self._mark().position))
        self.claim((leaf for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor)), "temporary_bytes")
        return returned

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """It is kept for the backward pass."""
        self.claim((tensor,), "activations_bytes")
        return tensor

    def claim(self, tensors: Iterable[torch.Tensor], kind: Kind) -> None:
        found = [self._books.address_of(tensor) for tensor in tensors]
        position = self._mark().position
        self._claims += [Claim(position, address, kind) for address in found if address is not None]

    def claim_owned(self, module: nn.Module, state: Iterable[torch.Tensor], batch: Batch) -> None:
        """What a step finds or leaves."""
        for kind, tensors in owned(module, state, batch):
            self.claim(tensors, kind)

    def lines(self, standing: dict[int, int], events: list[Event], more: Iterable[Claim] = ()) -> PeakLines:
        """Of the step that began with these blocks, and in which this has happened."""
        return lines_of(standing, events, (*self._claims, *more), self._ops, self._marks)

    def _mark(self) -> Mark:
        self._marks.append(self._books.mark())
        return self._marks[-1]


def owned(
    module: nn.Module, state: Iterable[torch.Tensor], batch: Batch
) -> Iterator[tuple[Kind, Iterable[torch.Tensor]]]:
    """Tensors by what they are. ``state``: the optimizer's."""
    parameters = list(module.parameters())
    yield "parameters_bytes", parameters
    yield "buffers_bytes", module.buffers()
    yield "gradients_bytes", (parameter.grad for parameter in parameters if parameter.grad is not None)
    yield "optimizer_state_bytes", state
    yield "input_bytes", tensors_of(batch)


_LOSS = "(loss)"


@dataclass(slots=True)
class _Call:
    """One call of one module."""

    name: str
    module: nn.Module | None
    is_leaf: bool
    num_parameters: int = 0
    output_shape: tuple[int, ...] | None = None
    output_bytes: int = 0
    kept_bytes: int = 0
    returned: dict[int, "weakref.ref[torch.UntypedStorage]"] = field(default_factory=dict)
    """Outputs of the calls within it, which are theirs."""


class LayerWatch:
    """Rows for one forward pass and its loss."""

    def __init__(self, watch: StepWatch, others: Iterable[torch.Tensor]) -> None:
        """``others``: tensors that are no activations, whoever saves them."""
        self._watch = watch
        self._saved = {storage._cdata: weakref.ref(storage) for storage in _storages(others)}
        self._calls: list[_Call] = []
        self._stack: list[_Call] = []
        self._counted: set[nn.Parameter] = set()
        self._after = _Call(_LOSS, None, is_leaf=False)

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
            for handle in handles:
                handle.remove()

    def rows(self) -> tuple[LayerFootprint, ...]:
        """Leaf modules, and other modules with parameters or activations of their own; the largest is marked."""
        called = (*self._calls, self._after)
        calls = [call for call in called if call.is_leaf or call.kept_bytes or call.num_parameters]
        rows = [_row(call) for call in calls]
        most = max(range(len(rows)), key=lambda at: rows[at].kept_bytes, default=None)
        if most is not None and rows[most].kept_bytes:
            rows[most] = replace(rows[most], is_largest=True)
        return tuple(rows)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        call = self._stack[-1] if self._stack else self._after
        storage = tensor.untyped_storage()
        if not _is_alive(self._saved.get(storage._cdata)):
            self._saved[storage._cdata] = weakref.ref(storage)
            call.kept_bytes += block_bytes(storage.nbytes())
        return self._watch.keep(tensor)

    def _enter(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any) -> None:
            call = _Call(name, module, is_leaf=next(module.children(), None) is None)
            own = set(module.parameters(recurse=False)) - self._counted
            self._counted |= own
            call.num_parameters = sum(parameter.numel() for parameter in own)
            self._calls.append(call)
            self._stack.append(call)

        return hook

    def _leave(self, module: nn.Module, inputs: Any, returned: Any) -> None:
        call = self._stack.pop()
        given = {storage._cdata for storage in _storages(_tensors(inputs))}
        outputs = _tensors(returned)
        call.output_shape = tuple(outputs[0].shape) if outputs else None
        storages = {storage._cdata: storage for storage in _storages(outputs)}
        new = {key for key in storages if key not in given and not _is_alive(call.returned.get(key))}
        call.output_bytes = sum(block_bytes(storages[key].nbytes()) for key in new)
        if self._stack:
            self._stack[-1].returned |= {key: weakref.ref(storage) for key, storage in storages.items()}


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _storages(tensors: Iterable[torch.Tensor]) -> Iterator[torch.UntypedStorage]:
    return (tensor.untyped_storage() for tensor in tensors)


def _is_alive(storage: "weakref.ref[torch.UntypedStorage] | None") -> bool:
    """A freed storage's address may be another's by now."""
    return storage is not None and storage() is not None


def _row(call: _Call) -> LayerFootprint:
    return LayerFootprint(
        name=call.name or "(model)",
        kind="" if call.module is None else type(call.module).__name__,
        output_shape=call.output_shape,
        num_parameters=call.num_parameters,
        output_bytes=call.output_bytes,
        kept_bytes=call.kept_bytes,
    )
