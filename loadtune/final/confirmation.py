"""The final: contestants measured in turn, and what their figures say. Only these are reported."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from loadtune.changes.stack import Stack
from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.final.doubts import doubts
from loadtune.final.rounds import Final, pick_finalists, usual
from loadtune.final.winner import Verdict
from loadtune.records.answer import Failed, compute_fraction, compute_rate, finalist_of
from loadtune.records.config import TrialConfig
from loadtune.records.measurement import ComputePoint, raise_for_the_user
from loadtune.records.result import Finalist, Remedies, TriedRemedy, Winner
from loadtune.run.budget import FINAL_SHARE, Budget
from loadtune.run.measure import Run, outcome_text
from loadtune.run.state import State
from loadtune.search.search import MIN_TRIALS, Search
from loadtune.search.space import largest_batches
from loadtune.statistics.interval import Interval

COMPUTE_STEPS = 4
"""Fewest steps of a compute point: one or more to warm up, two to time."""

MOST_TIMINGS = 3
"""Of one compute-only rate that the trained rate exceeds: on a CPU with other load a timing may be 100 times too slow,
because the threads of a step wait for each other at every operation."""

WORTH_KEEPING = 1.01
"""Measured gain from which on a change of the code is worth it."""


def confirmation(run: Run, search: Search, stack: Stack | None) -> None:
    """Measure the contestants, the user's settings among them, in turn; judge by those figures alone. ``stack``: the
    changes of the code that were looked at."""
    state, journal, end = run.state, run.journal, None
    with journal.stage("confirm"):
        final = _final(run, search)
        try:
            for config in final.rounds():
                outcome = run.timed(config)
                final.saw(config, outcome)
                state.confirmed, state.finalists = list(final.verdict.ran), final.verdict.finalists
                journal.save()
                journal.tell(outcome_text(config, outcome))
            state.confirmed_whole = True
        except OutOfTimeError as error:
            end = error  # says where it waited for samples that did not return
        state.finalists = final.verdict.finalists
        if end is None or final.verdict.is_confirmed:
            _conclude(run, final, stack)
        journal.note(*doubts(final.verdict, state.host, state.best, state.best_at_your_batch))
        if end is not None:
            raise end
        for each in state.confirmed if state.best is None else ():  # the user's own code failed, as in a search
            raise_for_the_user(None if each.config.remedies else each.failure)


def _final(run: Run, search: Search) -> Final:
    """Of the contestants, once they are compiled."""
    state, budget = run.state, run.budget
    verdict = Verdict(
        ran=tuple(state.confirmed),
        yours=state.yours,
        batch_size=state.config.yours.batch_size,
        keeps_precision="precision" not in state.assumed,
        trials=state.trials,
    )
    configs = _contestants(state, budget, search)
    _compile_ahead(run, [config for config in configs if config not in verdict.barred])
    return Final(configs, verdict, budget.clock, budget.confirm_until_s, budget.answer_until_s, seed=state.config.seed)


def _contestants(state: State, budget: Budget, search: Search) -> tuple[TrialConfig, ...]:
    """Those of this run, those first that the answer needs most."""
    own_size, largest = state.config.yours.batch_size, largest_batches(state.config, state.ceilings)

    def within_ceiling(config: TrialConfig) -> TrialConfig:
        """At its precision's safe size, where that was verified after the search and is below its batch."""
        size = min(config.batch_size, largest.get(config.precision, config.batch_size))
        return replace(config, loader=replace(config.loader, batch_size=size))

    ranked = list(dict.fromkeys(within_ceiling(config) for config in search.ranked() if not config.remedies))
    if len(state.trials) < MIN_TRIALS:  # there was no time for more
        ranked += [config for config in (search.smallest(),) if config is not None]
    answer_s, spare_s = (until_s - budget.clock() for until_s in (budget.answer_until_s, budget.confirm_until_s))
    wanted = list[tuple[TrialConfig | None, float]]()
    if ranked:
        typed = [] if state.yours is None else usual(state.yours, search.space, state.host.num_usable_cores)
        wanted = [(each, answer_s) for each in (search.changed(), *search.feasible(typed)[:1])]
        wanted += [(each, spare_s) for each in (*ranked[:2], search.highest(), search.smallest())]
    at_batch, kept = [] if own_size is None else search.best_at(own_size), [each.config for each in state.confirmed]
    return pick_finalists(ranked, state.yours, wanted, at_your_batch=at_batch, kept=kept, lasts_s=search.lasts_s)


def _conclude(run: Run, final: Final, stack: Stack | None) -> None:
    """The winners, their share of the compute-only rate, and what the changes of the code gain."""
    state = run.state
    for finalist in state.finalists:
        if finalist.config == state.yours or compute_rate(state.compute_points, finalist.config):
            _time_compute_of(run, finalist)
    state.best = best = _winner(run, final, None)
    if final.verdict.batch_size is not None:
        at_yours = _winner(run, final, final.verdict.batch_size)
        state.best_at_your_batch = best if best and at_yours and at_yours.config == best.config else at_yours
    if stack is not None and (winner := finalist_of(state.finalists, best)) is not None:
        state.remedies = _judge_changes(state, stack, final.verdict, winner)


