"""Looks at data that grow: when, and what may be said at each. For rounds of a final, and blocks of a loop's steps.

Who looks after every figure and stops at the first difference finds one between equals in time. So the looks are
planned, each at about twice as many figures as the one before, and share one probability of error.
"""

import math
from collections.abc import Sequence

from loadtune.statistics.interval import Interval, Mean, around_ratio, mean_of_series, t

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
