"""The confirmation: finalists and the user's own configuration, measured again in turn, with fresh loaders. Pure.

The study's own figures choose who is measured again and are then forgotten: the best of many noisy figures is too good
to be true (simulated: it overclaims by 6% at 5% noise).
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from loadtune.records import Finalist, Measurement, Objective, Trial, TrialConfig, TrialFailure
from loadtune.records.intervals import largest_t
from loadtune.seams import Clock

NUM_TOP = 2
"""Best configurations of the study that are measured again: the leader's luck is what the second is there to show."""

CONTENDER = 0.87
"""A configuration this close to the leader may really be as fast: two runs of one configuration with fresh loaders,
each some 7% off, differ by 10%, and the leader of a dozen is mostly a lucky one."""

MAX_ROUNDS = 3
"""Of the confirmation. Three runs of each of three finalists put the spread between runs on six degrees of freedom."""

Outcome = tuple[TrialConfig, Measurement | TrialFailure]


def pick_finalists(
    trials: Sequence[Trial],
    yours: TrialConfig | None,
    *,
    at_your_batch: bool = False,
    leaner: Callable[[TrialConfig, Measurement], TrialConfig | None] = lambda config, measured: None,
    objective: Objective = "samples-per-s",
) -> tuple[TrialConfig, ...]:
    """Who is measured again: the top two, the smallest contender, the best at the user's batch, and the user's own.

    `leaner` may name a smaller relative of the leader that the search did not look at.
    """
    timed = ((t.config, t.measurement) for t in trials if t.measurement)
    ranked = sorted(timed, key=lambda t: -t[1].score(objective))
    if not ranked:
        return () if yours is None else (yours,)
    near = CONTENDER * ranked[0][1].score(objective)
    contenders = [config for config, measured in ranked if measured.score(objective) >= near]
    picked = [*contenders[:NUM_TOP], min(contenders, key=size)]
    slim = leaner(*ranked[0])
    picked += [] if slim is None else [slim]
    if yours is not None:
        same_batch = [config for config, _ in ranked if config.batch_size == yours.batch_size]
        picked += [*same_batch[: 1 if at_your_batch else 0], yours]
    return tuple(dict.fromkeys(picked))


def size(config: TrialConfig) -> tuple[int, int, int]:
    """What a configuration costs a user: workers first, then batch, then batches kept ahead."""
    return config.loader.num_workers, config.batch_size, config.loader.num_prefetched


def confirm(
    configs: Sequence[TrialConfig],
    run: Callable[[TrialConfig], Measurement | TrialFailure],
    clock: Clock,
    until_s: float,
    *,
    yours: TrialConfig | None = None,
    answer_by_s: float | None = None,
    objective: Objective = "samples-per-s",
) -> Iterator[Outcome]:
    """Measure every configuration in turn, round by round, the order turned by one each round so that drift is shared.

    The leader of the study, which comes first, and the user's own configuration are run once whatever the time; the
    others only while it lasts. A later round is run only if, going by the last, it ends by `until_s`: whole, or else
    the leader and the user's own alone, because those two make the answer; their second runs, without which there is no
    interval, may end as late as `answer_by_s`. What failed once is not run again: it
    cannot win, and a hang costs minutes.
    """
    took: dict[TrialConfig, float] = {}
    scores: dict[TrialConfig, list[float]] = {}
    for number in range(MAX_ROUNDS):
        shift = number % max(1, len(configs))
        turn = [*configs[shift:], *configs[:shift]]
        if number == 0:
            turn.sort(key=lambda config: config not in (configs[0], yours))
        else:
            left_s, late_s = until_s - clock.now(), answer_by_s - until_s if number == 1 and answer_by_s else 0.0
            turn = _affordable([c for c in turn if c in scores], scores, took, yours, left_s, max(0.0, late_s))
        for config in turn:
            started = clock.now()
            spare = number == 0 and config not in (configs[0], yours)
            if spare and started + max(took.values()) > until_s:
                continue
            outcome = run(config)
            took[config] = clock.now() - started
            if isinstance(outcome, Measurement):
                took[config] = max(took[config], outcome.seconds)  # one that was kept of before took its time then
                scores.setdefault(config, []).append(outcome.score(objective))
            else:
                scores.pop(config, None)
            yield config, outcome


def _affordable(
    turn: list[TrialConfig],
    scores: Mapping[TrialConfig, list[float]],
    took: Mapping[TrialConfig, float],
    yours: TrialConfig | None,
    left_s: float,
    late_s: float,
) -> list[TrialConfig]:
    """The whole turn, or its leader and the user's own, which may be `late_s` late, or nothing: the first in time."""
    leader = max(scores, key=lambda config: statistics.fmean(scores[config]), default=None)
    answer = [config for config in turn if config in (leader, yours)]
    parts = ((turn, left_s), (answer, left_s + late_s))
    return next((part for part, time_s in parts if math.fsum(took[config] for config in part) <= time_s), [])


def finalists(outcomes: Sequence[Outcome]) -> tuple[Finalist, ...]:
    """Runs put together by configuration, each mean with its interval; configurations that never ran are left out."""
    runs: dict[TrialConfig, list[Measurement]] = {}
    failures: dict[TrialConfig, list[TrialFailure]] = {}
    for config, outcome in outcomes:
        if isinstance(outcome, Measurement):
            runs.setdefault(config, []).append(outcome)
        else:
            failures.setdefault(config, []).append(outcome)
    spread, efficiency_spread = between_run_spread(list(runs.values())), _efficiency_spread(list(runs.values()))

    def half_width(spread: Spread | None, num_runs: int) -> float | None:
        return None if spread is None else spread.half_width(1 / num_runs, len(runs))

    return tuple(
        Finalist(
            config=config,
            runs=tuple(own),
            failures=tuple(failures.get(config, ())),
            half_width_fraction=half_width(spread, len(own)),
            efficiency_half_width_fraction=half_width(efficiency_spread, len(own)),
        )
        for config, own in runs.items()
    )


def _efficiency_spread(runs: Sequence[Sequence[Measurement]]) -> "Spread | None":
    """None: nothing ran twice, or of one run no energy was read."""
    read = all(run.samples_per_joule is not None for own in runs for run in own)
    return between_run_spread(runs, "samples-per-joule") if read else None


class Spread:
    """Spread between runs with fresh loaders, relative to the mean, pooled over configurations."""

    def __init__(self, relative_sd: float, degrees_of_freedom: int) -> None:
        self.relative_sd, self.degrees_of_freedom = relative_sd, degrees_of_freedom

    def half_width(self, variance_share: float, num_means: int) -> float:
        """Half width of a 95% interval of a mean whose variance is this share of one run's.

        `num_means` is how many there were to pick it from: the fastest of several was mostly lucky as well.
        """
        return largest_t(num_means, self.degrees_of_freedom) * self.relative_sd * math.sqrt(variance_share)


def between_run_spread(runs: Sequence[Sequence[Measurement]], objective: Objective = "samples-per-s") -> Spread | None:
    """Pooled standard deviation of the log score between runs of one configuration. None: nothing ran twice.

    Pooled, because two or three runs of one configuration say little by themselves; on the log, because noise is a
    share of it.
    """
    logs = [[math.log(run.score(objective)) for run in own] for own in runs]
    squares = math.fsum((value - statistics.fmean(own)) ** 2 for own in logs for value in own)
    degrees = sum(len(own) - 1 for own in logs)
    return Spread(math.sqrt(squares / degrees), degrees) if degrees > 0 else None
