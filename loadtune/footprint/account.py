"""Whose each block of memory was during one step, followed operation by operation, and what was alive at its peak.

In: the books of an allocator, every operation that runs, and which tensors are known by name. Out: `PeakLines`. A
real step has the books of CUDA's allocator; one that is only worked out from shapes has those of its storages.
"""

import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from loadtune.records.footprint import MemoryLines, block_bytes
from loadtune.workload import Batch, tensors_of

Kind = Literal[
    "parameters_bytes",
    "buffers_bytes",
    "gradients_bytes",
    "optimizer_state_bytes",
    "input_bytes",
    "activations_bytes",
    "workspace_bytes",
    "temporary_bytes",
]
"""A line of the account."""

# Where several claim a block: a gradient was the output of an operation before, an activation may be the batch itself.
_WEAK: tuple[Kind, ...] = ("temporary_bytes", "workspace_bytes", "activations_bytes")


class Event(NamedTuple):
    """Of the allocator: a block asked for, or given back."""

    address: int
    num_bytes: int
    """As asked for. 0: it is given back."""


class Claim(NamedTuple):
    """Somebody's block, told after so many events."""

    position: int
    address: int
    kind: Kind


class Mark(NamedTuple):
    """The allocator's counters after so many events."""

    position: int
    slack_bytes: int
    """Handed out beyond what was asked for, in all blocks alive."""


class PeakLines(NamedTuple):
    """The account's lines of one step."""

    largest: MemoryLines
    """Each kind at its own largest."""
    at_peak: MemoryLines
    peak_bytes: int
    """Of all blocks together, in multiples of 512 bytes."""


@dataclass(slots=True)
class _Block:
    asked_bytes: int
    born: int
    gone: int | None = None
    kind: Kind | None = None

    def claim(self, kind: Kind) -> None:
        if self.kind is None or _strength(kind) > _strength(self.kind):
            self.kind = kind


def _strength(kind: Kind) -> int:
    return _WEAK.index(kind) if kind in _WEAK else len(_WEAK)


def _blocks(standing: Mapping[int, int], events: Sequence[Event], claims: Sequence[Claim]) -> list[_Block]:
    """All of them, each with what it was claimed for. Positions of claims rise."""
    alive = {address: _Block(count, born=-1) for address, count in standing.items()}
    blocks = list(alive.values())
    coming = deque(claims)
    for at, event in enumerate((*events, None)):
        while coming and coming[0].position <= at:
            claim = coming.popleft()
            if claim.address in alive:
                alive[claim.address].claim(claim.kind)
        if event is not None and event.num_bytes:
            alive[event.address] = _Block(event.num_bytes, born=at)
            blocks.append(alive[event.address])
        elif event is not None and event.address in alive:
            alive.pop(event.address).gone = at
    return blocks


def _mark_workspace(blocks: Iterable[_Block], ops: Sequence[tuple[int, int]]) -> None:
    """Nobody's block that came and went within one operation: ``ops`` are events before each began, and ended."""
    begins = [begin for begin, _ in ops]
    for block in blocks:
        if block.kind is None and block.gone is not None:
            at = bisect_right(begins, block.born) - 1
            if at >= 0 and block.gone < ops[at][1]:
                block.kind = "workspace_bytes"


def _play(blocks: Sequence[_Block], num_events: int, marks: Sequence[Mark]) -> PeakLines:
    """Bytes by kind, at their largest and when all together were at theirs."""
    changes: dict[int, list[tuple[int, _Block]]] = {}
    for block in blocks:
        changes.setdefault(block.born, []).append((1, block))
        if block.gone is not None:
            changes.setdefault(block.gone, []).append((-1, block))
    now: dict[str, int] = {"workspace_bytes": 0, "rounding_bytes": 0}
    largest, at_peak, coming = dict(now), dict(now), deque(marks)
    total = peak = small = 0
    for at in range(-1, num_events):
        for sign, block in changes.get(at, ()):
            count = block_bytes(block.asked_bytes)
            total += sign * count
            small += sign * (count - block.asked_bytes)
            if block.kind is not None:
                now[block.kind] = now.get(block.kind, 0) + sign * count
        while coming and coming[0].position <= at + 1:
            now["rounding_bytes"] = coming.popleft().slack_bytes - small
        for kind, count in now.items():
            largest[kind] = max(largest.get(kind, 0), count)
        if total > peak:
            peak, at_peak = total, dict(now)
    return PeakLines(MemoryLines(**largest), MemoryLines(**at_peak), peak)


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
        """Of the step that began with these blocks, address → bytes asked for, and in which this has happened.

        What is nobody's, and outlives the operation that asked for it, is on none of the lines.
        """
        blocks = _blocks(standing, events, (*self._claims, *more))
        _mark_workspace(blocks, self._ops)
        return _play(blocks, len(events), self._marks)

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
