"""A forward pass module by module, by modules' hooks and by what autograd saves: rows in the order of calls."""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from loadtune.footprint.account import StepWatch
from loadtune.records.footprint import LayerFootprint, block_bytes

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
