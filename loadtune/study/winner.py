"""Who won, and by how much. Pure, over confirmed figures only."""

import math
from collections.abc import Sequence

from loadtune.records import Efficiency, Finalist, Objective, TrialConfig, Winner
from loadtune.study.confirm import between_run_spread, size

TIE = 0.98
"""Means within 2% of the best count as equal; the smallest of them wins."""


def pick_winner(
    finalists: Sequence[Finalist],
    yours: TrialConfig | None,
    *,
    batch_size: int | None = None,
    objective: Objective = "samples-per-s",
) -> Winner | None:
    """The smallest configuration among those within 2% of the best, beside the user's own. None: nothing ran.

    One of which a run failed wins only where that is true of all. `batch_size` leaves only its own to choose from; the
    spread between runs is that of all finalists.
    """
    eligible = [f for f in finalists if batch_size in (None, f.config.batch_size)]
    eligible = [f for f in eligible if not f.failures] or eligible
    if not eligible:
        return None
    top = max(f.score(objective) for f in eligible)
    best = min((f for f in eligible if f.score(objective) >= TIE * top), key=lambda f: size(f.config))
    own = next((f for f in finalists if f.config == yours), None)
    num_rivals = sum(f.config != yours for f in eligible)
    ratio, low, high = speedup(best, own, finalists, num_rivals)
    return Winner(
        config=best.config,
        samples_per_s=best.samples_per_s,
        half_width_fraction=best.half_width_fraction,
        speedup=ratio,
        speedup_low=low,
        speedup_high=high,
        efficiency=_efficiency(best, own, finalists, num_rivals) if objective == "samples-per-joule" else None,
    )


def _efficiency(best: Finalist, own: Finalist | None, finalists: Sequence[Finalist], num_rivals: int) -> Efficiency:
    """As throughput and speed-up, from the spread of samples per joule between runs."""
    gain, low, high = speedup(best, own, finalists, num_rivals, "samples-per-joule")
    return Efficiency(
        samples_per_joule=best.score("samples-per-joule"),
        half_width_fraction=best.efficiency_half_width_fraction,
        gain=gain,
        gain_low=low,
        gain_high=high,
    )


def speedup(
    best: Finalist,
    own: Finalist | None,
    finalists: Sequence[Finalist],
    num_rivals: int,
    objective: Objective = "samples-per-s",
) -> tuple[float | None, float | None, float | None]:
    """Ratio of the means with its 95% interval from the spread between runs.

    `num_rivals` of `own` there were to pick `best` from: the interval allows for the luck of the fastest of them.
    """
    if own is None:
        return None, None, None
    if best.config == own.config:
        return 1.0, 1.0, 1.0
    ratio = best.score(objective) / own.score(objective)
    spread = between_run_spread([f.runs for f in finalists], objective)
    if spread is None:
        return ratio, None, None
    width = spread.half_width(1 / len(best.runs) + 1 / len(own.runs), num_rivals)
    return ratio, ratio * math.exp(-width), ratio * math.exp(width)


def not_told_apart(
    winner: Winner, finalists: Sequence[Finalist], objective: Objective = "samples-per-s"
) -> tuple[Finalist, ...]:
    """Other finalists that may be as good as the winner: the interval of the ratio of the means holds 1.

    The winner was picked for scoring high, and a rival is called worse for scoring low: that is one of all pairs.
    """
    num_pairs = math.comb(len(finalists), 2)
    best = next(f for f in finalists if f.config == winner.config)
    rivals = []
    for rival in finalists:
        _, low, high = speedup(best, rival, finalists, num_pairs, objective)
        if rival is not best and low is not None and high is not None and low <= 1.0 <= high:
            rivals.append(rival)
    return tuple(rivals)
