"""Whose each block of memory was during one step, followed operation by operation, and what was alive at its peak. A
real step has the books of CUDA's allocator; one that is only worked out from shapes has those of its storages.
"""

import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from loadtune.errors import TrainingError
from loadtune.records.memory import MemoryLines, block_bytes
from loadtune.workload.batches import Batch, leaf_tensors, tensors_of

Kind = str
"""A line of the account: a field of `MemoryLines`."""
_KINDS: tuple[Kind, ...] = tuple(field.name for field in fields(MemoryLines))
# Where several claim a block the strongest has it, all others alike: a gradient was the output of an operation before,
# an activation may be the batch itself.
_STRENGTH: dict[Kind | None, int] = {None: 0, "temporary_bytes": 1, "workspace_bytes": 2, "activations_bytes": 3}
_STRONGEST = 4


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
    """Index of its event; -1: it stood there."""
    gone: int | None = None
    kind: Kind | None = None


def _blocks(
    standing: Mapping[int, int], events: Sequence[Event], claims: Iterable[Claim], ops: Sequence[tuple[int, int]]
) -> list[_Block]:
    """All of them, each with what it was claimed for. ``ops``: events before each operation began, and ended."""
    alive = {address: _Block(count, born=-1) for address, count in standing.items()}
    blocks = list(alive.values())
    happened: list[tuple[float, Event | Claim]] = [(at + 0.5, event) for at, event in enumerate(events)]
    for when, each in sorted([*happened, *((claim.position, claim) for claim in claims)], key=itemgetter(0)):
        if isinstance(each, Claim):
            block = alive.get(each.address)
            if block and _STRENGTH.get(each.kind, _STRONGEST) > _STRENGTH.get(block.kind, _STRONGEST):
                block.kind = each.kind
        elif each.num_bytes:
            alive[each.address] = _Block(each.num_bytes, born=int(when))
            blocks.append(alive[each.address])
        elif each.address in alive:
            alive.pop(each.address).gone = int(when)
    begins = [begin for begin, _ in ops]
    for block in blocks:  # nobody's block that came and went within one operation
        if block.kind is None and block.gone is not None:
            op = bisect_right(begins, block.born) - 1
            if op >= 0 and block.gone < ops[op][1]:
                block.kind = "workspace_bytes"
    return blocks


def _play(blocks: Iterable[_Block], num_events: int, marks: Sequence[Mark]) -> PeakLines:
    """Bytes by kind, at their largest and when all together were at theirs."""
    # What changes before the first event, then with each; None: in blocks that are nobody's.
    changes = {kind: np.zeros(num_events + 1, np.int64) for kind in (*_KINDS, None)}
    small = np.zeros(num_events + 1, np.int64)
    for block in blocks:
        count = block_bytes(block.asked_bytes)
        for at, sign in ((block.born, 1), (block.gone, -1)):
            if at is not None:
                changes[block.kind][at + 1] += sign * count
                small[at + 1] += sign * (count - block.asked_bytes)
    in_use: dict[Any, Any] = {kind: change.cumsum() for kind, change in changes.items()}
    total = sum(in_use.values())
    del in_use[None]
    positions = [mark.position for mark in marks]
    rounding = np.array([mark.slack_bytes for mark in marks]) - small.cumsum()[positions]
    in_use["rounding_bytes"] = rounding[np.searchsorted(positions, np.arange(num_events + 1), "right") - 1]
    peak = total.argmax()
    return PeakLines(
        largest=MemoryLines(**{kind: int(count.max()) for kind, count in in_use.items()}),
        at_peak=MemoryLines(**{kind: int(count[peak]) for kind, count in in_use.items()}),
        peak_bytes=int(total[peak]),
    )


class StorageBooks:
    """Of an allocator that gives each storage a block of its own. It knows those that it was asked the address of."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def mark(self) -> Mark:
        return Mark(len(self.events), slack_bytes=0)

    def address_of(self, tensor: torch.Tensor) -> int | None:
        storage = tensor.untyped_storage()
        key, count = storage._cdata, block_bytes(storage.nbytes())
        if key not in self._alive and count:
            self._alive[key] = weakref.ref(storage, lambda _: self.forget(key))
            self.events.append(Event(key, count))
        return key if count else None

    def forget(self, key: int | None) -> None:
        """The block of this address is gone, or does not lie in the device's memory."""
        if key is not None and self._alive.pop(key, None) is not None:
            self.events.append(Event(key, 0))


MAX_EVENTS = 400_000  # three steps of the models tried came to 11,000 at most; a longer trace is not used
_COUNTED = ("alloc", "free_requested")
"""What the allocator's counters count: a request to give back lowers what is in use."""


