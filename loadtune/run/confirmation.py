"""The final: contestants measured in turn, and what their figures say. Only these are reported."""

import math
from collections import Counter
from contextlib import suppress
from dataclasses import replace

from loadtune.changes.stack import Stack
from loadtune.decide.final import LOOKS, MIN_RUNS, Final, Verdict
from loadtune.decide.search import FEWEST_STEPS, WARM_STEPS, Search
from loadtune.decide.space import SearchSpace, largest_batches
from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.records.config import LoaderConfig, TrialConfig
from loadtune.records.measurement import SAME, ComputePoint, compute_fraction, compute_rate, raise_for_the_user
from loadtune.records.result import Finalist, Remedies, finalist_of
from loadtune.run.state import Resumable, Run, State

COMPUTE_STEPS = WARM_STEPS + FEWEST_STEPS
"""Fewest steps of a compute point: one or more to warm up, two to time."""

MOST_TIMINGS = 3
"""Of one compute-only rate that the trained rate exceeds: on a CPU with other load a timing may be 100 times too slow,
because the threads of a step wait for each other at every operation."""


def confirmation(run: Run, search: Search, stack: Stack | None) -> None:
    """Measure the contestants, the user's settings among them, in turn; judge by those figures alone. ``stack``: the
    changes of the code that were looked at."""
    state, journal, budget, end = run.state, run.journal, run.budget, None
    with journal.stage("confirm"):
        answer_s = budget.measuring_s - search.trial_s  # a run may last longer than expected
        configs = contestants(state, search, answer_s, answer_s * MIN_RUNS / LOOKS[0], budget.measuring_s)
        verdict = Verdict(
            ran=tuple(state.confirmed),
            yours=state.yours,
            batch_size=state.config.yours.batch_size,
            keeps_precision="precision" not in state.assumed,
            trials=state.trials,
            compute_per_s=search.compute_rates(configs),
        )
        final = Final(configs, verdict, lambda: budget.measuring_s, seed=state.config.seed)
        try:
            for config in final.rounds():
                outcome = run.timed(config)
                final.saw(config, outcome)
                state.confirmed, state.finalists = list(final.verdict.ran), final.verdict.finalists
                journal.save()
                journal.tell(state.confirmed[-1])
            state.confirmed_whole = True
        except OutOfTimeError as error:
            end = error  # says where it waited for samples that did not return
        state.finalists = final.verdict.finalists
        if end is None or final.verdict.is_confirmed:
            _conclude(run, final, stack)
        journal.note(final.verdict)
        if end is not None:
            raise end
        for each in state.confirmed if state.best is None else ():  # the user's own code failed, as in a search
            raise_for_the_user(None if each.config.remedies else each.failure)


def contestants(
    state: Resumable, search: Search, answer_s: float, spare_s: float, left_s: float = math.inf
) -> list[TrialConfig]:
    """Who is measured again, what matters most first.

    In any case: the best, the baseline, the best that is not the baseline, the two best at the user's batch size, and
    those that were measured again before an interruption. Each other one where all can be measured twice in time:
    changes of the code, headroom, and what one would type without measuring, in ``answer_s`` s, others in ``spare_s``.
    What cannot be run twice beside the baseline in ``left_s`` s would prove nothing: it gives way to the best that can.
    """
    yours, own_size, ranked = state.yours, state.config.yours.batch_size, _ranked(state, search)
    at_batch = [] if own_size is None else search.best_at(own_size)
    num_ran, own = Counter(each.config for each in state.confirmed if each.measurement), (yours, search.yours)

    def twice_s(config: TrialConfig, tried: TrialConfig) -> float:
        return max(0, MIN_RUNS - num_ran[config]) * search.lasts_s(tried)

    own_s = twice_s(yours, search.yours or yours) if yours is not None and search.feasible([yours]) else 0.0

    def provable(configs: list[TrialConfig]) -> list[TrialConfig]:
        able = [c for c in configs if c not in own and twice_s(c, c) + own_s <= left_s]
        return [c for c in configs if c in own or c in able] if able else configs

    ranked, at_batch = provable(ranked), provable(at_batch)
    rivals, at_batch = ([config for config in each if config != yours] for each in (ranked, at_batch))
    needed = [*ranked[:1], yours, *rivals[:1], *at_batch[:2], *(each.config for each in state.confirmed)]
    picked = [config for config in dict.fromkeys(needed) if config is not None]
    typed = [] if yours is None else usual(yours, search.space, state.share.num_usable_cores)
    wanted = [(each, answer_s) for each in (search.changed(), search.roomiest(picked), *search.feasible(typed)[:1])]
    wanted += [(each, spare_s) for each in (*ranked[:2], search.highest(), search.roomiest())]
    for config, within_s in wanted if ranked else ():  # a short one may fit where a long one did not
        if config is not None and config not in picked:
            takes_s = MIN_RUNS * math.fsum(search.lasts_s(each) for each in (*picked, config))
            picked += [config] if takes_s <= within_s else []
    return picked


