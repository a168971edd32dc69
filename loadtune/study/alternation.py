"""The order of a confirmation: everybody in every round, in balanced order, and at most three planned looks. Pure.

Whoever looks at the figures after every round and stops at the first difference finds one in 7 to 19% of comparisons of
a configuration with itself (simulated). The looks are therefore planned, and share an error of 1% (`ERROR`).
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from loadtune.records import Measurement, TrialConfig, TrialFailure
from loadtune.seams import Clock

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
    is_decided: Callable[[Sequence[Outcome]], bool],
    answer_by_s: float | None = None,
    known: Sequence[Outcome] = (),
    seed: int = 0,
) -> Iterator[Outcome]:
    """Measure these in rounds; who failed once is not run again.

    ``configs``: what matters most first. ``needed``: given the outcomes and who may run, those that the answer is
    made of. They are run once whatever the time, and a second time where that ends by ``answer_by_s``; the others, and
    all further rounds, where they end by ``until_s``. Where a round does not fit, one of the needed alone may. Who
    misses a round is not run any more, so that everybody's n-th run is of the n-th round.
    ``known``: outcomes of before an interruption. They come first and are not run again.
    """
    outcomes, took_s, chance = list(known), dict[TrialConfig, float](), random.Random(seed)
    yield from known
    took_s |= {config: each.seconds for config, each in known if isinstance(each, Measurement)}
    order = list(configs)
    num_known = max((sum(config == c for config, _ in known) for c in configs), default=0)
    if num_known in LOOKS and is_decided(known):
        return
    for number in range(LOOKS[-1]):
        if number in LOOKS and number > num_known and is_decided(outcomes):
            return
        order = list(reversed(order)) if number % 2 else _shuffled(order, chance) if number else order
        failed = {config for config, each in outcomes if isinstance(each, TrialFailure)}
        turn = [c for c in order if c not in failed and sum(config == c for config, _ in outcomes) == number]
        if number == 0:
            first = needed(outcomes, turn)
            turn.sort(key=lambda config: config not in first)
        else:
            late_s = answer_by_s - clock.now() if number == 1 and answer_by_s is not None else 0.0
            turn = _fitting(turn, needed(outcomes, turn), took_s, until_s - clock.now(), late_s)
            if not turn:
                return
        for config in turn:
            begun = clock.now()
            may_skip = number == 0 and config not in needed(outcomes, configs)
            if may_skip and begun + max(took_s.values(), default=0.0) > until_s:
                continue
            outcomes.append((config, run(config)))
            took_s[config] = clock.now() - begun
            yield outcomes[-1]


def _fitting(
    turn: Sequence[TrialConfig],
    needed: Collection[TrialConfig],
    took_s: Mapping[TrialConfig, float],
    left_s: float,
    late_s: float,
) -> list[TrialConfig]:
    """The whole round, or of it those that the answer needs, which may end later, or nobody."""
    if sum(took_s[config] for config in turn) <= left_s:
        return list(turn)
    alone = [config for config in turn if config in needed]
    return alone if sum(took_s[config] for config in alone) <= max(left_s, late_s) else []


def _shuffled(configs: Sequence[TrialConfig], chance: random.Random) -> list[TrialConfig]:
    return chance.sample(configs, len(configs))
