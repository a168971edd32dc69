"""The order of a final: everybody in every round, in balanced order, and at most three planned looks. Pure.

Whoever looks at the figures after every round and stops at the first difference finds one in 7 to 19% of comparisons of
a configuration with itself (simulated). The looks are therefore planned, and share an error of 1% (`ERROR`).
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from loadtune.records.answer import barred_by
from loadtune.records.config import TrialConfig
from loadtune.records.measurement import Measurement, TrialFailure
from loadtune.seams import Clock
from loadtune.search.search import MIN_RUNS

LOOKS = (3, 5, 8)
"""Rounds after which the figures are looked at; the last is the end."""

ERROR = 0.01
"""Probability of calling equal configurations different in one confirmation, over all its looks."""

Outcome = tuple[TrialConfig, Measurement | TrialFailure]


def alternate(
    configs: Sequence[TrialConfig],
    run: Callable[[TrialConfig], Measurement | TrialFailure],
    clock: Clock,
    until_s: float,
    *,
    needed: Callable[[Sequence[Outcome], Sequence[TrialConfig]], Collection[TrialConfig]],
    undecided: Callable[[Sequence[Outcome]], Collection[TrialConfig]],
    answer_by_s: float | None = None,
    known: Sequence[Outcome] = (),
    seed: int = 0,
) -> Iterator[Outcome]:
    """Measure these in rounds. Who fails is run once more at the end of the round, and is out with a second failure.

    ``configs``: what matters most first. ``needed``: given the outcomes and who may run, those that the answer is
    made of. They are run once whatever the time. `MIN_RUNS` rounds of all may last until ``answer_by_s``, further ones
    until ``until_s``. Where a round does not fit, one of the needed alone may. Who misses a round is not run any more,
    so that each n-th figure is of the n-th round.
    ``undecided``: called at each look, returns the configurations to run further. None of them: the end.
    ``known``: outcomes of before an interruption. They come first; what was measured is not run again.
    """
    yield from known
    outcomes, order, chance = list(known), list(configs), random.Random(seed)
    took_s = {config: each.seconds for config, each in known if isinstance(each, Measurement)}
    newest = max(_num_measured(known).values(), default=0)
    for number in range(LOOKS[-1]):
        if number in LOOKS:
            going_on = undecided(_of_rounds(outcomes, number))
            order = [config for config in order if config in going_on]
        if number > 0:
            order = order[::-1] if number % 2 else chance.sample(order, len(order))
        able, num_ran = [config for config in order if config not in barred(outcomes)], _num_measured(outcomes)
        turn = [config for config in able if num_ran[config] == number]
        if number + 1 < newest or (not turn and any(num_ran[config] > number for config in able)):
            continue  # this round was run before an interruption; who missed it is out
        end_s = answer_by_s if answer_by_s is not None and number < MIN_RUNS else until_s
        if number == 0:
            first = needed(outcomes, turn)
            turn.sort(key=lambda config: config not in first)
        else:
            turn = _fitting(turn, needed(outcomes, turn), took_s, end_s - clock.now())
            if not turn:
                return
        again = set[TrialConfig]()
        while turn:
            config, begun = turn.pop(0), clock.now()
            may_skip = config in again if number else config not in needed(outcomes, configs)
            if may_skip and begun + max(took_s.values(), default=0.0) > end_s:
                continue
            outcomes.append((config, run(config)))
            ran = outcomes[-1][1]  # a segment that was repeated took longer than the next will
            took_s[config] = ran.seconds if isinstance(ran, Measurement) else clock.now() - begun
            yield outcomes[-1]
            if isinstance(ran, TrialFailure) and config not in barred(outcomes):
                again.add(config)
                turn.append(config)


def barred(outcomes: Sequence[Outcome]) -> set[TrialConfig]:
    """Those that failed too often to be run again."""
    return barred_by([(config, each) for config, each in outcomes if isinstance(each, TrialFailure)])


def _num_measured(outcomes: Sequence[Outcome]) -> Counter[TrialConfig]:
    return Counter(config for config, each in outcomes if isinstance(each, Measurement))


def _of_rounds(outcomes: Sequence[Outcome], number: int) -> list[Outcome]:
    """Of the first rounds alone: after an interruption a look falls out as it did."""
    return [each for at, each in enumerate(outcomes) if _num_measured(outcomes[:at])[each[0]] < number]


def _fitting(
    turn: Sequence[TrialConfig],
    needed: Collection[TrialConfig],
    took_s: Mapping[TrialConfig, float],
    left_s: float,
) -> list[TrialConfig]:
    """The whole round, or of it those that the answer needs, or nobody."""
    alone = [config for config in turn if config in needed]
    return next((list(who) for who in (turn, alone) if sum(took_s[config] for config in who) <= left_s), [])