def _ranked(state: Resumable, search: Search) -> list[TrialConfig]:
    """What the search tried, best first, each at its precision's safe size, where that was verified after the search
    and is below its batch."""
    ranked, largest = list[TrialConfig](), largest_batches(state.config, state.ceilings)
    for config in search.ranked():
        size = min(config.batch_size, largest.get(config.precision, config.batch_size))
        ranked += [] if config.remedies else [replace(config, loader=replace(config.loader, batch_size=size))]
    if len(state.trials) < 2 and (expected := search.roomiest()) is not None:  # there was no time for more
        ranked.append(expected)
    return list(dict.fromkeys(ranked))


def usual(yours: TrialConfig, space: SearchSpace, num_cores: int) -> list[TrialConfig]:
    """As many workers as cores, pinned, in half the bits; or nothing."""
    recipe = space.recipes.get("bf16") or space.recipes.get("fp16")
    if recipe is None:
        return []
    loader = LoaderConfig(batch_size=yours.batch_size, num_workers=num_cores, pin_memory=space.pin_memory[-1])
    return [space.nearest(TrialConfig(loader=loader, recipe=recipe))]


def _conclude(run: Run, final: Final, stack: Stack | None) -> None:
    """The winners, their share of the compute-only rate, and what the changes of the code gain. Whoever exceeds that
    rate is no winner, so the rate of each that would be one is timed."""
    state, own_size, timed = run.state, final.verdict.batch_size, set[TrialConfig]()
    waiting = [f for f in state.finalists if f.config == state.yours or compute_rate(state.compute_points, f.config)]
    while True:
        for finalist in waiting:
            _time_compute_of(run, finalist)
            timed.add(finalist.config)
        final.verdict = verdict = replace(final.verdict, points=state.compute_points)
        bests = [verdict.best(size) for size in dict.fromkeys((None, own_size))]
        waiting = [best for best in bests if best is not None and best.config not in timed]
        if not waiting:
            break
    state.finalists, state.best = verdict.finalists, verdict.winner()
    if own_size is not None and (at_yours := verdict.winner(own_size)) is not None:
        is_best = state.best is not None and at_yours.config == state.best.config
        state.best_at_your_batch = state.best if is_best else at_yours
    if stack is not None and (winner := finalist_of(state.finalists, state.best)) is not None:
        state.remedies = _judge_changes(state, stack, verdict, winner)


# Changes of the code


def _judge_changes(state: State, stack: Stack, verdict: Verdict, best: Finalist) -> Remedies:
    """What the contestant with changes gains over the best. Where it has one alone, what was measured is of that one;
    else it is of all together."""
    changed = next((finalist for finalist in state.finalists if finalist.config.remedies), None)
    gain = None if changed is None else verdict.ratio(changed, best, 1)
    is_sure = gain is not None and gain.value >= 1 + SAME and (gain.low or 0.0) > 1.0
    is_kept = changed is not None and changed.unconfirmed is None and is_sure
    config = stack.config if changed is None else changed.config
    ran = () if changed is None else config.remedies
    missing = "too little of the time budget was left" if changed is None else "the model expects more without it"
    why = {name: f"it failed: {each.message.rstrip('.')}" for other, each in state.failed for name in other.remedies}
    why |= dict.fromkeys(ran, "measured with the others")
    tried = [
        replace(
            each,
            gain=gain if ran == (each.name,) else None,
            reason=None if ran == (each.name,) else why.get(each.name, missing),
        )
        for each in stack.tried(config)
    ]
    return Remedies(tried=tuple(tried), config=config if is_kept else None, gain=gain)


# Steps without a loader


def _time_compute_of(run: Run, finalist: Finalist) -> None:
    """The compute-only rate of exactly this finalist, where it was not timed, or reads less than training did.

    It is timed again then, because other load may have slowed the timing down. Nothing happens where the time is spent.
    """
    state, budget, config = run.state, run.budget, finalist.config
    for _ in range(MOST_TIMINGS):
        if compute_fraction(state.compute_points, config, finalist.samples_per_s) is not None:
            return
        point, takes_s = None, COMPUTE_STEPS * config.batch_size / finalist.samples_per_s
        if takes_s <= budget.left_s:
            with suppress(LoadtuneError):  # the answer does not depend on it
                point = run.training.time_compute(config.recipe, config.batch_size, min(1.0, 0.1 * budget.left_s))
        if not isinstance(point, ComputePoint):
            return
        # One point for each recipe and batch size: the fastest timing of it, and how many there were.
        same = [p for p in state.compute_points if (p.recipe, p.batch_size) == (point.recipe, point.batch_size)]
        fastest = max([*(p for p in same if p.num_timings), point], key=lambda each: each.samples_per_s)
        kept = replace(fastest, num_timings=sum(p.num_timings for p in (*same, point)))
        state.compute_points = (*(p for p in state.compute_points if p not in same), kept)
        run.journal.save()
