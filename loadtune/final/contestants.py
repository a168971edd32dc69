"""Who is measured again: the baseline, the best, the best at the user's batch size, the best with changes of the code,
and what one would type without measuring."""

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from loadtune.final.rounds import Outcome, barred
from loadtune.final.statistics import finalists
from loadtune.records.config import Objective, Precision, TrialConfig
from loadtune.records.measurement import Measurement
from loadtune.records.result import Trial
from loadtune.run import Run
from loadtune.search.search import MIN_RUNS, Search
from loadtune.search.span import largest_batch

WITH_THE_REST = 1.5
"""Times its first batch and its windows that a run lasts, with its preparing, warming up and ending: 1.3 to 1.5 in the
median of four sets of runs on an H200, 2.0 on two cores, where little is compiled."""


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
    if config.batch_size <= size:
        return config
    run.note(
        f"Some trials in {config.precision} had a batch size above {size}, the safe size found after the search. "
        f"The confirmation uses {size} instead."
    )
    return replace(config, loader=replace(config.loader, batch_size=size))


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
    read ``highest``, and the ``smallest`` that is expected to be as good.
    Those in ``kept`` were measured again before an interruption and stay. ``expected_s``: what measuring one takes that
    was not tried.
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
    ran = [(trial.config, trial.measurement) for trial in trials if trial.measurement is not None]
    alike = [each for each in ran if (each[0].loader, each[0].precision) == (config.loader, config.precision)]
    same = [each for each in ran if each[0] == config] or alike[:1]
    took = [_trial_s(*each) for each in same or ran]
    mean_s = statistics.fmean(took) if took else 0.0
    return mean_s if same else max(mean_s, expected_s(config))


def _trial_s(config: TrialConfig, measured: Measurement) -> float:
    """What its trial took; of a compiled one what the compiler has no part in."""
    if not config.recipe.compile:
        return measured.seconds
    loaded_s = measured.first_batch_s + math.fsum(window.seconds for window in measured.windows)
    return min(measured.seconds, WITH_THE_REST * loaded_s)


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
