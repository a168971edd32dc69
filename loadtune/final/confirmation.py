"""The final: contestants measured in turn, and what their figures say. Only these are reported."""

from collections.abc import Sequence
from dataclasses import replace

from loadtune.changes.stack import Stack
from loadtune.contention import check_budget
from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.final.contestants import contestants, needed
from loadtune.final.failed import note_failures
from loadtune.final.rounds import Outcome, alternate, barred
from loadtune.final.statistics import difference, finalists
from loadtune.final.winner import is_confirmed, not_told_apart, pick_winner, undecided, undecided_change
from loadtune.probe.memory import left_over_note
from loadtune.records import (
    ComputePoint,
    Finalist,
    Measurement,
    Ratio,
    TrialConfig,
    TrialFailure,
    Winner,
    WorkloadFacts,
)
from loadtune.records.confirmed import (
    MISREAD,
    Failed,
    compute_fraction,
    compute_rate,
    contradiction_text,
    is_doubted,
    ruled_out,
)
from loadtune.report.wording import score_text, settings_text
from loadtune.run import FINAL_SHARE, Run
from loadtune.run_file import Confirmed
from loadtune.search.search import Search
from loadtune.search.timing import note_disturbance, outcome_text, timed
from loadtune.units import counted, seconds_text

COMPUTE_STEPS = 4
"""Fewest steps of a compute point: one or more to warm up, two to time."""

MOST_TIMINGS = 3
"""Of one compute-only rate that the trained rate exceeds: on a CPU with other load a timing may be 100 times too slow,
because the threads of a step wait for each other at every operation."""

SKIPPED = 0.1
"""Share of the winner's timed steps from which on skipped ones are reported: fewer change its rate less than noise."""

BY_ENERGY = (
    "The best configuration trains the most samples per joule of the GPU's board; another one may be faster. The "
    "energy of the rest of the machine is not included. The recipe of each precision was chosen for its speed."
)


def confirmation(run: Run, facts: WorkloadFacts, search: Search) -> None:
    """Measure the contestants, the user's settings among them, in turn; judge by those figures alone."""
    with run.stage("confirm"):
        check_budget(run)
        known, end = _outcomes(run), None
        if _has_ended(run, known):
            run.finalists, run.confirmed_whole = finalists(known, run.trials), True
        else:
            configs = contestants(run, search, known)
            _compile_ahead(run, [config for config in configs if config not in barred(known)])
            try:
                _measure(run, configs, known)
            except OutOfTimeError as error:
                end = error  # says where it waited for samples that did not return
        ran = {finalist.config for finalist in run.finalists}
        failed = [(c, last) for c, last in _outcomes(run) if c not in ran and isinstance(last, TrialFailure)]
        if end is not None and not _is_confirmed(run, failed):
            note_failures(run, failed)
            raise end
        _conclude(run, facts, failed)
        if end is not None:
            raise end


def _outcomes(run: Run) -> list[Outcome]:
    """All runs of the confirmation until now, also those of before an interruption."""
    return [(each.config, outcome) for each in run.confirmed if (outcome := each.measurement or each.failure)]


def _measure(run: Run, configs: Sequence[TrialConfig], known: Sequence[Outcome]) -> None:
    """The rounds, to their end."""
    objective, at_your_batch = run.config.objective, run.config.yours.batch_size is not None

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
    run.confirmed_whole = True


def _has_ended(run: Run, known: Sequence[Outcome]) -> bool:
    """Whether the final ended by itself before an interruption, no more time is given now, and nothing that failed once
    is to be asked again."""
    concluded_s = run.concluded_s if known else None
    owed = {config for config, last in dict(known).items() if isinstance(last, TrialFailure)} - barred(known)
    return concluded_s is not None and run.config.time_budget_s <= concluded_s and not owed


def _is_confirmed(run: Run, failed: Sequence[Failed]) -> bool:
    """Whether a final that the time budget ended has an answer, also at the user's batch size if given."""
    objective = run.config.objective
    run.finalists = ruled_out(run.finalists, run.trials, failed=failed, objective=objective)
    sizes = {None, run.config.yours.batch_size}
    return all(is_confirmed(run.finalists, run.yours, batch_size=size, objective=objective) for size in sizes)


def _undecided(run: Run, measured: Sequence[Finalist]) -> set[TrialConfig]:
    """Who has to be run again for the answer, and for the one at the user's batch size where that was given."""
    yours, objective = run.yours, run.config.objective
    judged = ruled_out(measured, run.trials, objective=objective)
    sizes = {None, run.config.yours.batch_size}
    again = {c for size in sizes for c in undecided(judged, yours, batch_size=size, objective=objective)}
    return again | set(undecided_change(judged, pick_winner(judged, yours, objective=objective), objective))


