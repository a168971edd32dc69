"""Who won, and by how much. Pure, over confirmed figures only."""

import math
from collections.abc import Sequence

from loadtune.final.statistics import difference
from loadtune.records import Efficiency, Finalist, Objective, TrialConfig, Winner
from loadtune.records.confirmed import may_be_kept
from loadtune.search.search import MIN_RUNS
from loadtune.search.space import size

TIE = 0.98
"""Means within 2% of the best count as equal; the smallest of them wins."""

MARGIN = 0.03
"""Differences that lie within 3% are none: "no difference" is then the answer."""

PRECISE = 0.04
"""Half width of the winner's 95% interval at which its rate is known well enough."""


def pick_winner(
    finalists: Sequence[Finalist],
    yours: TrialConfig | None,
    *,
    batch_size: int | None = None,
    objective: Objective = "samples-per-s",
) -> Winner | None:
    """The smallest of those within 2% of the best that is proven better than the baseline, the user's settings.

    Where nothing is, the baseline itself: a rival has to gain for sure, the user's settings do not. The best of all
    where the baseline has no rate, or may not be kept (`may_be_kept`). None: nothing ran, or something rules out all
    that did (`ruled_out`). A configuration that was run once wins only where no rival of the baseline ran twice.
    `batch_size` leaves only its own to choose from; what is proven there is proven among all sizes. Changes of the code
    are judged apart.
    """
    able = [f for f in finalists if not f.unconfirmed and not f.config.remedies]
    eligible = [f for f in able if batch_size in (None, f.config.batch_size)]
    num_rivals = sum(f.config != yours for f in able)  # who was run once was there to pick from as well
    if any(len(f.runs) >= MIN_RUNS for f in eligible if f.config != yours):
        eligible = [f for f in eligible if len(f.runs) >= MIN_RUNS]
    own = next((f for f in finalists if f.config == yours and _is_rate(f)), None)
    if own is not None and may_be_kept(own) and batch_size in (None, own.config.batch_size):
        eligible = [f for f in eligible if (speedup(f, own, finalists, num_rivals, objective)[1] or 0.0) > 1.0] or [own]
    if not eligible:
        return None
    top = max(f.score(objective) for f in eligible)
    best = min((f for f in eligible if f.score(objective) >= TIE * top), key=lambda f: size(f.config))
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


def _is_rate(baseline: Finalist) -> bool:
    """Whether something can be compared with what it read: one that crashed now and then still trained at its rate."""
    return baseline.unconfirmed is None or baseline.unconfirmed.reason in ("failed", "wide_interval")


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
    """Ratio of the scores with its 99% interval (`difference`).

    `num_rivals` of `own` there were to pick `best` from: the interval allows for the luck of the fastest of them.
    """
    if own is None:
        return None, None, None
    if best.config == own.config:
        return 1.0, 1.0, 1.0
    return difference(best, own, finalists, num_rivals, objective)


def as_finalist(winner: Winner | None, finalists: Sequence[Finalist]) -> Finalist | None:
    """The winner's runs. None: there is no winner."""
    return next((f for f in finalists if winner is not None and f.config == winner.config), None)


def not_told_apart(
    winner: Winner, finalists: Sequence[Finalist], objective: Objective = "samples-per-s"
) -> tuple[Finalist, ...]:
    """Other finalists that may be as good as the winner: the interval of the ratio holds 1, or nothing ran twice.

    The winner was picked for scoring high, and a rival is called worse for scoring low: that is one of all pairs.
    """
    num_pairs, best = math.comb(len(finalists), 2), next(f for f in finalists if f.config == winner.config)
    rivals = [f for f in finalists if f is not best and not f.config.remedies]
    return tuple(f for f in rivals if not _differ(difference(best, f, finalists, num_pairs, objective)[1:]))


def undecided(
    finalists: Sequence[Finalist],
    yours: TrialConfig | None,
    *,
    batch_size: int | None = None,
    objective: Objective = "samples-per-s",
) -> tuple[TrialConfig, ...]:
    """Who has to be run again: the winner, and all whose ratio to it may be 1.

    Nobody, if the winner's throughput or samples per joule is known to within `PRECISE`, and whether it differs from
    the baseline's: the interval of their ratio excludes 1, or lies within `MARGIN` of 1. If the baseline is the winner,
    its best rival takes the baseline's place. A baseline that failed twice is not waited for.
    """
    best = as_finalist(pick_winner(finalists, yours, batch_size=batch_size, objective=objective), finalists)
    if best is None or best.unconfirmed:  # more runs may narrow what is too uncertain now
        wide = [f.config for f in finalists if f.unconfirmed and f.unconfirmed.reason == "wide_interval"]
        return tuple(config for config in wide if config == yours or batch_size in (None, config.batch_size))
    able = [f for f in finalists if not f.unconfirmed and f.config != yours and not f.config.remedies]
    rivals = sorted((f for f in able if batch_size in (None, f.config.batch_size)), key=lambda f: -f.score(objective))
    own = next((f for f in finalists if f.config == yours and may_be_kept(f)), None)
    others = [f for f in (*rivals, *([] if own is None else [own])) if f is not best]
    ratios = {f.config: difference(best, f, finalists, len(able), objective)[1:] for f in others}
    against = own if best.config != yours else next(iter(rivals), None)
    is_told = against is None or _differ(ratios[against.config]) or _are_equal(ratios[against.config])
    half = best.scored(objective).half_width_fraction
    if is_told and half is not None and half <= PRECISE:
        return ()
    return (best.config, *(config for config, interval in ratios.items() if not _differ(interval)))


def undecided_change(
    finalists: Sequence[Finalist], winner: Winner | None, objective: Objective = "samples-per-s"
) -> tuple[TrialConfig, ...]:
    """The winner and the contestant with changes of the code, while it is not known whether these gain."""
    best = as_finalist(winner, finalists)
    changed = next((f for f in finalists if f.config.remedies and not f.unconfirmed), None)
    if best is None or changed is None:
        return ()
    interval = difference(changed, best, finalists, 1, objective)[1:]
    return () if _differ(interval) or _are_equal(interval) else (best.config, changed.config)


Interval = tuple[float | None, float | None]


def _differ(interval: Interval) -> bool:
    low, high = interval
    return low is not None and high is not None and not low <= 1.0 <= high


def _are_equal(interval: Interval) -> bool:
    low, high = interval
    return low is not None and high is not None and low >= 1 / (1 + MARGIN) and high <= 1 + MARGIN


def is_confirmed(
    finalists: Sequence[Finalist],
    yours: TrialConfig | None,
    *,
    batch_size: int | None = None,
    objective: Objective = "samples-per-s",
) -> bool:
    """Whether a confirmation that was ended in its midst has an answer.

    The winner, the baseline and another configuration were run twice each.
    """
    best = as_finalist(pick_winner(finalists, yours, batch_size=batch_size, objective=objective), finalists)
    if best is None:
        return False
    own = [f for f in finalists if f.config == yours]
    plain = [f for f in finalists if not f.config.remedies]
    rivals = [f for f in plain if f.config != yours and batch_size in (None, f.config.batch_size)]
    twice = {f.config for f in finalists if len(f.runs) >= MIN_RUNS}
    return all(f.config in twice for f in (best, *own)) and any(f.config in twice for f in rivals)