class AllocatorLog:
    """Of one CUDA device, under PyTorch's native allocator. Positions count events since `kept` was entered."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._begun = self._start = 0

    @contextmanager
    def kept(self) -> Iterator[None]:
        """PyTorch keeps the allocator's history meanwhile: one a process, which a user's own would share."""
        torch.cuda.synchronize(self.device)
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=MAX_EVENTS)
        try:
            self._begun = len(self._entries())
            self._start = 0
            self._start = self.mark().position
            yield
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)

    def mark(self) -> Mark:
        stats = torch.cuda.memory_stats_as_nested_dict(self.device)
        count = stats["allocation"]["all"]
        handed_out, asked_for = (stats[name]["all"]["current"] for name in ("allocated_bytes", "requested_bytes"))
        return Mark(count["allocated"] + count["freed"] - self._start, handed_out - asked_for)

    def address_of(self, tensor: torch.Tensor) -> int | None:
        """None: it does not lie on this device, or not in one block."""
        is_here = tensor.device.type == self.device.type and tensor.layout == torch.strided
        return tensor.untyped_storage().data_ptr() if is_here else None

    def standing(self) -> dict[int, int]:
        """Address → bytes asked for, of every block in use."""
        snapshot, own = torch.cuda.memory._snapshot(self.device), self.device.index or 0
        blocks = (block for segment in snapshot["segments"] if segment["device"] == own for block in segment["blocks"])
        return {block["address"]: block["requested_size"] for block in blocks if block["state"] == "active_allocated"}

    def events(self) -> list[Event]:
        """All since `kept` was entered. Raises TrainingError where some of them are missing."""
        torch.cuda.synchronize(self.device)
        counted = [entry for entry in self._entries()[self._begun :] if entry["action"] in _COUNTED]
        if len(counted) != (position := self.mark().position):
            raise TrainingError(
                f"PyTorch's history of the allocator holds {len(counted)} events where its counters say {position}: it "
                "cannot be accounted for. `loadtune memory --device cpu` estimates it."
            )
        return [Event(entry["addr"], entry["size"] if entry["action"] == "alloc" else 0) for entry in counted]

    def _entries(self) -> list[dict[str, Any]]:
        """At most `MAX_EVENTS`, oldest first."""
        snapshot = torch.cuda.memory._snapshot(self.device)
        return snapshot["device_traces"][self.device.index or 0]  # type: ignore[no-any-return]

    def give_back_workspaces(self) -> None:
        """What libraries keep from one operation to the next goes back to the allocator."""
        torch.cuda.synchronize(self.device)
        torch._C._cuda_clearCublasWorkspaces()


class StepWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch's own
    """While it is entered: where each operation begins and ends in the books, and whose the blocks are."""

    def __init__(self, books: StorageBooks | AllocatorLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._books = books
        self._ops: list[tuple[int, int]] = []
        self._claims: list[Claim] = []
        self._marks: list[Mark] = [books.mark()]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begin = self._mark()
        returned = func(*args, **(kwargs or {}))
        self._ops.append((begin, self._mark()))
        self.claim(leaf_tensors(returned), "temporary_bytes")
        return returned

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self.claim((tensor,), "activations_bytes")
        return tensor

    def claim(self, tensors: Iterable[torch.Tensor], kind: Kind) -> None:
        found = [self._books.address_of(tensor) for tensor in tensors]
        position = self._mark()
        self._claims += [Claim(position, address, kind) for address in found if address is not None]

    def claim_owned(self, module: nn.Module, state: Iterable[torch.Tensor], batch: Batch) -> None:
        """What a step finds or leaves. ``state``: the optimizer's."""
        parameters = list(module.parameters())
        self.claim(parameters, "parameters_bytes")
        self.claim(module.buffers(), "buffers_bytes")
        self.claim((parameter.grad for parameter in parameters if parameter.grad is not None), "gradients_bytes")
        self.claim(state, "optimizer_state_bytes")
        self.claim(tensors_of(batch), "input_bytes")

    def lines(self, standing: dict[int, int], events: list[Event], more: Iterable[Claim] = ()) -> PeakLines:
        """Of the step that began with these blocks, address → bytes asked for, and in which this has happened.

        What is nobody's, and outlives the operation that asked for it, is on none of the lines.
        """
        blocks = _blocks(standing, events, (*self._claims, *more), self._ops)
        return _play(blocks, len(events), self._marks)

    def _mark(self) -> int:
        """Events so far."""
        self._marks.append(self._books.mark())
        return self._marks[-1].position
