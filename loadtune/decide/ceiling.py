"""The memory probe: the largest batch that trains, found by real training steps, and the largest to train on for hours.

Two sizes are run. They predict the others: by a forecast that knows what fragmentation takes, where the allocator's
requests were recorded, else by a line through allocated peaks. A run decides; where it fails, one step back is run.
Every size that a verified ceiling names was run. What the host's memory allows is plain arithmetic, below the probe.
"""

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from loadtune.decide.forecast import Forecast, forecast_from
from loadtune.decide.recipe import STEP_S
from loadtune.errors import WorkloadError
from loadtune.records.config import Recipe
from loadtune.records.measurement import nothing_fits, raise_for_the_user
from loadtune.records.memory import AllocationTrace, BatchTry, CeilingLimit, FitReport, MemoryCeiling

MAX_PROBES, MAX_LINE = 6, 3
"""Sizes that are run, from the first that fits on, and how many of them for the line. Four and two are the rule; one is
kept for the safe ceiling."""

VERIFYING_PROBES = 3
"""That a bound is expected to need to be verified: the hard ceiling, the safe one, and one step back."""

LOW, TIMES = 32, 5
"""The line's first size, and how many times that its second is at the least. Smaller ones misjudge the slope:
workspaces and rounding weigh as much as the samples (a line through 1 to 16 was 12% short for ResNet-50)."""

THIRD, VISIBLE = 0.3, 0.1
"""Share of the budget that a further size of the line may fill, and by which memory has to have grown for its slope to
be believed. The farther apart the sizes, the less a jump or a ripple bends the line."""

LEAN, STEP_BACK, WORTH = 0.98, 0.97, 1.005
"""Of the size a line or a forecast ends at, which on an H200 was 0.98 to 1.01 of the truth; of a size that failed; and
times as large as another, for a size to be worth a run."""

LEAST = 0.8
"""Of a size, down to which a forecast is asked for one that suits better. Of the memory at the hard ceiling, where only
one more run is left to find a safe size."""

ROOM = 0.95
"""Of the memory, at most, for a size to be used for hours, and for one on the way that is sure to fit, as n times the
batch takes at most n times the memory. The 5% are for what a few steps do not show: other libraries' buffers, an
evaluation with other sizes, fragmentation that grows."""


R = TypeVar("R")

Tries = Generator[BatchTry, FitReport, R]
"""Asks for sizes to be run, is sent the report of each, and returns what they say."""


class Line(NamedTuple):
    """Allocated peak over batch size, in bytes, through two sizes that fit."""

    slope: float
    at_zero: float
    budget_bytes: int

    def retries(self, batch_size: int) -> int | None:
        """0: peaks tell of none. None: it would run out of memory."""
        return None if self.at_zero + self.slope * batch_size > self.budget_bytes else 0


