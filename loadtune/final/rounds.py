"""Who is measured again, and in which order: everybody in every round, in balanced order, with three planned looks.

Measured again are the baseline, the best, the best at the user's batch size, the best with changes of the code, and
what one would type without measuring. Looking after every round would find a difference in 7 to 19% of comparisons of a
configuration with itself (simulated): see `stats.looks`.
"""

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from loadtune.final.winner import LOOKS, Outcome, finalists
from loadtune.records.answer import is_barred
from loadtune.records.config import LoaderConfig, Precision, TrialConfig
from loadtune.records.measurement import Measurement, TrialFailure
from loadtune.seams import Clock
from loadtune.search.search import MIN_RUNS
from loadtune.search.space import SearchSpace


def usual(yours: TrialConfig, space: SearchSpace, num_cores: int) -> list[TrialConfig]:
    """As many workers as cores, pinned, in half the bits; or nothing."""
    halves: tuple[Precision, ...] = ("bf16", "fp16")
    precision = next((each for each in halves if each in space.recipes), None)
    if precision is None:
        return []
    workers = max((number for number in space.num_workers if number <= num_cores), default=0)
    loader = LoaderConfig(batch_size=yours.batch_size, num_workers=workers, pin_memory=space.pin_memory[-1])
    return [space.nearest(TrialConfig(loader=loader, recipe=space.recipes[precision]))]


def pick_finalists(
    ranked: Sequence[TrialConfig],
    yours: TrialConfig | None,
    wanted: Sequence[tuple[TrialConfig | None, float]],
    *,
    at_your_batch: Sequence[TrialConfig] = (),
    kept: Sequence[TrialConfig] = (),
    lasts_s: Callable[[TrialConfig], float],
) -> tuple[TrialConfig, ...]:
    """Who is measured again, what matters most first.

    ``ranked``: what the search tried, best first. In any case: the best, the baseline, the best that is not the
    baseline, the two best ``at_your_batch`` size, and those ``kept``, which were measured again before an interruption.
    Each that is ``wanted`` beside them has to be within some seconds, in which all can be measured twice. ``lasts_s``:
    seconds of one measurement.
    """
    rivals, at_batch = ([config for config in each if config != yours] for each in (ranked, at_your_batch))
    needed = [*ranked[:1], *([] if yours is None else [yours]), *rivals[:1], *at_batch[:2]]
    picked = list(dict.fromkeys([*needed, *kept]))
    for config, within_s in wanted:  # a short one may fit where a long one did not
        if config is not None and config not in picked:
            takes_s = MIN_RUNS * math.fsum(lasts_s(each) for each in (*picked, config))
            picked += [config] if takes_s <= within_s else []
    return tuple(picked)


def lasts_s(
    config: TrialConfig, tried: Sequence[tuple[TrialConfig, Measurement]], expected_s: Callable[[TrialConfig], float]
) -> float:
    """As long as its trial; without one as trials last and as the model expects, whichever is longer."""
    own = [each.seconds for other, each in tried if other == config]
    mean_s = statistics.fmean(own or [each.seconds for _, each in tried] or [0.0])
    return mean_s if own else max(mean_s, expected_s(config))


def needed(
    outcomes: Sequence[Outcome], configs: Sequence[TrialConfig], yours: TrialConfig | None, *, at_your_batch: bool
) -> list[TrialConfig]:
    """What the answer is made of: the best rival so far, the baseline, and the two best rivals at its batch size."""
    scored, out = {f.config: f.score for f in finalists(outcomes)}, barred(outcomes)
    ranked = sorted((c for c in configs if c not in out), key=lambda config: -scored.get(config, 0.0))
    rivals = [config for config in ranked if config != yours and not config.remedies]
    at_batch = [config for config in rivals if yours and config.batch_size == yours.batch_size]
    own = [config for config in ranked if config == yours]
    return list(dict.fromkeys([*rivals[:1], *own, *at_batch[: 2 if at_your_batch else 0]]))


