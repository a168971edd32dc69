"""The confirmation: finalists and the user's own configuration, measured again in turn, with fresh loaders. Pure.

The study's own figures choose who is measured again and are then forgotten: the best of many noisy figures is too good
to be true (simulated: it overclaims by 6% at 5% noise).
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from loadtune.records import Finalist, Measurement, Objective, Trial, TrialConfig, TrialFailure
from loadtune.records.intervals import largest_t
from loadtune.seams import Clock
from loadtune.study.rounds import CONTENDER, MIN_RUNS, Rounds

NUM_TOP = 2
"""Best configurations of the study that are measured again: the leader's luck is what the second is there to show."""

WITH_THE_REST = 1.5
"""Times its first batch and its windows that a run lasts, with its preparing, warming up and ending: 1.3 to 1.5 in the
median of four sets of runs on an H200, 2.0 on two cores, where little is compiled."""

MAX_ROUNDS = 3
"""Of the confirmation. Three runs of each of three finalists put the spread between runs on six degrees of freedom."""

Outcome = tuple[TrialConfig, Measurement | TrialFailure]
Ranked = Sequence[tuple[TrialConfig, Measurement]]


def pick_finalists(
    trials: Sequence[Trial],
    yours: TrialConfig | None,
    *,
    at_your_batch: bool = False,
    leaner: Callable[[TrialConfig, Measurement], TrialConfig | None] = lambda config, measured: None,
    objective: Objective = "samples-per-s",
    time_s: float = math.inf,
    kept: Collection[TrialConfig] = (),
) -> tuple[TrialConfig, ...]:
    """Who is measured again, what matters most first: as many as can be measured twice in `time_s`.

    The leader, the user's own, the best beside that and, where asked, the best beside it at the user's batch in any
    case; then the second, the smallest contender, and what `leaner` may name: a smaller relative of the leader, unless
    the search saw it or one nearly as small fall short. Those in `kept` were measured again before an interruption, and
    stay as well.
    """
    timed = ((t.config, t.measurement) for t in trials if t.measurement)
    ranked = sorted(timed, key=lambda t: -t[1].score(objective))
    if not ranked:
        return () if yours is None else (yours,)
    near = CONTENDER * ranked[0][1].score(objective)
    contenders = [config for config, measured in ranked if measured.score(objective) >= near]
    rivals = [config for config, _ in ranked if config != yours]
    needed = [contenders[0], *([] if yours is None else [yours]), *rivals[:1]]
    if yours is not None and at_your_batch:
        needed += [config for config in rivals if config.batch_size == yours.batch_size][:1]
    slim = leaner(*ranked[0])
    relatives = [slim] if slim is not None and _nearest_tried(slim, ranked) in contenders else []
    spare = [*contenders[:NUM_TOP], min(contenders, key=size), *relatives]
    fixed = list(dict.fromkeys([*needed, *kept]))
    left_s = time_s - math.fsum(MIN_RUNS * _lasts_s(config, ranked) for config in fixed)
    return (*fixed, *_repeatable([config for config in dict.fromkeys(spare) if config not in fixed], ranked, left_s))


def _nearest_tried(slim: TrialConfig, ranked: Ranked) -> TrialConfig:
    """Of those that differ from it in nothing but workers, of which they have as many or more, that with the fewest; of
    a relative of the leader, the leader at the last."""
    tried = [config for config, _ in ranked if config.loader.num_workers >= slim.loader.num_workers]
    alike = (c for c in tried if replace(c, loader=replace(c.loader, num_workers=slim.loader.num_workers)) == slim)
    return min(alike, key=size)


def _repeatable(spare: Sequence[TrialConfig], ranked: Ranked, left_s: float) -> Iterator[TrialConfig]:
    """Those that can be measured twice in the time that others leave; a short one may fit where a long one did not."""
    for config in spare:
        took_s = MIN_RUNS * _lasts_s(config, ranked)
        if took_s <= left_s:
            left_s -= took_s
            yield config


def _lasts_s(config: TrialConfig, ranked: Ranked) -> float:
    """As long as its trial, or that of its loader and precision under another recipe, or else the leader's."""
    own = [each for each in ranked if each[0] == config]
    alike = [each for each in ranked if (each[0].loader, each[0].precision) == (config.loader, config.precision)]
    return _trial_s(*[*own, *alike, ranked[0]][0])


def _trial_s(config: TrialConfig, measured: Measurement) -> float:
    """What its trial took; of a compiled one what the compiler has no part in."""
    if not config.recipe.compile:
        return measured.seconds
    loaded_s = measured.first_batch_s + math.fsum(window.seconds for window in measured.windows)
    return min(measured.seconds, WITH_THE_REST * loaded_s)


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
    at_your_batch: bool = False,
    answer_by_s: float | None = None,
    objective: Objective = "samples-per-s",
    told: Callable[[Sequence[Finalist]], bool] = lambda found: False,
    known: Sequence[Outcome] = (),
) -> Iterator[Outcome]:
    """Measure every configuration in turn, round by round; `configs` are in the order of `pick_finalists`.

    What the answer is made of is run once whatever the time, the others only while it lasts. Whoever is expected, by
    its last run, to end by `until_s` is run again; second runs without which there is no answer by `answer_by_s`. From
    two rounds on no other begins once `told` says that the answer is sure. `known` are outcomes of before an
    interruption: they come first, and are not run again.
    """
    rounds = Rounds(configs, yours, at_your_batch)
    needed, outcomes = rounds.needed, list[Outcome]()
    for config, outcome in known:
        score, took_s = (outcome.score(objective), outcome.seconds) if isinstance(outcome, Measurement) else (None, 0.0)
        rounds.add(config, score, took_s)
        outcomes.append((config, outcome))
        yield outcomes[-1]
    late_s = 0.0 if answer_by_s is None else max(0.0, answer_by_s - until_s)
    for number in range(MAX_ROUNDS if configs else 0):
        turn = rounds.first() if number == 0 else rounds.further(number, until_s - clock.now(), late_s)
        if number >= MIN_RUNS and told(finalists(outcomes)):
            turn = [config for config in turn if config in rounds.ran_once]
        for config in turn:
            started = clock.now()
            spare = number == 0 and config not in needed
            if spare and started + max(rounds.took_s.values(), default=0.0) > until_s:
                continue
            outcome = run(config)
            score = outcome.score(objective) if isinstance(outcome, Measurement) else None
            rounds.add(config, score, clock.now() - started)
            outcomes.append((config, outcome))
            yield outcomes[-1]


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
