"""The spread between runs of one configuration, by which their means are judged."""

import math
import statistics
from collections.abc import Sequence

from loadtune.records.intervals import largest_t
from loadtune.records.score import Objective
from loadtune.records.timing import Measurement


class Spread:
    """Spread between runs, relative to the mean, pooled over configurations."""

    def __init__(self, relative_sd: float, degrees_of_freedom: int) -> None:
        self.relative_sd, self.degrees_of_freedom = relative_sd, degrees_of_freedom

    def half_width(self, variance_share: float, num_means: int) -> float:
        """Half width of a 95% interval of a mean.

        `variance_share`: variance of the mean ÷ variance of one run, 1/n for n runs. `num_means`: how many
        configurations the mean was picked from; the interval is wider because the fastest of several was lucky, too.
        """
        return largest_t(num_means, self.degrees_of_freedom) * self.relative_sd * math.sqrt(variance_share)


def between_run_spread(runs: Sequence[Sequence[Measurement]], objective: Objective = "samples-per-s") -> Spread | None:
    """Pooled standard deviation of the log score between runs of one configuration. None: nothing ran twice.

    Pooled, because two or three runs of one configuration say little by themselves; on the log, because noise is a
    share of it.
    """
    return _pooled([[math.log(run.score(objective)) for run in own] for own in runs])


def rate_spread(runs: Sequence[Sequence[Measurement]]) -> Spread | None:
    """The same of samples/s while training goes on, without the start of workers. None: nothing ran twice."""
    return _pooled([[math.log(run.samples_per_s) for run in own] for own in runs])


def _pooled(logs: Sequence[Sequence[float]]) -> Spread | None:
    squares = math.fsum((value - statistics.fmean(own)) ** 2 for own in logs for value in own)
    degrees = sum(len(own) - 1 for own in logs)
    return Spread(math.sqrt(squares / degrees), degrees) if degrees > 0 else None
