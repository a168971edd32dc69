"""What may be said of figures that vary: means, ratios and their intervals, and looks at data that grow. Over
plain numbers: no clock, nothing of loaders.

Every interval is two-sided and of 95% unless a probability is given.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from loadtune.units import number_text, ratio_text


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


def gain_text(gain: Interval, level: str = "", unknown: str = "no interval") -> str:
    """``1.27× (1.22–1.32)``; with the level of the interval ``1.27× (99% interval 1.22–1.32)``."""
    known = gain.low is not None and gain.high is not None
    interval = f"{level}{number_text(gain.low)}–{number_text(gain.high)}" if known else unknown
    return f"{ratio_text(gain.value)} ({interval})"


def around(value: float, half_width_fraction: float | None) -> Interval:
    """A mean and half of its interval as a share of it."""
    if half_width_fraction is None:
        return Interval(value=value)
    return Interval(value=value, low=value * (1 - half_width_fraction), high=value * (1 + half_width_fraction))


@cache
def t(degrees_of_freedom: int, error: float = 0.05, num_intervals: int = 1) -> float:
    """Half the width of an interval by Student's distribution, in standard errors.

    ``num_intervals``: that hold their truths all at once but for this error (Bonferroni's bound), so they hold that of
    whichever is looked at for being extreme. Wider than needed where they depend on each other.
    """
    error /= max(1, num_intervals)
    value = statistics.NormalDist().inv_cdf(1 - error / 2)  # below it, and from there Newton's steps never go beyond
    while (step := (_outside(value, degrees_of_freedom) - error) / _density(value, degrees_of_freedom)) > 1e-12 * value:
        value += step
    return value


def _outside(value: float, degrees: int) -> float:
    """Probability beyond ± this value: the finite series of Abramowitz & Stegun, 26.7.3 and 26.7.4. A training asks for
    it between two steps, and importing scipy would take it 0.1 s."""
    angle, is_odd = math.atan(value / math.sqrt(degrees)), degrees % 2
    cosine, total = math.cos(angle), 0.0
    term = cosine if is_odd else 1.0
    for number in range(2 + is_odd, degrees + 1, 2):
        total += term
        term *= cosine**2 * (number - 1) / number
    inside = math.sin(angle) * total
    return 1 - (2 / math.pi * (angle + inside) if is_odd else inside)


def _density(value: float, degrees: int) -> float:
    """Of the distance from 0."""
    log = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(math.pi * degrees) / 2
    return 2 * math.exp(log - (degrees + 1) / 2 * math.log1p(value**2 / degrees))


class Spread(NamedTuple):
    """Standard deviation of figures of one configuration, as a share of their mean, pooled over configurations."""

    sd: float
    degrees_of_freedom: int


def spread_between(figures: Sequence[Sequence[float]], *, in_rounds: bool = False) -> Spread | None:
    """By configuration. None: nothing was measured twice.

    Pooled, because two or three runs of one configuration say little by themselves; on the log, because noise is a
    share of the figure. ``in_rounds``: the n-th figure of each is of round n; what all share in it is taken off.
    """
    logs = [[math.log(figure) for figure in own] for own in figures]
    degrees = sum(len(own) - 1 for own in logs)
    if in_rounds:
        rounds = [statistics.fmean(each) for each in zip(*logs, strict=True)]
        logs = [[log - shared for log, shared in zip(own, rounds, strict=True)] for own in logs]
        degrees -= max(0, len(rounds) - 1)
    squares = math.fsum((log - statistics.fmean(own)) ** 2 for own in logs for log in own)
    return Spread(math.sqrt(squares / degrees), degrees) if degrees > 0 else None


class Mean(NamedTuple):
    """Of repeated figures of one configuration."""

    value: float
    sd: float | None = None
    """Standard error, as a share of the mean, from the spread between figures. None: nothing was measured twice."""
    degrees_of_freedom: int = 1

    @property
    def half_width_fraction(self) -> float | None:
        """Of its interval, as a share."""
        return None if self.sd is None else t(self.degrees_of_freedom) * self.sd


MERGEABLE = 6
"""Windows from which on neighbours are merged as well: three pairs are the fewest whose spread is worth a word. The
interval of fewer takes them for independent, which they need not be."""

ALLOWANCE = 2
"""For what a few windows cannot show of themselves, as a share of 1 ÷ their number. Its size is by simulation: of
runs of 0.3 s steps with a serial correlation of 0.5, the intervals of 93% hold the truth with 1, of 96% with 2."""


def mean_of_series(samples: Sequence[float], seconds: Sequence[float]) -> Mean | None:
    """sum(samples) ÷ sum(seconds), from a pair of numbers for each of a series of windows. None: no samples.

    Batch means (Law & Kelton, Simulation Modeling and Analysis): the error of a window is the surplus of its samples
    over what the mean rate makes in its seconds. Windows that share their luck with their neighbours would make the
    interval too narrow: it is the wider of two, of single windows and of as many merged as the cube root of their
    number (Flegal & Jones 2010), and wider by `ALLOWANCE` ÷ their number.
    """
    total, num = math.fsum(samples), len(samples)
    if total <= 0:
        return None
    rate = total / math.fsum(seconds)
    if num < 2:
        return Mean(rate)
    surplus = [own - rate * s for own, s in zip(samples, seconds, strict=True)]
    means = list[Mean]()
    for size in {1, round(num ** (1 / 3)) if num >= MERGEABLE else 1}:
        # The oldest that fill no batch give no spread.
        sums = [math.fsum(surplus[at : at + size]) for at in range(num % size, num, size)]
        sd = (1 + ALLOWANCE / num) * statistics.stdev(sums) * math.sqrt(num / size) / total
        means.append(Mean(rate, sd, len(sums) - 1))
    return max(means, key=lambda mean: mean.half_width_fraction or 0.0)


def around_ratio(value: float, half_width: float) -> Interval:
    """``half_width``: of the interval of its logarithm."""
    factor = math.exp(min(500.0, half_width))  # a float holds e to the 700th
    return Interval(value=value, low=value / factor, high=value * factor)


# Looks at data that grow, for rounds of a final and blocks of a loop's steps. Who looks after every figure and stops at
# the first difference finds one between equals in time. So the looks are planned, each at about twice as many figures
# as the one before, and share one probability of error.

ERROR = 0.05
"""Probability of calling equal settings different while steps are watched, over all looks and both directions."""

LOOKS = (4, 8, 16)
"""Blocks of steps at which they are looked at. The last is the end: with one more, at 32, 4.2% of equal ones are called
different instead of 2.1%. A machine drifts meanwhile (benchmarks/results/2026-11-27-looks.md, as the figures below)."""

BLOCK_S = 0.25
"""Seconds that a block lasts at least. A gain of 1.1 is told in 38% of runs with 0.05, in 56% with this. With 0.5
the first look comes after two seconds, and with 8 blocks before the change 6.9% of equal ones were called different."""

DRIFT = 0.015
"""By how much the pace of a machine differs between two phases of a few seconds, beyond what their blocks show: a
standard deviation, as a share. Without it 6.1% of runs of a steady loop were called different, with it none."""


def ratio(old: Sequence[float], new: Sequence[float], *, num_looks: int = len(LOOKS)) -> Interval:
    """Mean of `new` ÷ mean of `old`, seconds of blocks, with the interval of one look. No limits: one side has one.

    Neither side knows the other's spread: Welch's interval, with his and Satterthwaite's degrees of freedom (Biometrika
    34, 1947), on the log, because noise is a share of the mean.
    """
    before, after = (mean_of_series(seconds, [1.0] * len(seconds)) or Mean(0.0) for seconds in (old, new))
    value = after.value / before.value
    if before.sd is None or after.sd is None:
        return Interval(value=value)
    sd = math.hypot(before.sd, after.sd, DRIFT)
    doubt = before.sd**4 / before.degrees_of_freedom + after.sd**4 / after.degrees_of_freedom
    degrees = max(1, int(sd**4 / doubt)) if doubt else 1  # identical figures, as only a fake makes them
    return around_ratio(value, t(degrees, ERROR / num_looks) * sd)


def bracket(*ratios: Interval) -> Interval:
    """Of one phase to each of those before and after it, whose pace may have changed at any moment between.

    The truth lies between the true ratios, so somewhere in the span of all intervals. The value is their geometric
    mean. None as a limit: one of them has none.
    """
    lows = [each.low for each in ratios if each.low is not None]
    highs = [each.high for each in ratios if each.high is not None]
    return Interval(
        value=math.prod(each.value for each in ratios) ** (1 / len(ratios)),
        low=min(lows) if len(lows) == len(ratios) else None,
        high=max(highs) if len(highs) == len(ratios) else None,
    )
