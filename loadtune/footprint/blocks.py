"""What every block of the allocator's memory was during one step, and what was alive at the step's peak.

In: the allocator's events, and who said "this address is mine" when. Out: `MemoryLines`. Pure: it asks no device, so
that it can be tested without one.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from loadtune.records.footprint import MemoryLines, block_bytes

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


def lines_of(
    standing: Mapping[int, int],
    events: Sequence[Event],
    claims: Sequence[Claim],
    ops: Sequence[tuple[int, int]],
    marks: Sequence[Mark],
) -> PeakLines:
    """Of one step, as the allocator and the step's own tensors tell it. Positions and claims rise.

    ``standing``: address → bytes asked for, of the blocks that were there before. ``ops``: events before each operation
    began, and before it ended. What is nobody's, and outlives the operation that asked for it, is on none of the lines.
    """
    blocks = _blocks(standing, events, claims)
    _mark_workspace(blocks, ops)
    return _play(blocks, len(events), marks)


def _strength(kind: Kind) -> int:
    return _WEAK.index(kind) if kind in _WEAK else len(_WEAK)


def _blocks(standing: Mapping[int, int], events: Sequence[Event], claims: Sequence[Claim]) -> list[_Block]:
    """All of them, each with what it was claimed for."""
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
    """Nobody's block that came and went within one operation."""
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