def _winner(run: Run, final: Final, batch_size: int | None) -> Winner | None:
    """The best finalist that nothing rules out, also not its compute-only rate, which is timed here."""
    state, before = run.state, None
    while True:
        final.verdict = verdict = replace(final.verdict, points=state.compute_points)
        state.finalists, picked, best = verdict.finalists, verdict.winner(batch_size), verdict.best(batch_size)
        if best is None or picked == before:
            return picked
        before = picked
        _time_compute_of(run, best)


# Changes of the code


def _judge_changes(state: State, stack: Stack, verdict: Verdict, best: Finalist) -> Remedies:
    """What the contestant with changes gains over the best."""
    changed = next((finalist for finalist in state.finalists if finalist.config.remedies), None)
    gain = None if changed is None else verdict.ratio(changed, best, 1)
    is_sure = gain is not None and gain.value >= WORTH_KEEPING and gain.low is not None and gain.low > 1.0
    kept = changed if changed is not None and is_sure and changed.unconfirmed is None else None
    return Remedies(
        tried=tuple(_tried(state.failed, stack, changed, gain, kept)),
        config=None if kept is None else kept.config,
        samples_per_s=None if kept is None else kept.throughput,
        gain=gain,
    )


def _tried(
    failed: Sequence[Failed], stack: Stack, changed: Finalist | None, gain: Interval | None, kept: Finalist | None
) -> Iterator[TriedRemedy]:
    """Each that was stacked. Where one alone ran, what was measured is its own; else it is that of all together."""
    config = stack.config if changed is None else changed.config
    ran = () if changed is None else config.remedies
    why = {name: f"it failed: {failure.message.rstrip('.')}" for other, failure in failed for name in other.remedies}
    missing = "too little of the time budget was left" if changed is None else "the model expects more without it"
    for step in stack.steps:
        name = step.remedy.name
        differs = [text for text in (step.remedy.changes, step.seen.difference) if text not in (None, "nothing")]
        is_alone = ran == (name,)
        yield TriedRemedy(
            name=name,
            title=step.remedy.title,
            changes="; ".join(differs) or "nothing",
            code=step.remedy.code(replace(stack.at, config=config), step.seen),
            config=config,
            predicted=step.predicted,
            gain=gain if is_alone else None,
            kept=kept is not None and name in ran,
            reason=None if is_alone else "measured with the others" if name in ran else why.get(name, missing),
        )


# Steps without a loader


def _time_compute_of(run: Run, finalist: Finalist) -> None:
    """The compute-only rate of exactly this finalist, where it was not timed, or reads less than training did.

    It is timed again then, because other load may have slowed the timing down. Nothing happens where the time is spent.
    """
    state, budget, config = run.state, run.budget, finalist.config
    for _ in range(MOST_TIMINGS):
        if compute_fraction(state.compute_points, config, finalist.samples_per_s) is not None:
            return
        takes_s = _compile_seconds(run, config) + COMPUTE_STEPS * config.batch_size / finalist.samples_per_s
        point = _compute_point(run, config, min(1.0, 0.1 * budget.left_s)) if takes_s <= budget.left_s else None
        if point is None:
            return
        # One point for each recipe and batch size: the fastest timing of it, and how many there were.
        same = [p for p in state.compute_points if (p.recipe, p.batch_size) == (point.recipe, point.batch_size)]
        fastest = max([*(p for p in same if p.num_timings), point], key=lambda each: each.samples_per_s)
        kept = replace(fastest, num_timings=sum(p.num_timings for p in (*same, point)))
        state.compute_points = (*(p for p in state.compute_points if p not in same), kept)
        run.journal.save()


def _compute_point(run: Run, config: TrialConfig, seconds: float) -> ComputePoint | None:
    """None: it could not be timed, and the answer does not depend on it."""
    with suppress(LoadtuneError):
        point = run.training.time_compute(config.recipe, config.batch_size, seconds)
        if isinstance(point, ComputePoint):
            run.trained.add((config.recipe, config.batch_size))
            return point
    return None


def _compile_seconds(run: Run, config: TrialConfig) -> float:
    """Predicted for compiling this batch size now, by the longest that was seen; 0: the training has it, or need not.
    The training of a resumed run has compiled nothing of what was kept."""
    if not config.recipe.compile or (config.recipe, config.batch_size) in run.trained:
        return 0.0
    points = (*run.state.compute_points, *(point for choice in run.state.recipes for point in choice.points))
    return max((point.compile_s or 0.0 for point in points), default=0.0)


def _compile_ahead(run: Run, configs: Sequence[TrialConfig]) -> None:
    """Compile what is about to be timed, because that takes longer than any run: the first in any case, the others
    while the final's time is left. A failure here is left alone: the run that times it fails too, and reports it."""
    for number, config in enumerate(configs):
        needed_s = _compile_seconds(run, config)
        if not needed_s or (number > 0 and needed_s + FINAL_SHARE * run.budget.total_s > run.budget.left_s):
            continue
        run.journal.tell(f"torch.compile runs again for batch {config.batch_size}")
        if _compute_point(run, config, 0.0) is None:
            return
