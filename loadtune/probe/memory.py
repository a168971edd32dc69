"""The memory probe: the largest batch that trains, found by real training steps, and the largest to train on for hours.

In: a bench, a recipe, and what else bounds the batch. Out: a `MemoryCeiling`. Pure over the bench: a line through the
allocated peaks of two sizes proposes, or, where the allocator's requests were recorded, a forecast that knows what
fragmentation takes; a run decides. Every size that a verified ceiling names was run. A bound is the first proposal.
"""

from collections.abc import Mapping
from dataclasses import replace

from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.probe.forecast import forecast_from
from loadtune.probe.proposals import LOW, SCARCE, next_hard, next_safe, predicted_ceilings, second_size
from loadtune.probe.tries import StepLimit, Tries
from loadtune.records.config import Recipe
from loadtune.records.measurement import TrialFailure
from loadtune.records.memory import CeilingLimit, FitReport, MemoryCeiling
from loadtune.seams import Bench

MAX_PROBES = 6
"""Of the search for both ceilings, from the first size that fits on. Four are the rule; one is kept for the safe."""

VERIFYING_PROBES = 3
"""That a bound is expected to need to be verified: the hard ceiling, the safe one, and one step back."""


class MemoryProbe:
    """The largest batch that trains `num_steps` steps under `recipe`, what limits it, and the largest that is safe.

    `caps` are the other bounds on the batch size, each at least `smallest`, below which the model refuses to train;
    `step_limit` is one on the time of a step: the size grows from what is affordable by the steps it shows.
    `line_limit` is one for the sizes of the line alone: what is larger is predicted, or run to verify it. The second of
    them is at least `large` where that is sure to fit.
    """

    def __init__(
        self,
        bench: Bench,
        recipe: Recipe,
        caps: Mapping[CeilingLimit, int],
        *,
        smallest: int = 1,
        num_steps: int = 3,
        step_limit: StepLimit | None = None,
        line_limit: StepLimit | None = None,
        large: int = 0,
    ) -> None:
        self._step_limit = step_limit
        self._limit, self._cap = min(caps.items(), key=lambda item: item[1])
        self._dataset_length = caps.get("dataset")
        self._tries = Tries(
            bench,
            recipe,
            num_steps,
            cap=self._cap,
            dataset_length=self._dataset_length,
            smallest=smallest,
            step_limit=line_limit or step_limit,
            large=large,
        )
        self._most = 0
        """Reports at which the search ends. 0: nothing was run."""

    def bound(self) -> MemoryCeiling:
        """Run the sizes of the line and predict both ceilings; verified where the runs themselves decide it.

        Raises NothingFitsError where not even the smallest size fits, WorkloadError where the step fails by itself.
        """
        self._run_line()
        predicted = predicted_ceilings(self._tries, num_left=self._num_left)
        if predicted is None:
            return self.verify()
        hard, safe = predicted
        limit = self._limit if hard == self._cap else _limit_of(self._tries)
        return replace(self._ceiling(hard, safe, limit), verified=False)

    def verify(self) -> MemoryCeiling:
        """Run sizes, after those that were run already, until both ceilings are among them. Raises as `bound` does."""
        tries = self._tries
        self._run_line()
        self._search_hard()
        slow = _too_slow(tries)
        safe = self._search_safe()
        hard = tries.standing[-1].batch_size
        limit = self._limit if hard == self._cap else "time" if slow else _limit_of(tries)
        notes = (left_over_note(self._dataset_length, size, tries.smallest) for size in (safe, hard))
        return replace(
            self._ceiling(hard, safe, limit),
            notes=tuple(dict.fromkeys(note for note in notes if note is not None)),
        )

    def _run_line(self) -> None:
        if self._most:
            return
        tries = self._tries
        _first(tries, max(tries.smallest, min(LOW, tries.cap // 4)))
        self._most = len(tries.reports) - 1 + MAX_PROBES
        _second(tries, self._most)
        tries.step_limit = self._step_limit

    @property
    def _num_left(self) -> int:
        """Runs that are left for the hard ceiling; one is kept for the safe one."""
        return self._most - 1 - len(self._tries.reports)

    def _search_hard(self) -> None:
        """Propose and run until the answer stands; sizes from here on are verified."""
        tries, scarce = self._tries, self._num_left <= SCARCE
        while self._num_left > 0 and (size := next_hard(tries, num_left=self._num_left, scarce=scarce)) is not None:
            _out_of_memory(tries.run(size, verify=True))

    def _search_safe(self) -> int:
        """Size of the largest comfortable probe; runs smaller ones until one is."""
        tries = self._tries
        while self._num_left >= 0 and (size := next_safe(tries, is_last=self._num_left == 0)) is not None:
            _out_of_memory(tries.run(size, verify=True))
        return tries.largest_comfortable or tries.standing[0].batch_size

    def _ceiling(self, hard: int, safe: int, limit: CeilingLimit) -> MemoryCeiling:
        tries = self._tries
        return MemoryCeiling(
            precision=tries.recipe.precision,
            batch_size=hard,
            safe_batch_size=safe,
            limit=limit,
            probes=tuple(tries.reports),
            bytes_per_sample=tries.line.slope if tries.line else None,
            fixed_bytes=tries.line.at_zero if tries.line else None,
            line_error_fraction=tries.line_error_fraction(LOW),
            budget_bytes=tries.standing[-1].budget_bytes,
        )


def verifying_seconds(ceiling: MemoryCeiling) -> float:
    """Expected of verifying it, by the largest size that was run; 0 where it is verified."""
    if ceiling.verified:
        return 0.0
    largest = max((probe for probe in ceiling.probes if probe.fits), key=lambda probe: probe.batch_size)
    return VERIFYING_PROBES * largest.seconds * ceiling.batch_size / largest.batch_size


def _too_slow(tries: Tries) -> bool:
    """Whether the time of a step kept from larger sizes, now that none was found worth a run: sooner than all else.

    Asked before the safe size is run: a step that was slow until now may be quicker then, and kept from them all the
    same.
    """
    quick = tries.quick_cap
    return quick is not None and all(quick < bound for bound in (tries.wall, tries.end) if bound is not None)


def _limit_of(tries: Tries) -> CeilingLimit:
    """What the smallest size that failed, failed for; memory where that is predicted to end."""
    wall = min((r for r in tries.reports if not r.fits), key=lambda r: r.batch_size, default=None)
    if wall is None or wall.failure is None or wall.failure.is_of_memory:
        return "memory"
    return "memory" if tries.end is not None and tries.end < wall.batch_size else "failure"


def left_over_note(dataset_length: int | None, batch_size: int, smallest: int) -> str | None:
    """What the last batch of an epoch would end in. None: it is full, or it trains, or nobody knows."""
    if dataset_length is None or not 0 < (left := dataset_length % batch_size) < smallest:
        return None
    return (
        f"Keep drop_last=True: with batch size {batch_size} the last batch of an epoch has {left} of the "
        f"{dataset_length:,} samples, and the model needs at least {smallest}, as batch normalization does."
    )


def _first(tries: Tries, size: int) -> None:
    """Run `size`, or a smaller one that fits. Raises where the smallest does not."""
    report = tries.run(size, trace=True)
    while _out_of_memory(report) and size > tries.smallest:
        size = max(tries.smallest, size // 2)
        report = tries.run(size, trace=True)
    if report.failure is not None and not report.failure.is_of_memory:
        raise _untrainable(report, report.failure)
    if report.failure is not None:
        raise NothingFitsError(
            f"Even the smallest batch does not train in {report.precision}: {report.failure.message.rstrip('.')}. "
            "Free memory, choose another device with --device, or use a smaller model or --image-size."
        )


def _second(tries: Tries, most: int) -> None:
    """Run sizes until memory has visibly grown: a line or a forecast needs it. The cap is the answer if it fits."""
    while len(tries.reports) < most - 3 and (size := second_size(tries)) is not None:
        at_cap = size == tries.cap
        fails = _out_of_memory(tries.run(size, trace=True, verify=at_cap))
        if fails and at_cap:  # its steps alone may fit, and a line through the first size and this one tells more
            fails = _out_of_memory(tries.run(size, trace=True))
        if fails:
            return
        tries.forecast = forecast_from(tries.traces, tries.fitting[-1])


def _out_of_memory(report: FitReport) -> bool:
    """Whether the size did not fit. Raises WorkloadError for a failure that no smaller batch would mend.

    A crash, a hang or a missing kernel may well be of this size alone: a smaller one is tried.
    """
    if report.failure is not None and report.failure.kind == "user_error":
        raise _untrainable(report, report.failure)
    return not report.fits


def _untrainable(report: FitReport, failure: TrialFailure) -> WorkloadError:
    said = failure.message.rstrip(".")
    advice = " Correct it, and run again." if failure.kind == "user_error" else ""
    return WorkloadError(
        f"A batch of {report.batch_size} cannot be trained in {report.precision}: {said}.{advice}",
        failure.log_tail or None,
    )
