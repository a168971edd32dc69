"""Ratio of two means that were measured at different times, with its interval. Pure.

Unlike in one confirmation the two sides were not measured in turn, so neither knows the other's spread between runs:
Welch's interval, with his and Satterthwaite's degrees of freedom (Biometrika 34, 1947), on the log, because noise is
a share of the mean. It knows nothing of what a machine does from one day to the next. What is compared is throughput,
unless another objective is asked for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadtune.records import ComputePoint, Finalist, Measurement, Objective, Ratio
from loadtune.records.intervals import students_t
from loadtune.study.confirm import Spread, between_run_spread, rate_spread


@dataclass(frozen=True, slots=True)
class Runs:
    """Repeated runs of one configuration, and the spread between runs on that side."""

    mean: float
    num_runs: int
    spread: Spread | None
    """None: nothing on that side ran twice."""
    objective: Objective = "samples-per-s"
    """What they are compared by."""

    @property
    def half_width_fraction(self) -> float | None:
        """Of the 95% interval of the mean."""
        if self.spread is None:
            return None
        return students_t(self.spread.degrees_of_freedom) * self.spread.relative_sd / math.sqrt(self.num_runs)


def confirmed_runs(finalist: Finalist, finalists: Sequence[Finalist], objective: Objective = "samples-per-s") -> Runs:
    """Of a confirmation, whose spread is pooled over all its finalists."""
    spread = _spread([f.runs for f in finalists], objective)
    return Runs(finalist.scored(objective).value, len(finalist.runs), spread, objective)


def repeated_runs(runs: Sequence[Measurement], objective: Objective = "samples-per-s") -> Runs:
    """Of one configuration by itself, one run at the least."""
    by_speed = objective == "samples-per-s"
    mean = math.fsum(run.samples_per_s if by_speed else run.score(objective) for run in runs) / len(runs)
    return Runs(mean, len(runs), _spread([runs], objective), objective)


def _spread(runs: Sequence[Sequence[Measurement]], objective: Objective) -> Spread | None:
    return rate_spread(runs) if objective == "samples-per-s" else between_run_spread(runs, objective)


def ratio_of(before: Runs, after: Runs) -> Ratio:
    """After over before; without an interval where a side has no spread."""
    ratio = after.mean / before.mean
    if before.spread is None or after.spread is None:
        return Ratio(ratio=ratio)
    shares = [before.spread.relative_sd**2 / before.num_runs, after.spread.relative_sd**2 / after.num_runs]
    freedom = (before.spread.degrees_of_freedom, after.spread.degrees_of_freedom)
    doubt = math.fsum(share**2 / degrees for share, degrees in zip(shares, freedom, strict=True))
    if not doubt:  # identical runs, as only a fake makes them
        return _within(ratio, 0.0)
    variance = math.fsum(shares)
    return _within(ratio, students_t(max(1, int(variance**2 / doubt))) * math.sqrt(variance))


def compute_ratio(before: ComputePoint, after: ComputePoint) -> Ratio:
    """Of two compute-only rates, by the noise of their windows; each was timed once."""
    ratio = after.samples_per_s / before.samples_per_s
    if before.half_width_fraction is None or after.half_width_fraction is None:
        return Ratio(ratio=ratio)
    width = math.hypot(before.half_width_fraction, after.half_width_fraction)
    return _within(ratio, width) if width < 1 else Ratio(ratio=ratio)  # wider than the rate itself: nothing is known


def _within(ratio: float, half_width: float) -> Ratio:
    """The half width is of the ratio's log."""
    return Ratio(ratio=ratio, low=ratio * math.exp(-half_width), high=ratio * math.exp(half_width))