# The rounds


def alternate(
    configs: Sequence[TrialConfig],
    run: Callable[[TrialConfig], Measurement | TrialFailure],
    clock: Clock,
    until_s: float,
    *,
    needed: Callable[[Sequence[Outcome], Sequence[TrialConfig]], Collection[TrialConfig]],
    undecided: Callable[[Sequence[Outcome]], Collection[TrialConfig]],
    is_rough: Callable[[Sequence[Outcome]], bool],
    answer_by_s: float,
    known: Sequence[Outcome] = (),
    seed: int = 0,
) -> list[Outcome]:
    """Measure these in rounds, what matters most first. Who fails is run once more at the end of the round, and is out
    with a second failure.

    ``needed``: of those that may run, whom the answer is made of. They are run once whatever the time. `MIN_RUNS`
    rounds may last until ``answer_by_s``, and so may further ones while throughput ``is_rough``; others until
    ``until_s``. ``is_rough`` looks at the spread alone. To go on while nobody is proven faster would be a further
    look (simulated: 1.5% of equal pairs are called different; by the spread alone 0.9%). Where a round does not fit,
    one of the needed alone may. Who misses a round is not run any more, so that each n-th figure is of the n-th round.
    ``undecided``: called at each look, who is run further. ``known``: of before an interruption; each stands in place
    of its run.
    """
    outcomes, order, chance, took_s = list[Outcome](), list(configs), random.Random(seed), dict[TrialConfig, float]()
    kept = {config: [each for other, each in known if other == config] for config in configs}
    num_begun = max(_num_measured(known).values(), default=0)
    for number in range(LOOKS[-1]):
        if number in LOOKS:
            going_on = undecided(outcomes)
            order = [config for config in order if config in going_on]
        if number > 0:
            order = order[::-1] if number % 2 else chance.sample(order, len(order))
        num_ran, out, is_over = _num_measured(outcomes), barred(outcomes), number + 1 < num_begun
        turn = [config for config in order if num_ran[config] == number and config not in out]
        first, spared_s = needed(outcomes, turn), max(took_s.values(), default=0.0)  # a rough run may last longer
        longer_s = max(until_s, answer_by_s - spared_s) if is_rough(outcomes) else until_s
        end_s = answer_by_s if number < MIN_RUNS else longer_s
        if number == 0:
            turn.sort(key=lambda config: config not in first)
        elif not is_over:  # the whole round, or of it those that the answer needs, or nobody
            alone, left_s = [config for config in turn if config in first], max(0.0, end_s - clock.now())
            lasting = ((who, sum(took_s[config] for config in who if not kept[config])) for who in (turn, alone))
            turn = next((who for who, seconds in lasting if seconds <= left_s), [])
        if not turn:
            break
        again = set[TrialConfig]()
        while turn:
            config, begun = turn.pop(0), clock.now()
            may_skip = config in again if number else config not in needed(outcomes, configs)
            is_late = may_skip and begun + max(took_s.values(), default=0.0) > end_s
            if not kept[config] and (is_over or is_late):
                continue
            ran = kept[config].pop(0) if kept[config] else run(config)
            outcomes.append((config, ran))
            # A segment that was repeated took longer than the next will.
            took_s[config] = ran.seconds if isinstance(ran, Measurement) else clock.now() - begun
            if isinstance(ran, TrialFailure) and config not in barred(outcomes):
                again.add(config)
                turn.append(config)
    return outcomes


def barred(outcomes: Sequence[Outcome]) -> set[TrialConfig]:
    """Those that failed too often to be run again."""
    failed = [(config, each) for config, each in outcomes if isinstance(each, TrialFailure)]
    return {config for config, _ in failed if is_barred([failure for other, failure in failed if other == config])}


def _num_measured(outcomes: Sequence[Outcome]) -> Counter[TrialConfig]:
    return Counter(config for config, each in outcomes if isinstance(each, Measurement))