@dataclass(slots=True)
class MemoryProbe:
    """The largest batch that trains a few steps under `recipe`, what limits it, and the largest that is safe."""

    recipe: Recipe
    caps: Mapping[CeilingLimit, int]
    """The other bounds on the batch size, each at least `smallest`."""
    smallest: int = 1
    """Below it the model refuses to train."""
    step_s: Mapping[int, float] | None = None
    """Seconds of a step by batch size, timed before. With it the sizes of the line take about `STEP_S` a step at the
    most; what is larger is predicted, or run to verify it. None: steps may take any time."""
    large: int = 0
    """Least of the line's second size, where that is sure to fit."""
    _reports: list[FitReport] = field(default_factory=list)
    _fitting: list[FitReport] = field(default_factory=list)
    """The last of each size that fits, by size."""
    _wall: FitReport | None = None
    """Smallest size that did not fit."""
    _num_left: int = MAX_PROBES
    """Sizes that may still be run, once one fits."""
    _verified: set[int] = field(default_factory=set)
    """Sizes that were run with all that an epoch brings, however that ended."""
    _traces: list[AllocationTrace] = field(default_factory=list)
    _forecast: Forecast | None = None
    """Once two sizes recorded what they asked of the allocator."""
    _line: Line | None = None
    """Through the smallest and the largest that fit. None: fewer fit, or memory does not grow with the batch."""
    _end: int | None = None
    """Largest size that the forecast, or else the line, says fits. None: nothing to go by."""

    def bound(self) -> Tries[MemoryCeiling]:
        """Ask for the sizes of the line and predict both ceilings; verified where the runs themselves decide it. Raises
        NothingFitsError where not even the smallest size fits, WorkloadError where the step fails by itself."""
        yield from self._run_line()
        hard = self._next_hard()
        if hard is None or self._end is None:
            return (yield from self.verify())
        return self._ceiling(hard, max(self.smallest, self._safe_below(hard)), verified=False)

    def verify(self) -> Tries[MemoryCeiling]:
        """Ask for sizes, after those that ran already, until both ceilings are among them. Raises as `bound` does."""
        yield from self._run_line()
        while self._num_left > 0:
            hard = self._next_hard() if self._num_left > 1 else None
            if (size := hard or self._next_safe()) is None:
                break
            yield from self._run(size, verify=True)
        failed = {report.batch_size for report in self._reports if not report.fits}
        standing = [report.batch_size for report in self._fitting if report.batch_size not in failed]
        standing = standing or [report.batch_size for report in self._fitting]  # each failed when it was verified
        return self._ceiling(standing[-1], self._largest_comfortable or standing[0])

    def _run(self, batch_size: int, *, trace: bool = False, verify: bool = False) -> Tries[bool]:
        """Whether this size fits; verified with the dataset's last partial batch, where there is one that trains.
        Raises WorkloadError for a failure that no smaller batch would mend."""
        length = self.caps.get("dataset", 0)
        left = length % batch_size
        partial = left if verify and left >= self.smallest and batch_size < length else None
        report = yield BatchTry(
            recipe=self.recipe, batch_size=batch_size, trace=trace, verify=verify, partial_batch_size=partial
        )
        allocations, report = report.allocations, replace(report, allocations=None)
        raise_for_the_user(report.failure)
        self._reports.append(report)
        if verify:
            self._verified.add(batch_size)
        if report.fits:
            others = (each for each in self._fitting if each.batch_size != batch_size)
            self._fitting = sorted([*others, report], key=lambda each: each.batch_size)
        elif self._wall is None or batch_size < self._wall.batch_size:
            self._wall = report
        if allocations is not None and report.fits:
            self._traces.append(allocations)
            self._forecast = forecast_from(self._traces, self._fitting[-1])
        if self.step_s is not None and report.step_s:
            self.step_s = {**self.step_s, batch_size: report.step_s}
        if self._fitting:
            self._num_left -= 1
            self._predict(self._fitting[0], self._fitting[-1])
        return report.fits

    def _predict(self, low: FitReport, high: FitReport) -> None:
        """The line and its end, from the smallest and the largest that fit."""
        (x0, y0), (x1, y1) = ((each.batch_size, each.peak_bytes or 0) for each in (low, high))
        if high.budget_bytes is None or y1 <= y0:  # as where a single size fits
            self._line = self._end = None
            return
        slope = (y1 - y0) / (x1 - x0)
        self._line = Line(slope, y1 - slope * x1, high.budget_bytes)
        self._end = max(x1, int((high.budget_bytes - self._line.at_zero) / slope))
        if self._forecast is not None and self._end > x1:
            self._end = self._forecast.largest(x1, int(self._end * 1.05))

    # What the runs say together.

    @property
    def _cap(self) -> int:
        return min(self.caps.values())

    @property
    def _largest(self) -> int:
        return self._fitting[-1].batch_size

    @property
    def _largest_comfortable(self) -> int | None:
        """Largest verified size with room above it and no allocator retries in a steady step. None: none yet."""
        sizes = (r.batch_size for r in self._fitting if r.batch_size in self._verified and not r.num_steady_retries)
        return max((size for size in sizes if self._has_room(size)), default=None)

    def _has_room(self, batch_size: int) -> bool:
        """Whether a size larger by the safety margin would still fit: one did, or is predicted to."""
        larger, prediction = self._with_share(batch_size, 1 / ROOM), self._forecast or self._line
        if self._wall is not None and larger >= self._wall.batch_size:
            return False
        return larger <= self._largest or prediction is None or prediction.retries(larger) is not None

    def _with_share(self, batch_size: int, share: float) -> int:
        """The size that takes `share` of the memory that `batch_size` takes.

        Where most of that is the model's own, or a CPU process's, the batch gives way by three times the difference.
        """
        fixed = 0.0 if self._line is None else self._line.at_zero / self._line.slope  # memory in samples
        size, give_way = batch_size - (1 - share) * (batch_size + fixed), batch_size * 3 * abs(1 - share)
        return int(min(max(size, batch_size - give_way), batch_size + give_way))

    def _first_below(self, top: int, least: float, otherwise: int, most_retries: float = math.inf) -> int:
        """The largest size above `least`, in steps of half a percent, that is predicted to fit with at most so many
        allocator retries in a steady step; `otherwise` where there is none.

        Its neighbours are asked as well: memory is not monotonic, and one sample more or less decides which cached
        block a request falls into.
        """
        size, prediction = top, self._forecast or self._line
        while prediction is not None and size > least:
            near = [prediction.retries(int(size * factor)) for factor in (1.0, 0.99, 0.995, 1.005, 1.01)]
            if all(retries is not None and retries <= most_retries for retries in near):
                return size
            size = int(size * 0.995)
        return otherwise

    # The sizes of the line.

    def _quick_cap(self) -> int:
        """The largest size that the line may have: by the best rate seen, a step of it takes `STEP_S` at most."""
        if not self.step_s:
            return self._cap
        quick = STEP_S * max(size / took_s for size, took_s in self.step_s.items())
        return min(self._cap, max(2 * self.smallest, int(quick)))

    def _run_line(self) -> Tries[None]:
        """Run sizes until memory has visibly grown: a line or a forecast needs it. The cap is the answer if it fits."""
        if self._reports:
            return
        size = max(self.smallest, min(LOW, self._quick_cap() // 4))
        while not (yield from self._run(size, trace=True)):
            if size == self.smallest:
                report = self._reports[-1]
                assert report.failure is not None
                if report.failure.is_of_memory:
                    raise nothing_fits(f"does not train in {report.precision}", report.failure)
                what = f"A batch of {size} cannot be trained in {report.precision}"
                raise WorkloadError(f"{what}: {report.failure.message.rstrip('.')}.", report.failure.log_tail or None)
            size = max(self.smallest, size // 2)
        while self._num_left > MAX_PROBES - MAX_LINE and (next_size := self._next_of_line()) is not None:
            if not (yield from self._run(next_size, trace=True, verify=next_size == self._cap)):
                break

    def _next_of_line(self) -> int | None:
        """Another size for the line: far enough from the first, never one that the first says cannot fit."""
        base, cap = self._largest, self._quick_cap()
        if self._wall is None and (size := min(cap, self._farther())) > base:
            return size
        smaller = max(self.smallest, base // 2)  # where no larger size is sure to fit the second point lies below
        return smaller if len(self._fitting) == 1 and smaller < base < cap else None

    def _farther(self) -> int:
        """A larger size from which the line is known; 0: it is known."""
        first, last = self._fitting[0], self._fitting[-1]
        base, peak, budget = last.batch_size, last.peak_bytes, last.budget_bytes
        if not peak or budget is None:  # the platform does not tell a process's own memory
            return TIMES * base if first is last else 0
        if peak - (first.peak_bytes or 0) >= VISIBLE * budget or self._forecast is not None:
            return 0
        per_sample = peak / base if self._line is None else self._line.slope
        sure, fits = (base + share * (budget - peak) / per_sample for share in (ROOM, 1.0))
        size = min(max(TIMES * base, self.large, base + THIRD * budget / per_sample), sure)
        return int(max(size, min(base + 1, fits)))

    # The two ceilings.

    def _next_hard(self) -> int | None:
        """The next size worth running for the hard ceiling. None: it stands."""
        base, wall = self._largest, None if self._wall is None else self._wall.batch_size
        if base >= self._cap or (wall is not None and wall <= base + 1):
            return None
        if self._end is None:
            return min(self._cap, 2 * base) if wall is None else (wall + base) // 2
        lean = min(self._end, int(self._end * LEAN + 0.5))
        least = max(base, int(LEAST * lean))
        size = min(self._cap, self._first_below(lean, least, otherwise=least))
        if wall is not None:
            num_failed = sum(not report.fits for report in self._reports)  # twice as far back after each failure
            size = min(size, int(wall * (1 - (1 - STEP_BACK) * 2 ** (num_failed - 1))))
        return size if size > base * WORTH or size == self._cap else None

    def _next_safe(self) -> int | None:
        """The next size worth running for the safe ceiling. None: a comfortable one was run, or none is left to try."""
        size = self._safe_below(self._largest)
        if self._num_left == 1:
            size = min(size, self._with_share(self._largest, LEAST))
        size = max(self.smallest, size)
        return None if size in self._verified or (self._largest_comfortable or 0) >= size else size

    def _safe_below(self, hard: int) -> int:
        """The largest size that leaves room, and at which no steady step is predicted to retry, where `hard` fits."""
        top = hard if self._has_room(hard) else self._with_share(hard, ROOM)
        uneasy = [report.batch_size for report in self._reports if report.num_steady_retries or not report.fits]
        if uneasy and min(uneasy) <= top:
            top = self._with_share(min(uneasy), ROOM)
        return self._first_below(top, LEAST * top, otherwise=top, most_retries=0)

    def _ceiling(self, hard: int, safe: int, *, verified: bool = True) -> MemoryCeiling:
        wall = self._wall
        limit = min(self.caps, key=self.caps.__getitem__) if hard == self._cap else "memory"
        if limit == "memory" and wall is not None and wall.failure is not None and not wall.failure.is_of_memory:
            limit = "memory" if self._end is not None and self._end < wall.batch_size else "failure"
        return MemoryCeiling(
            precision=self.recipe.precision,
            batch_size=hard,
            safe_batch_size=safe,
            limit=limit,
            probes=tuple(self._reports),
            budget_bytes=self._fitting[-1].budget_bytes,
            verified=verified,
        )


def verifying_seconds(ceiling: MemoryCeiling) -> float:
    """Expected of verifying a predicted one, by the largest size that was run."""
    largest = max((probe for probe in ceiling.probes if probe.fits), key=lambda probe: probe.batch_size)
    return VERIFYING_PROBES * largest.seconds * ceiling.batch_size / largest.batch_size
