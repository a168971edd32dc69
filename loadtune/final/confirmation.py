"""The final: contestants measured in turn, and what their figures say. Only these are reported."""

from collections.abc import Sequence
from dataclasses import replace

from loadtune.changes import in_order
from loadtune.changes.stack import NO_TIME, Stack, failed_text
from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.final.doubts import is_doubted, note_best, note_failures, ruled_out
from loadtune.final.rounds import alternate, barred, contestants, needed
from loadtune.final.winner import Outcome, Verdict, as_finalist, difference, finalists
from loadtune.records.answer import Failed, compute_fraction, compute_rate
from loadtune.records.config import TrialConfig
from loadtune.records.facts import WorkloadFacts
from loadtune.records.interval import Interval
from loadtune.records.measurement import ComputePoint, Measurement, TrialFailure
from loadtune.records.result import Finalist, Remedies, TriedRemedy, Winner
from loadtune.report.wording import settings_text
from loadtune.run import FINAL_SHARE, Confirmed, Run
from loadtune.search.search import Search
from loadtune.search.segment import note_disturbance, outcome_text, timed

COMPUTE_STEPS = 4
"""Fewest steps of a compute point: one or more to warm up, two to time."""

MOST_TIMINGS = 3
"""Of one compute-only rate that the trained rate exceeds: on a CPU with other load a timing may be 100 times too slow,
because the threads of a step wait for each other at every operation."""

WORTH_KEEPING = 1.01
"""Measured gain from which on a change of the code is worth it."""


def confirmation(run: Run, facts: WorkloadFacts, search: Search) -> None:
    """Measure the contestants, the user's settings among them, in turn; judge by those figures alone."""
    with run.stage("confirm"):
        end = None
        try:
            if run.concluded_s is None:
                _measure(run, search)
            run.finalists, run.confirmed_whole = finalists(_outcomes(run), run.trials), True
        except OutOfTimeError as error:
            end = error  # says where it waited for samples that did not return
        ran = {finalist.config for finalist in run.finalists}
        failed = [(c, last) for c, last in _outcomes(run) if c not in ran and isinstance(last, TrialFailure)]
        if end is None or _is_confirmed(run, failed):
            _conclude(run, failed)
        else:
            note_failures(run, failed)
        if end is not None:
            raise end


def _outcomes(run: Run) -> list[Outcome]:
    """All runs of the confirmation until now, also those of before an interruption."""
    return [(each.config, outcome) for each in run.confirmed if (outcome := each.measurement or each.failure)]


def _measure(run: Run, search: Search) -> None:
    """The rounds, to their end."""
    at_your_batch, known = run.config.yours.batch_size is not None, _outcomes(run)
    configs = contestants(run, search, known)
    _compile_ahead(run, [config for config in configs if config not in barred(known)])

    def measured(config: TrialConfig) -> Measurement | TrialFailure:
        outcome = timed(run, config)
        measurement, failure = (outcome, None) if isinstance(outcome, Measurement) else (None, outcome)
        run.confirmed.append(Confirmed(config=config, measurement=measurement, failure=failure))
        run.save()
        return outcome

    rounds = alternate(
        configs,
        measured,
        run.clock,
        run.confirm_until_s,
        needed=lambda seen, able: needed(seen, able, run.yours, at_your_batch=at_your_batch),
        undecided=lambda seen: _undecided(run, finalists(seen, run.trials)),
        answer_by_s=run.answer_until_s,
        known=known,
        seed=run.config.seed,
    )
    for outcome in rounds:
        run.finalists = finalists(_outcomes(run), run.trials)
        run.tell(outcome_text(*outcome))
    run.concluded_s = run.config.time_budget_s
    run.save()


def _judged(
    run: Run, measured: Sequence[Finalist], failed: Sequence[Failed] = (), points: Sequence[ComputePoint] = ()
) -> Verdict:
    """Of these finalists, each with what rules it out. ``failed``: configurations that never ran in the final."""
    judged = ruled_out(measured, run.trials, failed=failed, compute_points=points)
    return Verdict(judged, run.yours)


def _sizes(run: Run) -> set[int | None]:
    """There are two answers where the user gave a batch size: at any, and at that."""
    return {None, run.config.yours.batch_size}


def _is_confirmed(run: Run, failed: Sequence[Failed]) -> bool:
    """Whether a final that the time budget ended has its answers."""
    verdict = _judged(run, run.finalists, failed)
    run.finalists = verdict.finalists
    return all(verdict.is_confirmed(size) for size in _sizes(run))


def _undecided(run: Run, measured: Sequence[Finalist]) -> set[TrialConfig]:
    """Who has to be run again for the answers, and for what changes of the code gain."""
    verdict = _judged(run, measured)
    return {config for size in _sizes(run) for config in verdict.undecided(size)} | {*verdict.undecided_change()}


def _conclude(run: Run, failed: Sequence[Failed]) -> None:
    """The winners, their share of the compute-only rate, and notes on what to know before trusting them."""
    for finalist in run.finalists:
        if finalist.config == run.yours or is_doubted(run.compute_points, finalist):
            _time_compute_of(run, finalist)
    run.best = _winner(run, failed, None)
    if run.yours is not None and run.config.yours.batch_size is not None:
        run.best_at_your_batch = _winner(run, failed, run.yours.batch_size)
    best = as_finalist(run.best, run.finalists)
    if best is not None and run.changes is not None:
        run.remedies = _judge_changes(run, run.changes, best, failed)
        run.save()
    note_failures(run, failed)
    note_disturbance(run)
    if best is not None:
        note_best(run, best)


