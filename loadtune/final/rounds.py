"""Who is measured again, and in which order: everybody in every round, in balanced order, with three planned looks.

Measured again are the baseline, the best, the best at the user's batch size, the best with changes of the code, and
what one would type without measuring. Whoever looks at the figures after every round and stops at the first difference
finds one in 7 to 19% of comparisons of a configuration with itself (simulated). The looks are therefore planned, and
share an error of 1% (`ERROR`).
"""

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from loadtune.final.winner import LOOKS, Outcome, finalists
from loadtune.records.answer import barred_by
from loadtune.records.config import Precision, TrialConfig
from loadtune.records.measurement import Measurement, TrialFailure
from loadtune.records.result import Trial
from loadtune.run import Run
from loadtune.seams import Clock
from loadtune.search.search import MIN_RUNS, Search
from loadtune.search.space import largest_batch


def contestants(run: Run, search: Search, known: Sequence[Outcome]) -> tuple[TrialConfig, ...]:
    """Those of this run, those first that the answer needs most. ``known``: runs from before an interruption."""
    own_size = run.config.yours.batch_size
    ranked = [_within_ceiling(run, config) for config in search.ranked() if not config.remedies]
    return pick_finalists(
        list(dict.fromkeys(ranked)),
        run.yours,
        run.trials,
        at_your_batch=[] if own_size is None else search.best_at(own_size),
        highest=search.highest() if ranked else None,
        smallest=search.smallest() if ranked else None,
        changed=search.changed() if ranked and run.changes is not None else None,
        typed=next(iter(search.feasible(_typed(run, search))), None),
        time_s=run.answer_until_s - run.clock.now(),
        spare_s=run.confirm_until_s - run.clock.now(),
        expected_s=search.expected_s,
        kept=list(dict.fromkeys(config for config, _ in known)),
    )


def _typed(run: Run, search: Search) -> list[TrialConfig]:
    """As many workers as cores, pinned, in half the bits."""
    halves: tuple[Precision, ...] = ("bf16", "fp16")
    searched = search.space
    precision = next((each for each in halves if each in searched.recipes), None)
    if run.yours is None or precision is None:
        return []
    workers = max((number for number in searched.num_workers if number <= run.host.num_usable_cores), default=0)
    return [searched.config(run.yours.batch_size, workers, searched.pin_memory[-1], precision)]


def _within_ceiling(run: Run, config: TrialConfig) -> TrialConfig:
    """The same at its precision's safe size, where that was verified after the search and is below its batch."""
    ceiling = next((each for each in run.ceilings if each.precision == config.precision), None)
    size = config.batch_size if ceiling is None else largest_batch(run, ceiling)
    return replace(config, loader=replace(config.loader, batch_size=min(size, config.batch_size)))


def pick_finalists(
    ranked: Sequence[TrialConfig],
    yours: TrialConfig | None,
    trials: Sequence[Trial],
    *,
    at_your_batch: Sequence[TrialConfig] = (),
    highest: TrialConfig | None = None,
    smallest: TrialConfig | None = None,
    changed: TrialConfig | None = None,
    typed: TrialConfig | None = None,
    time_s: float = math.inf,
    spare_s: float = math.inf,
    expected_s: Callable[[TrialConfig], float] = lambda config: 0.0,
    kept: Collection[TrialConfig] = (),
) -> tuple[TrialConfig, ...]:
    """Who is measured again, what matters most first.

    ``ranked``: what the search tried, best first. In any case: the best, the baseline, the best that is not the
    baseline, and the two best ``at_your_batch`` size. Where all can be measured twice in ``time_s``: the best that is
    ``changed`` in its code, and what one would have ``typed`` without measuring. In ``spare_s``: the second best, what
    read ``highest``, and the ``smallest`` that is expected to be as good. Those in ``kept`` were measured again before
    an interruption and stay. ``expected_s``: what measuring one takes that was not tried.
    """
    rivals = [config for config in ranked if config != yours]
    at_batch = [config for config in at_your_batch if config != yours]
    needed = [*ranked[:1], *([] if yours is None else [yours]), *rivals[:1], *at_batch[:2]]
    picked = list(dict.fromkeys([*needed, *kept]))
    wanted = [(each, time_s) for each in (changed, typed)]
    wanted += [(each, spare_s) for each in (*ranked[:2], highest, smallest)]
    for config, within_s in wanted:  # a short one may fit where a long one did not
        if config is not None and config not in picked:
            took_s = math.fsum(MIN_RUNS * _lasts_s(each, trials, expected_s) for each in (*picked, config))
            picked += [config] if took_s <= within_s else []
    return tuple(picked)


def _lasts_s(config: TrialConfig, trials: Sequence[Trial], expected_s: Callable[[TrialConfig], float]) -> float:
    """As long as its trial, or that of its loader and precision under another recipe, or else as trials last and as
    the model expects, whichever is longer."""
    ran = [(trial.config, trial.measurement.seconds) for trial in trials if trial.measurement is not None]
    alike = [each for each in ran if (each[0].loader, each[0].precision) == (config.loader, config.precision)]
    same = [each for each in ran if each[0] == config] or alike[:1]
    mean_s = statistics.fmean(seconds for _, seconds in same or ran) if ran else 0.0
    return mean_s if same else max(mean_s, expected_s(config))


def needed(
    outcomes: Sequence[Outcome],
    configs: Sequence[TrialConfig],
    yours: TrialConfig | None,
    *,
    at_your_batch: bool,
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
