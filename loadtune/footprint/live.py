"""Which storages are alive, what each of them is, and the most there was at once.

In: every tensor that an operation returns, and what the caller knows of some of them. Out: bytes by kind, now and at
the peak. A module of its own because it neither knows of training nor of fake tensors.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from loadtune.records import MemoryLines, block_bytes

PARAMETERS, BUFFERS, GRADIENTS = "parameters_bytes", "buffers_bytes", "gradients_bytes"
STATE, ACTIVATIONS, INPUT = "optimizer_state_bytes", "activations_bytes", "input_bytes"
TEMPORARY, UNKNOWN = "temporary_bytes", "unknown"


class _Storage:
    """One that is alive."""

    __slots__ = ("kind", "num_bytes", "watch")

    def __init__(self, kind: str, num_bytes: int, watch: "weakref.ref[torch.UntypedStorage]") -> None:
        self.kind, self.num_bytes, self.watch = kind, num_bytes, watch


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch's own
    """While it is entered, every operation's outputs are followed until their storage is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive: dict[int, _Storage] = {}
        self._now: dict[str, int] = {}
        self._largest: dict[str, int] = {}
        self._at_peak: dict[str, int] = {}
        self.live_bytes = 0
        self.peak_bytes = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        returned = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(returned):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf, TEMPORARY)
        return returned

    def mark(self, tensors: Iterable[torch.Tensor], kind: str) -> None:
        """These are of this kind, whatever they were taken for."""
        for tensor in tensors:
            self._become(self._see(tensor, kind), kind)

    def keep(self, tensor: torch.Tensor) -> int:
        """It is kept for the backward pass. Bytes this adds: 0 for what is kept, or is no activation."""
        storage = self._see(tensor, TEMPORARY)
        if storage.kind not in (TEMPORARY, UNKNOWN):
            return 0
        self._become(storage, ACTIVATIONS)
        return storage.num_bytes

    def forget(self, tensors: Iterable[torch.Tensor]) -> None:
        """These do not lie in the device's memory."""
        for tensor in tensors:
            self._freed(tensor.untyped_storage()._cdata)

    def start_anew(self) -> None:
        """Peaks begin here; what is alive and has no name by now is left over from before: unknown."""
        for storage in self._alive.values():
            if storage.kind in (TEMPORARY, ACTIVATIONS):
                self._become(storage, UNKNOWN)
        self.peak_bytes = self.live_bytes
        self._largest, self._at_peak = dict(self._now), dict(self._now)

    @property
    def largest(self) -> MemoryLines:
        """Each kind at its own largest."""
        return _lines(self._largest)

    @property
    def at_peak(self) -> MemoryLines:
        """Each kind at the moment of the peak."""
        return _lines(self._at_peak)

    def _see(self, tensor: torch.Tensor, kind: str) -> _Storage:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._alive.get(key)
        if known is not None:
            return known
        made = _Storage(kind, block_bytes(storage.nbytes()), weakref.ref(storage, lambda _: self._freed(key)))
        self._alive[key] = made
        self._add(kind, made.num_bytes)
        return made

    def _become(self, storage: _Storage, kind: str) -> None:
        if storage.kind == kind:
            return
        self._now[storage.kind] -= storage.num_bytes
        self.live_bytes -= storage.num_bytes
        storage.kind = kind
        self._add(kind, storage.num_bytes)
        if self.live_bytes == self.peak_bytes:  # still that moment: it has learnt what a storage is
            self._at_peak = dict(self._now)

    def _add(self, kind: str, num_bytes: int) -> None:
        self._now[kind] = self._now.get(kind, 0) + num_bytes
        self._largest[kind] = max(self._largest.get(kind, 0), self._now[kind])
        self.live_bytes += num_bytes
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self._at_peak = self.live_bytes, dict(self._now)

    def _freed(self, key: int) -> None:
        storage = self._alive.pop(key, None)
        if storage is not None:
            self._now[storage.kind] -= storage.num_bytes
            self.live_bytes -= storage.num_bytes


def _lines(counted: dict[str, int]) -> MemoryLines:
    return MemoryLines(**{kind: count for kind, count in counted.items() if kind != UNKNOWN})
