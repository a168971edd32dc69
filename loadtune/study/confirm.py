"""The confirmation: who is measured again, and what the figures allow to be said. Pure.

The study's own figures choose who is measured again and are then forgotten: the best of many noisy figures is too good
to be true (simulated: it overclaims by 6% at 5% noise).
"""

import math
import statistics
from collections.abc import Collection, Iterator, Sequence

from loadtune.records import Finalist, Measurement, Objective, Trial, TrialConfig, TrialFailure
from loadtune.records.intervals import largest_t, quantile_of_t
from loadtune.study.alternation import ERROR, LOOKS, MIN_RUNS, Outcome, barred

WITH_THE_REST = 1.5
"""Times its first batch and its windows that a run lasts, with its preparing, warming up and ending: 1.3 to 1.5 in the
median of four sets of runs on an H200, 2.0 on two cores, where little is compiled."""


def pick_finalists(
    ranked: Sequence[TrialConfig],
    yours: TrialConfig | None,
    trials: Sequence[Trial],
    *,
    at_your_batch: Sequence[TrialConfig] = (),
    smallest: TrialConfig | None = None,
    changed: TrialConfig | None = None,
    typed: TrialConfig | None = None,
    time_s: float = math.inf,
    kept: Collection[TrialConfig] = (),
) -> tuple[TrialConfig, ...]:
    """Who is measured again, what matters most first: as many as can be measured twice in `time_s`.

    ``ranked``: what the search tried, best first. In any case: the best, the baseline, the best that is not the
    baseline, and the two best ``at_your_batch`` size. Where time allows: the best that is ``changed`` in its code, what
    one would have ``typed`` without measuring, the second best, and the ``smallest`` that is expected to be as good.
    Those in ``kept`` were measured again before an interruption and stay.
    """
    rivals = [config for config in ranked if config != yours]
    at_batch = [config for config in at_your_batch if config != yours]
    needed = [*ranked[:1], *([] if yours is None else [yours]), *rivals[:1], *at_batch[:2]]
    fixed = list(dict.fromkeys([*needed, *kept]))
    spare = dict.fromkeys(each for each in (changed, typed, *ranked[:2], smallest) if each is not None)
    left_s = time_s - math.fsum(MIN_RUNS * _lasts_s(config, trials) for config in fixed)
    return (*fixed, *_repeatable([config for config in spare if config not in fixed], trials, left_s))


def _repeatable(spare: Sequence[TrialConfig], trials: Sequence[Trial], left_s: float) -> Iterator[TrialConfig]:
    """Those that can be measured twice in the time that others leave; a short one may fit where a long one did not."""
    for config in spare:
        took_s = MIN_RUNS * _lasts_s(config, trials)
        if took_s <= left_s:
            left_s -= took_s
            yield config


def _lasts_s(config: TrialConfig, trials: Sequence[Trial]) -> float:
    """As long as its trial, or that of its loader and precision under another recipe, or else as trials last."""
    ran = [(trial.config, trial.measurement) for trial in trials if trial.measurement is not None]
    alike = [each for each in ran if (each[0].loader, each[0].precision) == (config.loader, config.precision)]
    took = [_trial_s(*each) for each in ([each for each in ran if each[0] == config] or alike[:1] or ran)]
    return statistics.fmean(took) if took else 0.0


def _trial_s(config: TrialConfig, measured: Measurement) -> float:
    """What its trial took; of a compiled one what the compiler has no part in."""
    if not config.recipe.compile:
        return measured.seconds
    loaded_s = measured.first_batch_s + math.fsum(window.seconds for window in measured.windows)
    return min(measured.seconds, WITH_THE_REST * loaded_s)


def size(config: TrialConfig) -> tuple[int, int, int]:
    """What a configuration costs a user: workers first, then batch, then batches kept ahead."""
    return config.loader.num_workers, config.batch_size, config.loader.num_prefetched


def finalists(outcomes: Sequence[Outcome]) -> tuple[Finalist, ...]:
    """Runs put together by configuration, each mean with its interval; configurations that never ran are left out."""
    runs: dict[TrialConfig, list[Measurement]] = {}
    failures: dict[TrialConfig, list[TrialFailure]] = {}
    for config, outcome in outcomes:
        if isinstance(outcome, Measurement):
            runs.setdefault(config, []).append(outcome)
        else:
            failures.setdefault(config, []).append(outcome)
    spread, efficiency_spread = rate_spread(list(runs.values())), _efficiency_spread(list(runs.values()))

    def half_width(pooled: Spread | None, alone: Spread | None, num_runs: int) -> float | None:
        """From its own spread where it ran often enough to have one; configurations differ in how steady they are."""
        used = alone if alone is not None and alone.degrees_of_freedom >= FEWEST_DEGREES else pooled
        return None if used is None else used.half_width(1 / num_runs, len(runs))

    return tuple(
        Finalist(
            config=config,
            runs=tuple(own),
            failures=tuple(failures.get(config, ())),
            half_width_fraction=half_width(spread, rate_spread([own]), len(own)),
            efficiency_half_width_fraction=half_width(efficiency_spread, _efficiency_spread([own]), len(own)),
        )
        for config, own in runs.items()
    )


def _efficiency_spread(runs: Sequence[Sequence[Measurement]]) -> "Spread | None":
    """None: nothing ran twice, or of one run no energy was read."""
    read = all(run.samples_per_joule is not None for own in runs for run in own)
    return between_run_spread(runs, "samples-per-joule") if read else None


def needed(
    outcomes: Sequence[Outcome],
    configs: Sequence[TrialConfig],
    yours: TrialConfig | None,
    *,
    at_your_batch: bool,
    objective: Objective = "samples-per-s",
) -> list[TrialConfig]:
    """What the answer is made of: the best rival so far, the baseline, and the two best rivals at its batch size."""
    scored, out = {f.config: f.score(objective) for f in finalists(outcomes)}, barred(outcomes)
    ranked = sorted((c for c in configs if c not in out), key=lambda config: -scored.get(config, 0.0))
    rivals = [config for config in ranked if config != yours and not config.remedies]
    at_batch = [config for config in rivals if yours and config.batch_size == yours.batch_size]
    own = [config for config in ranked if config == yours]
    return list(dict.fromkeys([*rivals[:1], *own, *at_batch[: 2 if at_your_batch else 0]]))


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
    estimate it from, the plain spread between runs is used. None: nothing ran twice.
    """
    pairs = list(zip(_logs(one, objective), _logs(other, objective), strict=False))
    ratio = math.exp(statistics.fmean(a - b for a, b in pairs))
    num_rounds = len(pairs) if len(pairs) >= LOOKS[0] else max(len(f.runs) for f in finalists)
    spread = _block_spread([_logs(f, objective)[:num_rounds] for f in finalists]) or between_run_spread(
        [f.runs[:num_rounds] for f in finalists], objective
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
