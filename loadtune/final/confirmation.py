"""The final: contestants measured in turn, and what their figures say. Only these are reported."""

from collections.abc import Sequence
from dataclasses import replace

from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.final.code import judge_changes
from loadtune.final.contestants import contestants, needed
from loadtune.final.notes import note_best, note_failures
from loadtune.final.rounds import Outcome, alternate, barred
from loadtune.final.ruled_out import is_doubted, ruled_out
from loadtune.final.statistics import finalists
from loadtune.final.winner import Verdict, as_finalist
from loadtune.records.answer import Failed, compute_fraction, compute_rate
from loadtune.records.config import TrialConfig
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import ComputePoint, Measurement, TrialFailure
from loadtune.records.result import Finalist, Winner
from loadtune.report.wording import settings_text
from loadtune.run import FINAL_SHARE, Run
from loadtune.run_file import Confirmed
from loadtune.search.feasible import note_lost_memory
from loadtune.search.search import Search
from loadtune.search.segment import note_disturbance, outcome_text, timed

COMPUTE_STEPS = 4
"""Fewest steps of a compute point: one or more to warm up, two to time."""

MOST_TIMINGS = 3
"""Of one compute-only rate that the trained rate exceeds: on a CPU with other load a timing may be 100 times too slow,
because the threads of a step wait for each other at every operation."""


def confirmation(run: Run, facts: WorkloadFacts, search: Search) -> None:
    """Measure the contestants, the user's settings among them, in turn; judge by those figures alone."""
    with run.stage("confirm"):
        note_lost_memory(run)
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
            _conclude(run, facts, failed)
        else:
            note_failures(run, failed)
        if end is not None:
            raise end


def _outcomes(run: Run) -> list[Outcome]:
    """All runs of the confirmation until now, also those of before an interruption."""
    return [(each.config, outcome) for each in run.confirmed if (outcome := each.measurement or each.failure)]


def _measure(run: Run, search: Search) -> None:
    """The rounds, to their end."""
    objective, at_your_batch, known = run.config.objective, run.config.yours.batch_size is not None, _outcomes(run)
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
        needed=lambda seen, able: needed(seen, able, run.yours, at_your_batch=at_your_batch, objective=objective),
        undecided=lambda seen: _undecided(run, finalists(seen, run.trials)),
        answer_by_s=run.answer_until_s,
        known=known,
        seed=run.config.seed,
    )
    for outcome in rounds:
        run.finalists = finalists(_outcomes(run), run.trials)
        run.tell(outcome_text(*outcome, objective))
    run.concluded_s = run.config.time_budget_s
    run.save()


def _judged(
    run: Run, measured: Sequence[Finalist], failed: Sequence[Failed] = (), points: Sequence[ComputePoint] = ()
) -> Verdict:
    """Of these finalists, each with what rules it out. ``failed``: configurations that never ran in the final."""
    objective = run.config.objective
    judged = ruled_out(measured, run.trials, failed=failed, compute_points=points, objective=objective)
    return Verdict(judged, run.yours, objective)


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


def _conclude(run: Run, facts: WorkloadFacts, failed: Sequence[Failed]) -> None:
    """The winners, their share of the compute-only rate, and notes on what to know before trusting them."""
    for finalist in run.finalists:
        if finalist.config == run.yours or is_doubted(run.compute_points, finalist):
            _time_compute_of(run, finalist)
    run.best = _winner(run, failed, None)
    if run.yours is not None and run.config.yours.batch_size is not None:
        run.best_at_your_batch = _winner(run, failed, run.yours.batch_size)
    best = as_finalist(run.best, run.finalists)
    if best is not None and run.changes is not None:
        run.remedies = judge_changes(run, run.changes, best, failed)
        run.save()
    note_failures(run, failed)
    note_disturbance(run)
    if best is not None:
        note_best(run, facts, best)


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
