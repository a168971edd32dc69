"""The times of a loop's steps, gathered into what is decided by. Pure: no clock, no torch.

Only means over many steps are judged: a loop that accumulates gradients takes several batches in a row, and on a GPU
the time between two batches is that of launching kernels alone.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from loadtune.decide.inflight import Reading
from loadtune.records.statistics import BLOCK_S, LOOKS

GROUP = 8
"""Steps between two looks at the figures; half of the fewest that say anything."""
MAX_STEPS = 400
"""Steps after which a reading is clear enough, whatever its spread."""
_WATCHED_S, _TURNS = 0.3, 3
"""Seconds and turns of all workers that a reading spans at least, unless it has `MAX_STEPS`."""
_FEW = 3
"""Long gaps between steps, as for a validation, that are too few to belong to the loop."""
_GAP, _GAP_S = 8, 0.01
"""Times as long as the others, and seconds beyond that, from which on the time between two steps is a gap."""


@dataclass(slots=True)
class Steps:
    """The steps since settings took effect."""

    num_workers: int
    skip: int = 0
    """Steps still to leave out."""
    num: int = 0
    total_s: float = 0.0
    newest: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=2 * MAX_STEPS))
    """Of each step: seconds blocked and between, and batches that stood ready before it."""
    quick: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_STEPS))
    """Seconds blocked where a batch stood ready."""
    blocks: deque[float] = field(default_factory=lambda: deque(maxlen=2 * LOOKS[-1]))
    """Mean seconds of the steps of each block that lasted `BLOCK_S`."""
    block: list[tuple[float, float]] = field(default_factory=list)
    """Steps of the block that is not whole: seconds blocked and between."""
    block_s: float = 0.0

    def add(self, blocked_s: float, between_s: float, num_ready: int) -> bool:
        """Whether a group of steps is complete."""
        if self.skip > 0:
            self.skip -= 1
            return False
        self.num, self.total_s = self.num + 1, self.total_s + blocked_s + between_s
        self.newest.append((blocked_s, between_s, num_ready))
        if num_ready > 1:
            self.quick.append(blocked_s)
        self.block.append((blocked_s, between_s))
        self.block_s += blocked_s + between_s
        if self.block_s >= BLOCK_S and len(self.block) % max(1, self.num_workers) == 0:
            self._close_block()
        return self.num % GROUP == 0

    def _close_block(self) -> None:
        """Blocks are whole turns of all workers, which deliver in bursts."""
        usual_s = _usual_s([gap for _, gap, _ in self.newest])
        if between := [gap for _, gap in self.block if gap <= usual_s]:
            self.blocks.append(fmean(blocked for blocked, _ in self.block) + fmean(between))
        self.block, self.block_s = [], 0.0

    def reading(self) -> Reading | None:
        """None: too few steps, or a gap in them that more steps must explain."""
        num, usual_s = len(self.newest), _usual_s([gap for _, gap, _ in self.newest])
        between = [gap for _, gap, _ in self.newest if gap <= usual_s]
        if num < GROUP or (len(between) < num < 8 * GROUP):
            return None
        step_s, blocked_s = fmean(between), fmean(blocked for blocked, _, _ in self.newest)
        steps = [blocked + (gap if gap <= usual_s else step_s) for blocked, gap, _ in self.newest]
        whole = num // max(1, self.num_workers) * max(1, self.num_workers) or num
        drained = max(0, self.newest[0][2] - self.newest[-1][2])
        size, is_rough = num // LOOKS[0], len(self.blocks) < LOOKS[0]
        fine = (fmean(steps[at : at + size]) for at in range(0, LOOKS[0] * size, size))
        return Reading(
            num_workers=self.num_workers,
            num_steps=self.num,
            total_s=max(1e-9, blocked_s + step_s),
            sustained_s=max(1e-9, sum(steps[:whole]) / max(whole - drained, whole / 2)),
            blocked_s=blocked_s,
            handover_s=median(self.quick) if len(self.quick) >= GROUP else 0.0,
            step_s=step_s,
            starved=sum(ready == 0 for _, _, ready in self.newest) / num,
            blocks=tuple(fine) if is_rough else tuple(self.blocks),
            is_rough=is_rough,
        )

    def is_enough(self) -> bool:
        """Whether a reading would span `_TURNS` and `_WATCHED_S`, or many steps."""
        return self.num >= num_needed(self.num_workers, self.total_s / max(1, self.num))


def _usual_s(between: Sequence[float]) -> float:
    """Seconds between two steps above which it is a gap. Infinite: there are none, or so many that they belong to the
    loop."""
    ordered = sorted(between)
    usual_s = _GAP * fmean(ordered[: -(_FEW - 1)]) + _GAP_S if len(ordered) >= _FEW else math.inf
    return usual_s if sum(each > usual_s for each in ordered[-_FEW:]) < _FEW else math.inf


def num_skipped(num_workers: int) -> int:
    """Steps that are left out once so many workers deliver: batches that were queued before."""
    return max(3, 2 * num_workers)


def num_needed(num_workers: int, step_s: float) -> int:
    """Steps that a reading spans at least."""
    return min(MAX_STEPS, max(2 * GROUP, _TURNS * num_workers, math.ceil(_WATCHED_S / max(1e-6, step_s))))
