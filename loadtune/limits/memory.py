"""The memory probe: the largest batch that trains, found by real training steps, and the largest to train on for hours.

In: a training, a recipe, and what else bounds the batch. Out: a `MemoryCeiling`. Two sizes are run. A line through
their
allocated peaks proposes the ceiling, or a forecast that knows what fragmentation takes, where the allocator's requests
were recorded. A run decides; where it fails, one step back is run. Every size that a verified ceiling names was run.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.limits.forecast import Forecast, Outcome
from loadtune.limits.runs import ROOM, Runs
from loadtune.limits.step_limit import StepLimit
from loadtune.records.config import Recipe
from loadtune.records.measurement import TrialFailure
from loadtune.records.memory import CeilingLimit, FitReport, MemoryCeiling
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


class MemoryProbe:
    """The largest batch that trains `num_steps` steps under `recipe`, what limits it, and the largest that is safe.

    `caps` are the other bounds on the batch size, each at least `smallest`, below which the model refuses to train.
    `step_limit` is one on the time of a step: the size grows from what is affordable by the steps it shows.
    `line_limit` is one for the sizes of the line alone: what is larger is predicted, or run to verify it. The second of
    them is at least `large` where that is sure to fit.
    """

    def __init__(
        self,
        training: Training,
        recipe: Recipe,
        caps: Mapping[CeilingLimit, int],
        *,
        smallest: int = 1,
        num_steps: int = 3,
        step_limit: StepLimit | None = None,
        line_limit: StepLimit | None = None,
        large: int = 0,
    ) -> None:
        self._step_limit, self._large = step_limit, large
        self._limit, self._cap = min(caps.items(), key=lambda item: item[1])
        self._dataset_length = caps.get("dataset")
        self._runs = Runs(
            training,
            recipe,
            num_steps,
            smallest=smallest,
            cap=self._cap,
            dataset_length=self._dataset_length,
            step_limit=line_limit or step_limit,
        )
        self._num_before = 0
        """Sizes that were run before the first that fits."""

    def bound(self) -> MemoryCeiling:
        """Run the sizes of the line and predict both ceilings; verified where the runs themselves decide it.

        That is so where the largest size that was run stands already, and where memory does not grow with the batch.
        It is so, too, where the time of a step is the limit: that one is known by steps that were timed.
        Raises NothingFitsError where not even the smallest size fits, WorkloadError where the step fails by itself.
        """
        self._run_line()
        runs, hard = self._runs, self._next_hard()
        if hard is None or runs.end is None or hard == runs.quick_cap:
            return self.verify()
        limit = self._limit if hard == self._cap else self._failed_limit()
        return replace(self._ceiling(hard, max(runs.smallest, self._safe_below(hard)), limit), verified=False)

    def verify(self) -> MemoryCeiling:
        """Run sizes, after those that were run already, until both ceilings are among them. Raises as `bound` does."""
        self._run_line()
        runs = self._runs
        while self._num_left > 1 and (size := self._next_hard()) is not None:
            _out_of_memory(runs.run(size, verify=True))
        too_slow = self._is_too_slow()
        while self._num_left > 0 and (size := self._next_safe()) is not None:
            _out_of_memory(runs.run(size, verify=True))
        safe, hard = runs.largest_comfortable or runs.standing[0].batch_size, runs.standing[-1].batch_size
        limit = self._limit if hard == self._cap else "time" if too_slow else self._failed_limit()
        notes = (left_over_note(self._dataset_length, size, runs.smallest) for size in (safe, hard))
        return replace(self._ceiling(hard, safe, limit), notes=tuple(dict.fromkeys(filter(None, notes))))

    @property
    def _num_left(self) -> int:
        return self._num_before + MAX_PROBES - len(self._runs.reports)

    def _run_line(self) -> None:
        """Run sizes until memory has visibly grown: a line or a forecast needs it. The cap is the answer if it fits."""
        runs = self._runs
        if runs.reports:
            return
        _run_first(runs, max(runs.smallest, min(LOW, runs.cap // 4)))
        self._num_before = len(runs.reports) - 1
        while self._num_left > MAX_PROBES - MAX_LINE and (size := self._next_of_line()) is not None:
            at_cap = size == runs.cap
            fails = _out_of_memory(runs.run(size, trace=True, verify=at_cap))
            if fails and at_cap:  # its steps alone may fit, and a line through the first size and this one tells more
                fails = _out_of_memory(runs.run(size, trace=True))
            if fails:
                break
        runs.step_limit = self._step_limit

    def _next_of_line(self) -> int | None:
        """Another size for the line: far enough from the first, never one that the first says cannot fit."""
        runs, base = self._runs, self._runs.largest
        if runs.wall is None and (size := min(runs.cap, self._farther())) > base:
            return size
        smaller = max(runs.smallest, base // 2)  # where no larger size is sure to fit the second point lies below
        return smaller if len(runs.fitting) == 1 and smaller < base < runs.cap else None

    def _farther(self) -> int:
        """A larger size from which the line is known; 0: it is known."""
        runs, base, is_first = self._runs, self._runs.fitting[-1], len(self._runs.fitting) == 1
        times, budget, peak = base.batch_size * TIMES, base.budget_bytes, base.peak_bytes
        if not peak or budget is None:  # the platform does not tell a process's own memory
            return times if is_first else 0
        if is_first:
            fits = base.batch_size * budget / peak
            size = int(min(max(times, THIRD * fits, self._large), SURE * fits))
            return max(size, min(base.batch_size + 1, int(fits)))
        if peak - (runs.fitting[0].peak_bytes or 0) >= VISIBLE * budget or runs.forecast is not None:
            return 0
        if runs.line is None:
            return times
        return base.batch_size + int(min(THIRD * budget, SURE * (budget - peak)) / runs.line.slope)

    def _next_hard(self) -> int | None:
        """The next size worth running for the hard ceiling. None: it stands."""
        runs, base, wall = self._runs, self._runs.largest, self._runs.wall
        if base >= runs.cap or base + 1 == wall:
            return None
        if runs.end is None:
            return min(runs.cap, 2 * base) if wall is None else (wall + base) // 2
        size = min(runs.cap, self._lean(runs.end))
        if wall is not None:
            num_failed = sum(not report.fits for report in runs.reports)  # twice as far back after each failure
            size = min(size, int(wall * (1 - (1 - STEP_BACK) * 2 ** (num_failed - 1))))
        return size if size > base * WORTH or size == runs.cap else None

    def _lean(self, end: int) -> int:
        """A size somewhat below the predicted end: as predictions go, a size that fits."""
        size = min(end, int(end * LEAN + 0.5))
        if self._runs.forecast is None:
            return size
        least = max(self._runs.largest, int(LEAST * size))
        return _first_below(self._runs.forecast, size, least, lambda outcome: True) or least

    def _next_safe(self) -> int | None:
        """The next size worth running for the safe ceiling. None: a comfortable one was run, or none is left to try."""
        runs = self._runs
        size = self._safe_below(runs.largest)
        if self._num_left == 1:
            size = min(size, runs.with_share(runs.largest, LEAST))
        size = max(runs.smallest, size)
        return None if size in runs.verified or (runs.largest_comfortable or 0) >= size else size

    def _safe_below(self, hard: int) -> int:
        """The largest size that leaves room, and at which no steady step is predicted to retry, where `hard` fits."""
        runs = self._runs
        top = hard if runs.has_room(hard) else runs.with_share(hard, ROOM)
        uneasy = [r.batch_size for r in runs.reports if r.num_steady_retries or not r.fits]
        if uneasy and min(uneasy) <= top:
            top = runs.with_share(min(uneasy), ROOM)
        if runs.forecast is None:
            return top
        return _first_below(runs.forecast, top, LEAST * top, lambda outcome: not outcome.num_steady_retries) or top

    def _is_too_slow(self) -> bool:
        """Whether the time of a step kept from larger sizes, sooner than all else.

        Asked before the safe size is run: a step that was slow until now may be quicker then, and kept from them all
        the same.
        """
        runs, quick = self._runs, self._runs.quick_cap
        return quick is not None and all(quick < bound for bound in (runs.wall, runs.end) if bound is not None)

    def _failed_limit(self) -> CeilingLimit:
        """What the smallest size that failed, failed for; memory where that is predicted to end."""
        runs = self._runs
        wall = min((r for r in runs.reports if not r.fits), key=lambda r: r.batch_size, default=None)
        if wall is None or wall.failure is None or wall.failure.is_of_memory:
            return "memory"
        return "memory" if runs.end is not None and runs.end < wall.batch_size else "failure"

    def _ceiling(self, hard: int, safe: int, limit: CeilingLimit) -> MemoryCeiling:
        runs = self._runs
        return MemoryCeiling(
            precision=runs.recipe.precision,
            batch_size=hard,
            safe_batch_size=safe,
            limit=limit,
            probes=tuple(runs.reports),
            bytes_per_sample=runs.line.slope if runs.line else None,
            fixed_bytes=runs.line.at_zero if runs.line else None,
            budget_bytes=runs.standing[-1].budget_bytes,
        )


def verifying_seconds(ceiling: MemoryCeiling) -> float:
    """Expected of verifying it, by the largest size that was run; 0 where it is verified."""
    if ceiling.verified:
        return 0.0
    largest = max((probe for probe in ceiling.probes if probe.fits), key=lambda probe: probe.batch_size)
    return VERIFYING_PROBES * largest.seconds * ceiling.batch_size / largest.batch_size


def left_over_note(dataset_length: int | None, batch_size: int, smallest: int) -> str | None:
    """What the last batch of an epoch would end in. None: it is full, or it trains, or nobody knows."""
    if dataset_length is None or not 0 < (left := dataset_length % batch_size) < smallest:
        return None
    return (
        f"Keep drop_last=True: with batch size {batch_size} the last batch of an epoch has {left} of the "
        f"{dataset_length:,} samples, and the model needs at least {smallest}, as batch normalization does."
    )


def _run_first(runs: Runs, size: int) -> None:
    """Run `size`, or a smaller one that fits. Raises where the smallest does not."""
    report = runs.run(size, trace=True)
    while _out_of_memory(report) and size > runs.smallest:
        size = max(runs.smallest, size // 2)
        report = runs.run(size, trace=True)
    if report.failure is not None and not report.failure.is_of_memory:
        raise _untrainable(report, report.failure)
    if report.failure is not None:
        raise NothingFitsError(
            f"Even the smallest batch does not train in {report.precision}: {report.failure.message.rstrip('.')}. "
            "Free memory, choose another device with --device, or use a smaller model or --image-size."
        )


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
