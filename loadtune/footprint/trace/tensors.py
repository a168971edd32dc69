"""Tensors that come and go: a dispatch mode sees every operation's outputs, a weak reference on the storage its end.

A storage is counted once however many views it has. What no operation returned (NumPy's memory, a loader's batch, what
C++ made for itself) is met as an argument of the first operation that uses it. PyTorch hands the mode on to the threads
that run a backward pass on a GPU; the line is then still the one that called ``backward``.
"""

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from loadtune.footprint.trace.visits import Birth, Ledger

_LIFT = torch.ops.aten.lift_fresh.default
"""How ``torch.tensor`` and ``from_numpy`` hand out what they just made: its argument is no tensor from elsewhere."""


class TensorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Active between ``__enter__`` and ``__exit__``, as every mode; `forget` drops the weak references."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = ledger
        self._known: dict[int, Birth] = {}
        self._refs: dict[int, weakref.ref[Any]] = {}
        self._leaves: dict[int, weakref.ref[torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not _LIFT:
            for tensor in _tensors((*args, *kwargs.values())):
                self._met(tensor)
        result = func(*args, **kwargs)
        visit = self._ledger.current
        visit.num_ops += 1
        for tensor in _tensors((result,)):
            self.see(tensor, op=func)
        if not visit.in_backward and torch._C._current_graph_task_id() != -1:
            visit.in_backward = True
        return result

    def look_around(self) -> None:
        """Count what is there before the first line, but for tensors that C++ alone holds: nobody lists those."""
        before, self._ledger.current.births = self._ledger.current.births, []
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor):  # not isinstance: a proxy's ``__class__`` may run code
                self._met(thing)
        for birth in self._ledger.current.births:
            birth.file, birth.line, birth.visit, birth.first_seen = None, None, -1, False
        self.name_gradients()
        visit = self._ledger.current
        visit.births, visit.change, visit.peak = before, 0, self._ledger.in_use

    def see(self, tensor: torch.Tensor, op: Any = None, *, first_seen: bool = False) -> Birth | None:
        """The storage's birth, put down to the current line where it is new."""
        storage = _storage(tensor)
        if storage is None:
            return None
        key = storage._cdata
        known = self._known.get(key)
        if known is None:
            return self._register(key, tensor, storage, op, first_seen)
        if (num_bytes := storage.nbytes()) != known.num_bytes:  # resize_, out=
            self._ledger.grow(known, num_bytes - known.num_bytes)
            known.num_bytes = num_bytes
        return known

    def name_gradients(self) -> None:
        """Gradients are ``.grad`` of the leaves met so far; whatever C++ put there is met here at the latest."""
        for key, reference in list(self._leaves.items()):
            leaf = reference()
            if leaf is None:
                del self._leaves[key]
            elif leaf.grad is not None and (birth := self.see(leaf.grad, first_seen=True)) is not None:
                birth.kind = "gradient"
                birth.shape = tuple(leaf.grad.shape)  # was (1, n) before a bias's sum was viewed

    def name_state(self, optimizer: torch.optim.Optimizer) -> None:
        for state in optimizer.state.values():
            for tensor in _tensors(state.values()) if isinstance(state, dict) else ():
                self._name(tensor, "optimizer state")

    def forget(self) -> None:
        self._refs.clear()
        self._known.clear()
        self._leaves.clear()

    def _met(self, tensor: torch.Tensor) -> None:
        self.see(tensor, first_seen=True)
        if tensor.requires_grad and id(tensor) not in self._leaves and tensor.is_leaf:
            self._leaves[id(tensor)] = weakref.ref(tensor)
            if isinstance(tensor, torch.nn.Parameter):
                self._name(tensor, "Parameter")

    def _name(self, tensor: torch.Tensor, kind: Any) -> None:
        storage = _storage(tensor)
        birth = None if storage is None else self._known.get(storage._cdata)
        if birth is not None:
            birth.kind = kind

    def _register(self, key: int, tensor: torch.Tensor, storage: Any, op: Any, first_seen: bool) -> Birth | None:
        if storage.device.type == "meta":
            return None
        device = storage.device
        birth = Birth(
            shape=tuple(int(size) for size in tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            num_bytes=storage.nbytes(),
            device=device.type if device.type == "cpu" else str(device),
            op=None if op is None else str(getattr(op, "overloadpacket", op)),
            first_seen=first_seen,
        )
        self._known[key] = birth
        self._refs[key] = weakref.ref(storage, self._end_of(key))
        self._ledger.born(birth)
        return birth

    def _end_of(self, key: int) -> Callable[[Any], None]:
        def gone(_: Any) -> None:
            self._refs.pop(key, None)
            birth = self._known.pop(key, None)
            if birth is not None:
                self._ledger.died(birth)

        return gone


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _storage(tensor: torch.Tensor) -> Any:
    """None: the tensor has none of its own (sparse, or a wrapper around other tensors)."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
