"""The memory probe: the largest batch that trains, found by real training steps, and the largest to train on for hours.

In: a training, a recipe, and what else bounds the batch. Out: a `MemoryCeiling`. Two sizes are run. A line through
their allocated peaks proposes the ceiling, or a forecast that knows what fragmentation takes, where the allocator's
requests were recorded. A run decides; where it fails, one step back is run. Every size that a verified ceiling names
was run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.limits.bounds import largest_within
from loadtune.limits.forecast import Forecast, Outcome, forecast_from
from loadtune.limits.recipe import STEP_S
from loadtune.records.config import Recipe
from loadtune.records.measurement import TrialFailure
from loadtune.records.memory import AllocationTrace, BatchTry, CeilingLimit, FitReport, MemoryCeiling
from loadtune.seams import Training

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

SURE = 0.95
"""Of the size that is sure to fit, as n times the batch takes at most n times the memory."""

LEAN, STEP_BACK = 0.98, 0.97
"""Of the size a line or a forecast ends at, and of a size that failed. On an H200 the ends of ten models were 0.98 to
1.01 of the truth."""

WORTH = 1.005
"""By how much a larger size has to be larger to be worth a run."""

LEAST = 0.8
"""Of a size, down to which a forecast is asked for one that suits better. Of the memory at the hard ceiling, where only
one more run is left to find a safe size."""

ROOM = 0.95
"""Of the memory at the hard ceiling, at most, for a size to be used for hours. The 5% are for what a few steps do not
show: other libraries' buffers, an evaluation with other sizes, fragmentation that grows."""


@dataclass(frozen=True, slots=True)
class Line:
    """Allocated peak over batch size, in bytes."""

    slope: float
    at_zero: float

    def bytes_at(self, batch_size: int) -> float:
        return self.at_zero + self.slope * batch_size

    def size_at(self, num_bytes: float) -> float:
        return (num_bytes - self.at_zero) / self.slope


