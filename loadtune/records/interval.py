"""What may be said of a mean: values with their intervals, over plain numbers. No clock, nothing of loaders.

Every interval is two-sided and of 95% unless a probability is given.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure with its interval: a mean over runs, a prediction, or the ratio of two of them."""

    value: float
    low: float | None = None
    """None, here and below: too few runs to say."""
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    def holds(self, value: float) -> bool | None:
        """None: there is no interval."""
        return None if self.low is None or self.high is None else self.low <= value <= self.high


def around(value: float, half_width_fraction: float | None) -> Interval:
    """A mean and half of its interval as a share of it."""
    if half_width_fraction is None:
        return Interval(value=value)
    return Interval(value=value, low=value * (1 - half_width_fraction), high=value * (1 + half_width_fraction))


MERGEABLE = 6
"""Windows from which on neighbours are merged as well: three pairs are the fewest whose spread is worth a word. The
interval of fewer takes them for independent, which they need not be."""

ALLOWANCE = 2
"""For what a few windows cannot show of themselves, as a share of 1 ÷ their number. Its size is by simulation: of
runs of 0.3 s steps with a serial correlation of 0.5, the intervals of 93% hold the truth with 1, of 96% with 2."""


def half_width_fraction(samples: Sequence[float], seconds: Sequence[float]) -> float | None:
    """Half width of the interval of sum(samples) ÷ sum(seconds), as a share of it, from one pair of numbers a window.

    Batch means (Law & Kelton, Simulation Modeling and Analysis): the error of a window is the surplus of its samples
    over what the mean rate makes in its seconds. Windows that share their luck with their neighbours would make the
    interval too narrow: it is the wider of two, of single windows and of as many merged as the cube root of their
    number (Flegal & Jones 2010), and wider by `ALLOWANCE` ÷ their number. None: fewer than two windows, or no samples.
    """
    total = math.fsum(samples)
    if len(samples) < 2 or total <= 0:
        return None
    rate = total / math.fsum(seconds)
    surplus = [num - rate * s for num, s in zip(samples, seconds, strict=True)]
    sizes = (1, round(len(samples) ** (1 / 3))) if len(samples) >= MERGEABLE else (1,)
    return (1 + ALLOWANCE / len(samples)) * max(_half_width_of_sum(surplus, size) for size in sizes) / total


def _half_width_of_sum(surplus: Sequence[float], size: int) -> float:
    """Of the sum of all, from the spread of sums of `size` neighbours; the oldest that fill no batch give no spread."""
    oldest = len(surplus) % size
    sums = [math.fsum(surplus[at : at + size]) for at in range(oldest, len(surplus), size)]
    return students_t(len(sums) - 1) * statistics.stdev(sums) * math.sqrt(len(surplus) / size)


@cache
def quantile_of_t(degrees_of_freedom: int, probability: float) -> float:
    """Of Student's distribution."""
    from scipy.special import stdtrit  # not at import: 0.1 s that most readers of a record never need

    return float(stdtrit(degrees_of_freedom, probability))


@cache
def students_t(degrees_of_freedom: int) -> float:
    """Half the width of an interval of one mean, in standard errors."""
    return quantile_of_t(degrees_of_freedom, 0.975)


@cache
def largest_t(num_means: int, degrees_of_freedom: int) -> float:
    """The same where several means share one estimate of their spread, and the most extreme of them is looked at.

    The studentized maximum modulus: intervals this wide hold all truths at once in 95%, so they hold that of whichever
    mean was picked for being high. Exact for independent means; wider than needed for correlated ones (Šidák 1967),
    as differences from one common mean are. 1 mean: Student's t.
    """
    import numpy as np
    from scipy.special import chdtri, ndtr

    shares = (np.arange(_GRID) + 0.5) / _GRID
    spread = np.sqrt(chdtri(degrees_of_freedom, shares) / degrees_of_freedom)  # estimated ÷ true, equally likely each
    low, high = 0.0, students_t(degrees_of_freedom) * num_means
    while high - low > 1e-4:
        middle = (low + high) / 2
        held = float(np.mean((2 * ndtr(middle * spread) - 1) ** num_means))
        low, high = (middle, high) if held < 0.95 else (low, middle)
    return high


_GRID = 4000
"""Ten and a hundred times as many change the fourth decimal at most."""


class Spread(NamedTuple):
    """Between runs of one configuration, pooled over configurations."""

    relative_sd: float
    """Standard deviation, as a share of the mean."""
    degrees_of_freedom: int

    def half_width(self, num_runs: int, num_means: int) -> float:
        """Of the interval of a mean over so many runs, as a share of it.

        `num_means`: how many configurations the mean was picked from. The interval is wider because the fastest of
        several was lucky, too.
        """
        return largest_t(num_means, self.degrees_of_freedom) * self.relative_sd / math.sqrt(num_runs)


def spread_between(runs: Sequence[Sequence[float]]) -> Spread | None:
    """Of a figure of each run, by configuration. None: nothing ran twice.

    Pooled, because two or three runs of one configuration say little by themselves; on the log, because noise is a
    share of the figure.
    """
    logs = [[math.log(figure) for figure in own] for own in runs]
    squares = math.fsum((value - statistics.fmean(own)) ** 2 for own in logs for value in own)
    degrees = sum(len(own) - 1 for own in logs)
    return Spread(math.sqrt(squares / degrees), degrees) if degrees > 0 else None
