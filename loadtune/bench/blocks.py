"""What every block of the allocator's memory was during one step, and what was alive at the step's peak.

In: the allocator's events, and who said "this address is mine" when. Out: `MemoryLines`. Pure: it asks no device, so
that it can be tested without one.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from loadtune.records import MemoryLines, block_bytes

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
    """ExportContext out beyond what was asked for, in all blocks alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHistory:
    """One step, as the allocator and the step's own tensors tell it. Positions and claims rise."""

    standing: Mapping[int, int]
    """Address → bytes asked for, of the blocks that were there before."""
    events: Sequence[Event]
    claims: Sequence[Claim]
    ops: Sequence[tuple[int, int]]
    """Events before each operation began, and before it ended."""
    marks: Sequence[Mark]


class PeakLines(NamedTuple):
    """The account's lines of one step."""

    largest: MemoryLines
    at_peak: MemoryLines


@dataclass(slots=True)
class _Block:
    asked_bytes: int
    born: int
    gone: int | None = None
    kind: Kind | None = None

    def claim(self, kind: Kind) -> None:
        if self.kind is None or _strength(kind) > _strength(self.kind):
            self.kind = kind


def lines_of(history: StepHistory) -> PeakLines:
    """What is nobody's, and outlives the operation that asked for it, is on none of the lines."""
    blocks = _blocks(history)
    _mark_workspace(blocks, history.ops)
    return _play(blocks, len(history.events), history.marks)


def _strength(kind: Kind) -> int:
    return _WEAK.index(kind) if kind in _WEAK else len(_WEAK)


def _blocks(history: StepHistory) -> list[_Block]:
    """All of them, each with what it was claimed for."""
    alive = {address: _Block(count, born=-1) for address, count in history.standing.items()}
    blocks = list(alive.values())
    claims = iter(history.claims)
    claim = next(claims, None)
    for at in range(len(history.events) + 1):
        while claim is not None and claim.position <= at:
            if claim.address in alive:
                alive[claim.address].claim(claim.kind)
            claim = next(claims, None)
        if at == len(history.events):
            break
        address, num_bytes = history.events[at]
        if num_bytes:
            alive[address] = _Block(num_bytes, born=at)
            blocks.append(alive[address])
        elif address in alive:
            alive.pop(address).gone = at
    return blocks


def _mark_workspace(blocks: Iterable[_Block], ops: Sequence[tuple[int, int]]) -> None:
    """Nobody's block that came and went within one operation."""
    begins = [begin for begin, _ in ops]
    for block in blocks:
        if block.kind is None and block.gone is not None:
            at = bisect_right(begins, block.born) - 1
            if at >= 0 and block.gone < ops[at][1]:
                block.kind = "workspace_bytes"


def _play(blocks: Sequence[_Block], num_events: int, marks: Sequence[Mark]) -> PeakLines:
    changes: dict[int, list[tuple[int, _Block]]] = {}
    for block in blocks:
        changes.setdefault(block.born, []).append((1, block))
        if block.gone is not None:
            changes.setdefault(block.gone, []).append((-1, block))
    meter = _Meter(iter(marks))
    for at in range(-1, num_events):
        for sign, block in changes.get(at, ()):
            meter.add(sign, block)
        meter.note(at + 1)
    return PeakLines(_lines(meter.largest), _lines(meter.at_peak))


class _Meter:
    """Bytes by kind, now, at their largest and when all together were at theirs."""

    def __init__(self, marks: Iterator[Mark]) -> None:
        self.largest: dict[str, int] = {"workspace_bytes": 0, "rounding_bytes": 0}
        self.at_peak: dict[str, int] = {}
        self._marks, self._mark = marks, next(marks, None)
        self._now: dict[str, int] = {"workspace_bytes": 0, "rounding_bytes": 0}
        self._total = self._peak = self._small = 0

    def add(self, sign: int, block: _Block) -> None:
        count = block_bytes(block.asked_bytes)
        self._total += sign * count
        self._small += sign * (count - block.asked_bytes)
        if block.kind is not None:
            self._now[block.kind] = self._now.get(block.kind, 0) + sign * count

    def note(self, position: int) -> None:
        """So many events have been played."""
        while self._mark is not None and self._mark.position <= position:
            self._now["rounding_bytes"] = self._mark.slack_bytes - self._small
            self._mark = next(self._marks, None)
        for kind, count in self._now.items():
            self.largest[kind] = max(self.largest.get(kind, 0), count)
        if self._total > self._peak:
            self._peak, self.at_peak = self._total, dict(self._now)


def _lines(counted: Mapping[str, int]) -> MemoryLines:
    return MemoryLines(**counted)
