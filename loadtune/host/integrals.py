"""Shares of a span → one figure of it: means, percentiles, peaks, totals. Pure, tested with numbers and no clock.

Everything weighs a value with the time it stands for, which stays right when a busy machine delays the sampler, and
that happens exactly when there is something to see. None: nothing is known.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from loadtune.host.tracks import Share

WELL_COVERED = 0.5
"""Of a span: less is too little to speak for the rest. A driver that tells its energy every half second covers 1.5
to 2 s of a trial of 2.4 s."""


def mean(shares: Sequence[Share]) -> float | None:
    """Over the time for which it is known."""
    known = [share for share in shares if share.value is not None]
    seconds = sum(share.seconds for share in known)
    if seconds > 0:
        return float(sum(share.value * share.seconds for share in known) / seconds)
    return float(known[0].value) if known else None  # a single reading at the very start: it is all there is


def means(shares: Sequence[Share]) -> tuple[float | None, ...]:
    """Of values that are tuples, position by position; where they are not of one length, over the time it is there."""
    each = [[share._replace(value=value) for value in share.value] for share in shares]
    columns = zip_longest(*each)
    return tuple(mean([share for share in column if share is not None]) for column in columns)


def percentile(shares: Sequence[Share], fraction: float) -> float | None:
    """The least value at or below which it stood for ``fraction`` of the time."""
    ranked = sorted((share for share in shares if share.seconds > 0), key=lambda share: float(share.value))
    wanted_s, passed_s = fraction * sum(share.seconds for share in ranked), 0.0
    for share in ranked:
        passed_s += share.seconds
        if passed_s >= wanted_s:
            return float(share.value)
    return float(ranked[-1].value) if ranked else None


def zero_fraction(shares: Sequence[Share]) -> float | None:
    """Share of the time at exactly 0."""
    return mean([share._replace(value=float(share.value == 0)) for share in shares])


def total(shares: Sequence[Share], seconds: float) -> float | None:
    """Of amounts that piled up over their stretches. What is not known of a span's ends counts like the rest.

    A stretch that begins before the span or ends after it says nothing of how its amount is spread: a GPU that waited
    for its first batch took less until the span began. It counts only where those within cover less than half.
    """
    known = [share for share in shares if share.seconds > 0]
    within = [share for share in known if share.seconds == share.whole_s]
    if sum(share.seconds for share in within) >= WELL_COVERED * seconds:
        known = within
    covered_s = sum(share.seconds for share in known)
    piled = sum(share.value * share.seconds / share.whole_s for share in known)
    return float(piled * seconds / covered_s) if covered_s > 0 else None


def peak(shares: Sequence[Share]) -> int | None:
    """The highest that was read within the span; where it was shorter than a look, what was read just after."""
    return max(_moments(shares), default=None)


def least(shares: Sequence[Share]) -> int | None:
    """The lowest, likewise."""
    return min(_moments(shares), default=None)


def peaks(shares: Sequence[Share]) -> tuple[int | None, ...]:
    """Of values that are tuples, position by position."""
    columns = zip_longest(*_moments(shares))
    return tuple(max((value for value in column if value is not None), default=None) for column in columns)


def _moments(shares: Sequence[Share]) -> list[Any]:
    return [share.value for share in shares if share.was_read_within] or [share.value for share in shares]
