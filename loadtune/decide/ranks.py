"""What the ranks of a job tell each other of their loading, and what follows from it. Pure: no clock, no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from loadtune.units import percent_text

_SLOWER, _WAITS, _HARDLY = 1.3, 0.1, 0.05
"""Seconds a batch ÷ the median of the others, from which on a rank is named; share of the time that a rank waits and is
named; and share that the others may wait, then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What one rank says of the loader that it waits for most."""

    rank: int
    cores: str
    """The machine and the cores on it that this rank may run on; ranks with the same share them."""
    num_cores: float
    cpu_s: float | None = None
    """CPU seconds that its workers spend on a batch. None: not measured."""
    load_s: float | None = None
    """Seconds in which one of its workers loads a batch, and of those queued for a core."""
    queued_s: float = 0.0
    waiting: float = 0.0
    """Share of the time in which it waits for data."""
    is_settled: bool = False
    """Whether it changes its workers no more."""
    num_switches: int = 0
    """Times that its workers were switched. More of them need more CPU time for a batch, so figures of before and
    after a switch are not compared."""
    num_told: int = 0
    """Words so far: one that does not grow is of a rank that is gone."""


def cores_of(own: Word, words: Sequence[Word], equal: float) -> float:
    """Cores for the workers of a rank that may use ``own.num_cores``, of which ``equal`` are its equal share.

    Each training process keeps a core. Ranks step together, so the others are divided by CPU seconds a batch. A rank
    that has told nothing needs what the others need in the mean.
    """
    num_ranks = max(1, round(own.num_cores / equal))
    left = max(own.num_cores - num_ranks, own.num_cores / 2)
    here = {each.rank: each for each in words if each.cores == own.cores} | {own.rank: own}
    needs = [each.cpu_s for each in here.values() if each.cpu_s is not None]
    if own.cpu_s is None or fmean(needs) <= 0:
        return left / num_ranks
    return left * own.cpu_s / (num_ranks * fmean(needs))


def differences(words: Sequence[Word]) -> dict[int, str]:
    """Ranks that load more slowly than the others, or wait while the others do not: for people."""
    found = dict[int, str]()
    for one in sorted(words, key=lambda each: each.rank):
        loads = [each.load_s for each in words if each.rank != one.rank and each.load_s is not None]
        waits = [each.waiting for each in words if each.rank != one.rank and each.is_settled]
        if one.load_s is not None and loads and one.load_s > _SLOWER * median(loads):
            queued = one.queued_s / one.load_s
            why = f", {percent_text(queued)} of that queued for a core" if queued > 0.1 else ""
            slower = percent_text(one.load_s / median(loads) - 1)
            batch = f"{1000 * one.load_s:.0f} ms a batch{why}"
            found[one.rank] = f"rank {one.rank} loads {slower} slower than the others: {batch}"
        elif one.is_settled and waits and one.waiting > _WAITS and median(waits) < _HARDLY:
            waited, others = percent_text(one.waiting), percent_text(median(waits))
            found[one.rank] = f"rank {one.rank} waits {waited} of its time for data, the others {others}"
    return found