def _conclude(run: Run, facts: WorkloadFacts, failed: Sequence[Failed]) -> None:
    """The winners, their share of the compute-only rate, and notes on what to know before trusting them."""
    for finalist in run.finalists:
        if finalist.config == run.yours or is_doubted(run.compute_points, finalist):
            _time_compute_of(run, finalist)
    run.best = _winner(run, failed, None)
    if run.yours is not None and run.config.yours.batch_size is not None:
        run.best_at_your_batch = _winner(run, failed, run.yours.batch_size)
    if run.best is not None and run.changes is not None:
        _judge_changes(run, run.changes, _finalist(run, run.best), failed)
    note_failures(run, failed)
    note_disturbance(run)
    if run.best is not None:
        run.note(BY_ENERGY if run.config.objective == "samples-per-joule" else None)
        run.note(left_over_note(facts.dataset_length, run.best.config.batch_size, facts.min_batch_size))
        _note_best(run, run.best)


def _judge_changes(run: Run, stack: Stack, best: Finalist, failed: Sequence[Failed]) -> None:
    """What the contestant with changes of the code gains over the best."""
    objective, gain = run.config.objective, None
    changed = next((finalist for finalist in run.finalists if finalist.config.remedies), None)
    if changed is not None:
        ratio, low, high = difference(changed, best, run.finalists, 1, objective)
        gain = Ratio(ratio=ratio, low=low, high=high)
    failures, points = [*failed, *run.failed], run.compute_points
    run.remedies = stack.outcome(best, changed, gain, failures, compute_points=points, objective=objective)
    run.save()


def _winner(run: Run, failed: Sequence[Failed], batch_size: int | None) -> Winner | None:
    """The best finalist that nothing rules out, also not its compute-only rate, which is timed here."""
    objective, picked = run.config.objective, None
    for _ in range(1 + len(run.finalists)):
        run.finalists = ruled_out(
            run.finalists, run.trials, failed=failed, compute_points=run.compute_points, objective=objective
        )
        again = pick_winner(run.finalists, run.yours, batch_size=batch_size, objective=objective)
        if again is None or again == picked:
            break
        picked = again
        _time_compute_of(run, _finalist(run, picked))
    if again is None:
        return None
    return replace(again, compute_fraction=compute_fraction(run.compute_points, again.config, again.samples_per_s))


def _note_best(run: Run, best: Winner) -> None:
    """What to know of the winner before trusting it."""
    winner, objective = _finalist(run, best), run.config.objective
    if best.measured_once:
        run.note(
            "Each configuration was measured once, because the time was spent. So no rate has an interval, and nothing "
            f"is confirmed. Give more than {seconds_text(run.config.time_budget_s)} with --time-budget."
        )
    point = compute_rate(run.compute_points, winner.config)
    if point is not None and winner.samples_per_s > MISREAD * point.samples_per_s:  # within its noise
        run.note(
            f"Of the best configuration: {contradiction_text(winner, point)} The compute-only rate is left out of all "
            "other statements."
        )
    counted_in = [window for each in winner.runs for window in each.windows]  # what settled before them is in no rate
    num_skipped, num_steps = sum(w.num_skipped_steps for w in counted_in), sum(w.num_steps for w in counted_in)
    if num_skipped > SKIPPED * num_steps:  # a skipped step leaves the optimizer out
        run.note(
            f"GradScaler skipped the optimizer in {num_skipped} of the {counted(num_steps, 'step')} that were timed of "
            "the best configuration. Skipped steps are faster than others. Check that the model trains in fp16, or "
            "leave fp16 out with --precision."
        )
    rivals = [
        f for f in not_told_apart(best, run.finalists, objective) if f.config != run.yours and f.unconfirmed is None
    ]
    if rivals:
        named = "; ".join(
            f"{settings_text(f.config)} ({score_text(f.scored(objective).value, objective)})" for f in rivals
        )
        how = "fast" if objective == "samples-per-s" else "efficient"
        run.note(f"These may be as {how} as the best or more so, because they are not told apart from it: {named}.")


def _finalist(run: Run, winner: Winner) -> Finalist:
    return next(finalist for finalist in run.finalists if finalist.config == winner.config)


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
            point = run.bench.time_compute(config.recipe, config.batch_size, min(1.0, 0.1 * run.left_s))
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
    """Predicted for compiling this batch size now, by the longest that was seen; 0: the bench has it, or need not. The
    bench of a resumed run has compiled nothing of what was kept."""
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
            point = run.bench.time_compute(config.recipe, config.batch_size, 0.0)
        except LoadtuneError:
            return
        if isinstance(point, ComputePoint):
            run.trained.add((config.recipe, config.batch_size))
