"""What repeated runs allow to be said: means with their intervals, ratios with theirs. Pure.

The search's own figures choose who is measured again and are in no mean: the best of many noisy figures is too good to
be true (simulated: it overclaims by 6% at 5% noise).
"""

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from loadtune.final.rounds import ERROR, LOOKS, Outcome
from loadtune.records.config import Objective, TrialConfig
from loadtune.records.interval import Spread, quantile_of_t, spread_between
from loadtune.records.measurement import Measurement, TrialFailure
from loadtune.records.result import Finalist, Trial
from loadtune.search.search import MIN_RUNS


def finalists(outcomes: Sequence[Outcome], trials: Sequence[Trial] = ()) -> tuple[Finalist, ...]:
    """Runs put together by configuration, each mean with its interval; configurations that never ran are left out.

    ``trials``: those of the search. They tell how far runs of one configuration differ, as two rounds of the final
    alone hardly do: 345 and 509 samples/s of one and 4,539 and 4,626 of another were no proof of a gain (H200).
    """
    runs: dict[TrialConfig, list[Measurement]] = {}
    for config, outcome in outcomes:
        if isinstance(outcome, Measurement):
            runs.setdefault(config, []).append(outcome)
    failed = [(config, each) for config, each in outcomes if isinstance(each, TrialFailure)]
    twice = any(len(own) >= MIN_RUNS for own in runs.values())
    tried = {trial.config: trial.measurement for trial in trials if twice and trial.measurement is not None}
    spread = _spread([_with_trial(own, tried.get(config)) for config, own in runs.items()], "samples_per_s")
    with_energy = {config: each for config, each in tried.items() if each.samples_per_joule is not None}
    efficiency_spread = _spread(
        [_with_trial(own, with_energy.get(config)) for config, own in runs.items()], "samples_per_joule"
    )

    def half_width(pooled: Spread | None, alone: Spread | None, num_runs: int) -> float | None:
        """From its own spread where it ran often enough to have one; configurations differ in how steady they are."""
        used = alone if alone is not None and alone.degrees_of_freedom >= FEWEST_DEGREES else pooled
        return None if used is None else used.half_width(num_runs, len(runs))

    return tuple(
        Finalist(
            config=config,
            runs=tuple(own),
            tried=tried.get(config),
            failures=tuple(failure for other, failure in failed if other == config),
            half_width_fraction=half_width(spread, _spread([own], "samples_per_s"), len(own)),
            efficiency_half_width_fraction=half_width(efficiency_spread, _spread([own], "samples_per_joule"), len(own)),
        )
        for config, own in runs.items()
    )


def _with_trial(runs: Sequence[Measurement], tried: Measurement | None) -> list[Measurement]:
    return [*runs, *([] if tried is None else [tried])]


def _spread(
    runs: Sequence[Sequence[Measurement]], figure: Literal["samples_per_s", "samples_per_joule"]
) -> Spread | None:
    """None: nothing ran twice, or of one run the figure was not read."""
    figures = [[getattr(run, figure) for run in own] for own in runs]
    return None if any(None in own for own in figures) else spread_between(figures)


def difference(
    one: Finalist,
    other: Finalist,
    finalists: Sequence[Finalist],
    num_comparisons: int,
    objective: Objective = "samples-per-s",
) -> tuple[float, float | None, float | None]:
    """Ratio of their scores, and its interval at the level of one look (`ERROR` over `LOOKS` and comparisons).

    Rounds are blocks: what a round is faster or slower by, all of it share, so pairs of one round are compared. Only
    rounds that both ran in count, so that a verdict stays what it was at the look after which one of them was out. The
    spread is that of all who ran in them around their means and their rounds. Where the blocks leave too little to
    estimate it from, the plain spread between runs is used, with those of the search. None: nothing ran twice.
    """
    pairs = list(zip(_logs(one, objective), _logs(other, objective), strict=False))
    ratio = math.exp(statistics.fmean(a - b for a, b in pairs))
    num_rounds = len(pairs) if len(pairs) >= LOOKS[0] else max(len(f.runs) for f in finalists)
    spread = _block_spread([_logs(f, objective)[:num_rounds] for f in finalists]) or spread_between(
        [[run.score(objective) for run in _with_trial(f.runs[:num_rounds], f.tried)] for f in finalists]
    )
    if spread is None:
        return ratio, None, None
    num_looks = len(LOOKS) if num_rounds >= LOOKS[0] else 1  # time ended it before the first planned one
    t = quantile_of_t(spread.degrees_of_freedom, 1 - ERROR / num_looks / max(1, num_comparisons) / 2)
    width = t * spread.relative_sd * math.sqrt(2 / len(pairs))
    return ratio, ratio * math.exp(-width), ratio * math.exp(width) if width < _WIDEST else math.inf


FEWEST_DEGREES = 4
"""Of freedom, for a spread around rounds: three configurations in three rounds have as many, two in three rounds two,
with which the interval of one look is 29 standard errors wide."""

_WIDEST = 500.0
"""Of an interval on the log, above which it has no upper end."""


def _logs(finalist: Finalist, objective: Objective) -> list[float]:
    return [math.log(run.score(objective)) for run in finalist.runs]


def _block_spread(logs: Sequence[Sequence[float]]) -> Spread | None:
    """Standard deviation around means and rounds, over those that ran in every round. None: too few did."""
    num_rounds = max((len(own) for own in logs), default=0)
    full = [own for own in logs if len(own) == num_rounds]
    degrees = (len(full) - 1) * (num_rounds - 1)
    if degrees < FEWEST_DEGREES:
        return None
    means = [statistics.fmean(own) for own in full]
    blocks = [statistics.fmean(each) for each in zip(*full, strict=True)]
    whole = statistics.fmean(means)
    squares = math.fsum(
        (value - mean - block + whole) ** 2
        for own, mean in zip(full, means, strict=True)
        for value, block in zip(own, blocks, strict=True)
    )
    return Spread(math.sqrt(squares / degrees), degrees)
