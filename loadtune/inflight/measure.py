"""From the times of single steps to what a loader needs. Pure: no clock, no torch.

Only means over many steps are judged: a loop that accumulates gradients takes several batches in a row, and on a GPU
the time between two batches is that of launching kernels alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np

GROUP = 8
MAX_STEPS = 400
"""Steps after which a reading is clear enough, whatever its spread."""
ACT = 0.025
"""Share of the time that a loop waits from which on something is done."""
FLOOR_S = 0.0005
"""Seconds a batch that a loop may wait: no change of the workers makes it less."""
FEW = 3
"""Long gaps between steps, as for a validation, that are too few to belong to the loop."""
SPARE = 1.1
"""Workers beyond those that the mean needs: their times vary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Means over some steps with the same settings; seconds a batch."""

    num_steps: int
    total_s: float
    """From one batch to the next."""
    sustained_s: float = math.inf
    """The same over whole turns of the workers, which deliver in bursts, and without batches taken from a queue that
    shrank: workers do not load so many."""
    blocked_s: float
    """In ``next(loader)``."""
    handover_s: float
    """Of those, where a batch stood ready: what taking it takes. 0: none was ever ready."""
    step_s: float
    """Between two calls of ``next``. With several ranks 0: it is not known, for waiting for a peer is in it."""
    error_s: float
    """Standard error of `total_s`; infinite where there is one block of steps only."""
    peers_wait: bool = False
    """Whether another rank waits for data, and with it all do."""

    @property
    def waiting_fraction(self) -> float:
        """Share of the time blocked, beyond taking a batch that stands ready."""
        return max(0.0, self.blocked_s - self.handover_s) / self.total_s

    @property
    def waits(self) -> bool:
        """So much that something may be gained."""
        return self.peers_wait or (self.blocked_s >= FLOOR_S and self.waiting_fraction >= ACT)


@dataclass(slots=True)
class Steps:
    """The steps since settings took effect."""

    num_workers: int
    skip: int = 0
    """Steps still to leave out: batches that were queued before."""
    blocked: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    quick: list[float] = field(default_factory=list)
    """Seconds blocked where a batch stood ready."""
    ready: list[int] = field(default_factory=list)
    """Batches that stood ready before each of these steps."""

    def add(self, blocked_s: float, between_s: float, num_ready: int) -> bool:
        """Whether a group of steps is complete."""
        if self.skip > 0:
            self.skip -= 1
            return False
        self.ready.append(num_ready)
        self.blocked.append(blocked_s)
        self.between.append(between_s)
        if len(self.blocked) > 2 * MAX_STEPS:
            del self.blocked[:MAX_STEPS], self.between[:MAX_STEPS], self.ready[:MAX_STEPS], self.quick[:-GROUP]
        if num_ready > 1:
            self.quick.append(blocked_s)
        return len(self.blocked) % GROUP == 0

    def reading(self) -> Reading | None:
        """None: too few steps, or a gap in them that more steps must explain."""
        ordered = sorted(self.between)[: -(FEW - 1)]
        usual_s = 8 * fmean(ordered) + 0.01 if ordered else math.inf  # the two longest gaps may be unusual
        num_gaps = sum(gap > usual_s for gap in self.between)
        if len(self.blocked) < GROUP or (0 < num_gaps < FEW and len(self.blocked) < 8 * GROUP):
            return None
        if num_gaps >= FEW:
            usual_s, num_gaps = math.inf, 0
        between = [gap if gap <= usual_s else 0.0 for gap in self.between]
        mean_s = sum(between) / (len(between) - num_gaps)
        blocked_s, num = fmean(self.blocked), len(self.blocked)
        drained = max(0, self.ready[0] - self.ready[-1])
        # Blocks as long as a turn of all workers, which deliver in bursts.
        size = max(GROUP, self.num_workers)
        steps = np.array(self.blocked) + np.array(between)
        blocks = steps[: num // size * size].reshape(-1, size).mean(axis=1)
        whole = num // max(1, self.num_workers) * max(1, self.num_workers) or num
        return Reading(
            num_steps=num,
            total_s=max(1e-9, blocked_s + mean_s),
            sustained_s=max(1e-9, float(steps[:whole].sum()) / max(whole - drained, whole / 2)),
            blocked_s=blocked_s,
            handover_s=median(self.quick) if len(self.quick) >= GROUP else 0.0,
            step_s=mean_s,
            error_s=float(blocks.std(ddof=1)) / math.sqrt(len(blocks)) if len(blocks) > 1 else math.inf,
        )


def num_needed(num_workers: int, step_s: float) -> int:
    """Steps that span three turns of all workers and a third of a second, or are many."""
    return min(MAX_STEPS, max(2 * GROUP, 3 * num_workers, math.ceil(0.3 / max(1e-6, step_s))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What loading a batch takes, by the workers' own clocks. Seconds a batch of one worker."""

    load_s: float
    cpu_s: float
    queued_s: float = 0.0
    """Of `load_s`: ready to run while all cores were taken."""
    spare_s: float = math.inf
    """CPU seconds a batch that the step leaves to workers; infinite: not known."""

    @property
    def cpu_share(self) -> float:
        """Of a core, while a worker loads and gets a core when it needs one."""
        return max(0.01, self.cpu_s / max(self.cpu_s, self.load_s - self.queued_s))


def needed(work: Work, step_s: float) -> int:
    """Little's law: workers that are busy at a time, and some to spare."""
    return max(1, math.ceil(SPARE * work.load_s / max(1e-6, step_s) - 1e-6))


def within_cores_s(work: Work, step_s: float, num_workers: int) -> float:
    """Seconds a batch, where workers load while the loop waits what the cores have no time for beside the step."""
    return step_s + max(0.0, work.cpu_s - work.spare_s) / num_workers


def predicted_s(work: Work, step_s: float, num_workers: int) -> float:
    """Seconds a batch with so many workers."""
    return max(work.load_s / num_workers, within_cores_s(work, step_s, num_workers))


def best_number(
    reading: Reading, work: Work, most: int, left: float, start_s: Callable[[int], float]
) -> tuple[int, float]:
    """How many workers end the rest of the loader soonest, and the seconds that they save there.

    ``left``: batches, infinite where nobody knows. ``start_s``: until so many deliver; the present rate lasts so long.
    """
    want = max(1, min(most, needed(work, reading.step_s)))
    if math.isinf(left):
        return want, math.inf

    def saved_s(num: int) -> float:
        with_them = max(0.0, left - start_s(num) / reading.total_s)
        return with_them * (reading.total_s - predicted_s(work, reading.step_s, num))

    saved = {num: saved_s(num) for num in range(1, want + 1)}
    enough = max(saved.values()) - 0.01 * abs(left) * reading.total_s
    return next((num, seconds) for num, seconds in saved.items() if seconds >= enough)


def has_gained(new: Reading, old: Reading, num_workers: int, *, may_tie: bool) -> bool | None:
    """Whether new settings are kept. None: more steps may tell. ``may_tie``: they need not gain, only not lose."""
    gain = 1 - new.total_s / old.total_s
    noise = 2 * math.hypot(*(each for each in (new.error_s, old.error_s) if each < math.inf)) / old.total_s
    if gain >= max(0.02, min(noise, 0.5)) or (may_tie and gain > -max(0.01, min(noise, 0.03))):
        return True
    return None if gain > -noise and new.num_steps < 4 * max(2 * GROUP, 3 * num_workers) else False