def _winner(run: Run, failed: Sequence[Failed], batch_size: int | None) -> Winner | None:
    """The best finalist that nothing rules out, also not its compute-only rate, which is timed here."""
    before = None
    for _ in range(1 + len(run.finalists)):
        verdict = _judged(run, run.finalists, failed, run.compute_points)
        run.finalists, picked = verdict.finalists, verdict.winner(batch_size)
        best = as_finalist(picked, run.finalists)
        if best is None or picked == before:
            break
        before = picked
        _time_compute_of(run, best)
    if picked is None:
        return None
    return replace(picked, compute_fraction=compute_fraction(run.compute_points, picked.config, picked.samples_per_s))


# Changes of the code


def _judge_changes(run: Run, stack: Stack, best: Finalist, failed: Sequence[Failed]) -> Remedies:
    """What the contestant with changes gains over the best. ``failed``: of the final, those that never ran there."""
    changed = next((finalist for finalist in run.finalists if finalist.config.remedies), None)
    gain = None if changed is None else difference(changed, best, run.finalists, 1)
    is_sure = gain is not None and gain.value >= WORTH_KEEPING and gain.low is not None and gain.low > 1.0
    kept = changed if changed is not None and is_sure and changed.unconfirmed is None else None
    tried = _tried(run, stack, best, changed, gain, [*failed, *run.failed])
    if kept is not None:
        tried = [replace(each, kept=each.name in kept.config.remedies) for each in tried]
    found = Remedies(tried=tuple(tried), left_out=tuple(stack.left_out.values()), gain=gain)
    return found if kept is None else replace(found, config=kept.config, samples_per_s=kept.throughput)


def _tried(
    run: Run, stack: Stack, best: Finalist, changed: Finalist | None, gain: Interval | None, failed: Sequence[Failed]
) -> list[TriedRemedy]:
    """Each that was stacked. Where one alone ran, what was measured is its own; else it is that of all together."""
    config = stack.config if changed is None else changed.config
    ran = () if changed is None else config.remedies
    why = {name: failed_text(failure) for other, failure in reversed(failed) for name in other.remedies}
    tried = list[TriedRemedy]()
    for number, step in enumerate(stack.steps):
        name = step.remedy.name
        why_not = why.get(name, NO_TIME if changed is None else "the model expects more without it")
        differs = [text for text in (step.remedy.changes, step.seen.difference) if text not in (None, "nothing")]
        one = TriedRemedy(
            name=name,
            title=step.remedy.title,
            changes="; ".join(differs) or "nothing",
            code=step.remedy.code(replace(stack.at, config=config), step.seen),
            base=replace(stack.at.config, remedies=in_order(stack.names[:number])),
            config=config,
            predicted=step.predicted,
            reason="measured with the others" if name in ran else why_not,
        )
        if changed is not None and ran == (name,):
            one = replace(one, base=best.config, gain=gain, reason=None)
        tried.append(one)
    return tried


# Steps without a loader


def _time_compute_of(run: Run, finalist: Finalist) -> None:
    """The compute-only rate of exactly this finalist, where it was not timed, or reads less than training did.

    It is timed again then, because other load may have slowed the timing down. Nothing happens where the time is spent.
    """
    config = finalist.config
    for _ in range(MOST_TIMINGS):
        if compute_rate(run.compute_points, config) and not is_doubted(run.compute_points, finalist):
            return
        steps_s = COMPUTE_STEPS * config.batch_size / finalist.samples_per_s
        if _compile_seconds(run, config) + steps_s > run.left_s:
            return
        try:
            point = run.training.time_compute(config.recipe, config.batch_size, min(1.0, 0.1 * run.left_s))
        except LoadtuneError as error:  # the answer does not depend on it
            run.tell(f"The compute-only rate of {settings_text(config)} was not timed: {error}", warning=True)
            return
        if isinstance(point, TrialFailure):
            return
        run.trained.add((config.recipe, config.batch_size))
        run.compute_points = _with_point(run.compute_points, point)
        run.save()


def _with_point(points: tuple[ComputePoint, ...], new: ComputePoint) -> tuple[ComputePoint, ...]:
    """One point for each recipe and batch size: the fastest timing of it, and how many there were."""
    same = [p for p in points if (p.recipe, p.batch_size) == (new.recipe, new.batch_size)]
    fastest = max([*(p for p in same if p.num_timings), new], key=lambda point: point.samples_per_s)
    num_timings = sum(point.num_timings for point in (*same, new))
    return (*(point for point in points if point not in same), replace(fastest, num_timings=num_timings))


def _compile_seconds(run: Run, config: TrialConfig) -> float:
    """Predicted for compiling this batch size now, by the longest that was seen; 0: the training has it, or need not.
    The training of a resumed run has compiled nothing of what was kept."""
    if not config.recipe.compile or (config.recipe, config.batch_size) in run.trained:
        return 0.0
    points = (*run.compute_points, *(point for choice in run.recipes for point in choice.points))
    return max((point.compile_s or 0.0 for point in points), default=0.0)


def _compile_ahead(run: Run, configs: Sequence[TrialConfig]) -> None:
    """Compile what is about to be timed, because that takes longer than any run: the first in any case, the others
    while the final's time is left. A failure here is left alone: the run that times it fails too, and reports it."""
    for number, config in enumerate(configs):
        needed_s = _compile_seconds(run, config)
        if not needed_s or (number > 0 and needed_s + FINAL_SHARE * run.config.time_budget_s > run.left_s):
            continue
        run.tell(f"torch.compile runs again for batch {config.batch_size}")
        try:
            point = run.training.time_compute(config.recipe, config.batch_size, 0.0)
        except LoadtuneError:
            return
        if isinstance(point, ComputePoint):
            run.trained.add((config.recipe, config.batch_size))