class MemoryProbe:
    """The largest batch that trains `num_steps` steps under `recipe`, what limits it, and the largest that is safe.

    `caps` are the other bounds on the batch size, each at least `smallest`, below which the model refuses to train.
    `step_s` holds seconds of a step by batch size, timed before. With it the sizes of the line take about `STEP_S` a
    step at the most; what is larger is predicted, or run to verify it. The second of the line's sizes is at least
    `large` where that is sure to fit.
    """

    def __init__(
        self,
        training: Training,
        recipe: Recipe,
        caps: Mapping[CeilingLimit, int],
        *,
        smallest: int = 1,
        num_steps: int = 3,
        step_s: Mapping[int, float] | None = None,
        large: int = 0,
    ) -> None:
        self._training, self._recipe, self._num_steps = training, recipe, num_steps
        self._smallest, self._large, self._step_s = smallest, large, step_s
        self._limit, self._cap = min(caps.items(), key=lambda item: item[1])
        self._dataset_length = caps.get("dataset", 0)
        self._reports: list[FitReport] = []
        self._verified: set[int] = set()
        """Sizes that were run with all that an epoch brings, however that ended."""
        self._traces: list[AllocationTrace] = []
        self._forecast: Forecast | None = None
        """Once two sizes recorded what they asked of the allocator."""
        self._end: int | None = None
        """Largest size that the forecast, or else the line, says fits. None: nothing to go by."""

    def bound(self) -> MemoryCeiling:
        """Run the sizes of the line and predict both ceilings; verified where the runs themselves decide it.

        That is so where the largest size that was run stands already, and where memory does not grow with the batch.
        Raises NothingFitsError where not even the smallest size fits, WorkloadError where the step fails by itself.
        """
        self._run_line()
        hard = self._next_hard()
        if hard is None or self._end is None:
            return self.verify()
        return self._ceiling(hard, max(self._smallest, self._safe_below(hard)), verified=False)

    def verify(self) -> MemoryCeiling:
        """Run sizes, after those that were run already, until both ceilings are among them. Raises as `bound` does."""
        self._run_line()
        while self._num_left > 1 and (size := self._next_hard()) is not None:
            _out_of_memory(self._run(size, verify=True))
        while self._num_left > 0 and (size := self._next_safe()) is not None:
            _out_of_memory(self._run(size, verify=True))
        return self._ceiling(self._standing[-1].batch_size, self._largest_comfortable or self._standing[0].batch_size)

    def _run(self, batch_size: int, *, trace: bool = False, verify: bool = False) -> FitReport:
        """Try this size; verified with the dataset's last partial batch, where there is one that trains."""
        left = self._dataset_length % batch_size
        trains = verify and left >= self._smallest and batch_size < self._dataset_length
        report = self._training.try_batch(
            BatchTry(
                recipe=self._recipe,
                batch_size=batch_size,
                num_steps=self._num_steps,
                trace=trace,
                verify=verify,
                partial_batch_size=left if trains else None,
            )
        )
        self._reports.append(replace(report, allocations=None))
        if verify:
            self._verified.add(batch_size)
        if report.allocations is not None and report.fits:
            self._traces.append(report.allocations)
            self._forecast = forecast_from(self._traces, self._fitting[-1])
        self._end = self._predicted_end()
        return report

    def _predicted_end(self) -> int | None:
        budget, line = self._fitting[-1].budget_bytes if self._fitting else None, self._line
        if line is None or budget is None:
            return None
        by_line = int(line.size_at(budget))
        if self._forecast is None or by_line <= self._largest:
            return max(by_line, self._largest)
        return self._forecast.largest(self._largest, int(by_line * 1.05))

    # What the runs say together.

    @property
    def _num_left(self) -> int:
        """Sizes that may still be run, once one fits."""
        first = next((at for at, report in enumerate(self._reports) if report.fits), 0)
        return MAX_PROBES - (len(self._reports) - first)

    @property
    def _fitting(self) -> list[FitReport]:
        return sorted((report for report in self._reports if report.fits), key=lambda report: report.batch_size)

    @property
    def _largest(self) -> int:
        return self._fitting[-1].batch_size

    @property
    def _standing(self) -> list[FitReport]:
        """Those of `_fitting` that did not fail when they were verified; all of them where each did."""
        failed = {report.batch_size for report in self._reports if not report.fits}
        return [report for report in self._fitting if report.batch_size not in failed] or self._fitting

    @property
    def _wall(self) -> FitReport | None:
        """Smallest size that did not fit."""
        failed = (report for report in self._reports if not report.fits)
        return min(failed, key=lambda report: report.batch_size, default=None)

    @property
    def _line(self) -> Line | None:
        """Through the smallest and the largest that fit. None: fewer fit, or memory does not grow with the batch."""
        known = [(report.batch_size, report.peak_bytes) for report in self._fitting if report.peak_bytes is not None]
        if not known or known[0][0] == known[-1][0]:
            return None
        (x0, y0), (x1, y1) = known[0], known[-1]
        slope = (y1 - y0) / (x1 - x0)
        return Line(slope, y1 - slope * x1) if slope > 0 else None

    @property
    def _largest_comfortable(self) -> int | None:
        """Largest verified size with room above it and no allocator retries in a steady step. None: none yet."""
        sizes = (r.batch_size for r in self._fitting if r.batch_size in self._verified and not r.num_steady_retries)
        return max((size for size in sizes if self._has_room(size)), default=None)

    def _has_room(self, batch_size: int) -> bool:
        """Whether a size larger by the safety margin would still fit: one did, or the forecast or the line says so."""
        larger = self._with_share(batch_size, 1 / ROOM)
        if self._wall is not None and larger >= self._wall.batch_size:
            return False
        if larger <= self._largest:
            return True
        if self._forecast is not None:
            return self._forecast.outcome(larger) is not None
        budget, peak = self._fitting[-1].budget_bytes, self._fitting[-1].peak_bytes
        if budget is None or peak is None:
            return True
        return (peak / ROOM if self._line is None else self._line.bytes_at(larger)) <= budget

    def _with_share(self, batch_size: int, share: float) -> int:
        """The size that takes `share` of the memory that `batch_size` takes.

        Where most of that is the model's own, or a CPU process's, the batch gives way by three times the difference.
        """
        if self._line is None:
            return int(batch_size * share)
        give_way = batch_size * 3 * abs(1 - share)
        size = self._line.size_at(share * self._line.bytes_at(batch_size))
        return int(min(max(size, batch_size - give_way), batch_size + give_way))

    # The sizes of the line.

    def _quick_cap(self) -> int:
        """The largest size that the line may have: the time of its step is a bound there, too."""
        if self._step_s is None:
            return self._cap
        timed = {**self._step_s, **{report.batch_size: report.step_s for report in self._fitting if report.step_s}}
        quick = max(2 * self._smallest, largest_within(STEP_S, timed)) if timed else self._cap
        return min(self._cap, quick)

    def _run_line(self) -> None:
        """Run sizes until memory has visibly grown: a line or a forecast needs it. The cap is the answer if it fits."""
        if self._reports:
            return
        self._run_first(max(self._smallest, min(LOW, self._quick_cap() // 4)))
        while self._num_left > MAX_PROBES - MAX_LINE and (size := self._next_of_line()) is not None:
            at_cap = size == self._cap
            fails = _out_of_memory(self._run(size, trace=True, verify=at_cap))
            if fails and at_cap:  # its steps alone may fit, and a line through the first size and this one tells more
                fails = _out_of_memory(self._run(size, trace=True))
            if fails:
                break

    def _run_first(self, size: int) -> None:
        """Run `size`, or a smaller one that fits. Raises where the smallest does not."""
        report = self._run(size, trace=True)
        while _out_of_memory(report) and size > self._smallest:
            size = max(self._smallest, size // 2)
            report = self._run(size, trace=True)
        if report.failure is not None and not report.failure.is_of_memory:
            raise _untrainable(report, report.failure)
        if report.failure is not None:
            raise NothingFitsError(
                f"Even the smallest batch does not train in {report.precision}: {report.failure.message.rstrip('.')}. "
                "Free memory, choose another device with --device, or use a smaller model or --image-size."
            )

    def _next_of_line(self) -> int | None:
        """Another size for the line: far enough from the first, never one that the first says cannot fit."""
        base, cap = self._largest, self._quick_cap()
        if self._wall is None and (size := min(cap, self._farther())) > base:
            return size
        smaller = max(self._smallest, base // 2)  # where no larger size is sure to fit the second point lies below
        return smaller if len(self._fitting) == 1 and smaller < base < cap else None

    def _farther(self) -> int:
        """A larger size from which the line is known; 0: it is known."""
        base, is_first = self._fitting[-1], len(self._fitting) == 1
        times, budget, peak = base.batch_size * TIMES, base.budget_bytes, base.peak_bytes
        if not peak or budget is None:  # the platform does not tell a process's own memory
            return times if is_first else 0
        if is_first:
            fits = base.batch_size * budget / peak
            size = int(min(max(times, THIRD * fits, self._large), SURE * fits))
            return max(size, min(base.batch_size + 1, int(fits)))
        if peak - (self._fitting[0].peak_bytes or 0) >= VISIBLE * budget or self._forecast is not None:
            return 0
        if self._line is None:
            return times
        return base.batch_size + int(min(THIRD * budget, SURE * (budget - peak)) / self._line.slope)

    # The two ceilings.

    def _next_hard(self) -> int | None:
        """The next size worth running for the hard ceiling. None: it stands."""
        base, wall = self._largest, None if self._wall is None else self._wall.batch_size
        if base >= self._cap or base + 1 == wall:
            return None
        if self._end is None:
            return min(self._cap, 2 * base) if wall is None else (wall + base) // 2
        size = min(self._cap, self._lean(self._end))
        if wall is not None:
            num_failed = sum(not report.fits for report in self._reports)  # twice as far back after each failure
            size = min(size, int(wall * (1 - (1 - STEP_BACK) * 2 ** (num_failed - 1))))
        return size if size > base * WORTH or size == self._cap else None

    def _lean(self, end: int) -> int:
        """A size somewhat below the predicted end: as predictions go, a size that fits."""
        size = min(end, int(end * LEAN + 0.5))
        if self._forecast is None:
            return size
        least = max(self._largest, int(LEAST * size))
        return _first_below(self._forecast, size, least, lambda outcome: True) or least

    def _next_safe(self) -> int | None:
        """The next size worth running for the safe ceiling. None: a comfortable one was run, or none is left to try."""
        size = self._safe_below(self._largest)
        if self._num_left == 1:
            size = min(size, self._with_share(self._largest, LEAST))
        size = max(self._smallest, size)
        return None if size in self._verified or (self._largest_comfortable or 0) >= size else size

    def _safe_below(self, hard: int) -> int:
        """The largest size that leaves room, and at which no steady step is predicted to retry, where `hard` fits."""
        top = hard if self._has_room(hard) else self._with_share(hard, ROOM)
        uneasy = [report.batch_size for report in self._reports if report.num_steady_retries or not report.fits]
        if uneasy and min(uneasy) <= top:
            top = self._with_share(min(uneasy), ROOM)
        if self._forecast is None:
            return top
        return _first_below(self._forecast, top, LEAST * top, lambda outcome: not outcome.num_steady_retries) or top

    def _ceiling(self, hard: int, safe: int, *, verified: bool = True) -> MemoryCeiling:
        wall, line = self._wall, self._line
        limit = self._limit if hard == self._cap else "memory"
        if limit == "memory" and wall is not None and wall.failure is not None and not wall.failure.is_of_memory:
            limit = "memory" if self._end is not None and self._end < wall.batch_size else "failure"
        return MemoryCeiling(
            precision=self._recipe.precision,
            batch_size=hard,
            safe_batch_size=safe,
            limit=limit,
            probes=tuple(self._reports),
            bytes_per_sample=None if line is None else line.slope,
            fixed_bytes=None if line is None else line.at_zero,
            budget_bytes=self._standing[-1].budget_bytes,
            verified=verified,
        )


def verifying_seconds(ceiling: MemoryCeiling) -> float:
    """Expected of verifying it, by the largest size that was run; 0 where it is verified."""
    if ceiling.verified:
        return 0.0
    largest = max((probe for probe in ceiling.probes if probe.fits), key=lambda probe: probe.batch_size)
    return VERIFYING_PROBES * largest.seconds * ceiling.batch_size / largest.batch_size


def _out_of_memory(report: FitReport) -> bool:
    """Whether the size did not fit. Raises WorkloadError for a failure that no smaller batch would mend.

    A crash, a hang or a missing kernel may well be of this size alone: a smaller one is tried.
    """
    if report.failure is not None and report.failure.kind == "user_error":
        raise _untrainable(report, report.failure)
    return not report.fits


def _untrainable(report: FitReport, failure: TrialFailure) -> WorkloadError:
    advice = " Correct it, and run again." if failure.kind == "user_error" else ""
    return WorkloadError(
        f"A batch of {report.batch_size} cannot be trained in {report.precision}: "
        f"{failure.message.rstrip('.')}.{advice}",
        failure.log_tail or None,
    )


def _first_below(forecast: Forecast, top: int, least: float, suits: Callable[[Outcome], bool]) -> int | None:
    """The largest size, in steps of half a percent, that is predicted to fit and to suit. None: none above `least`.

    Its neighbours are asked as well: memory is not monotonic, and one sample more or less decides which cached block a
    request falls into.
    """
    size = top
    while size > least:
        near = (forecast.outcome(int(size * factor)) for factor in (1.0, 0.99, 0.995, 1.005, 1.01))
        if all(outcome is not None and suits(outcome) for outcome in near):
            return size
        size = int(size * 0.995)
    return None
