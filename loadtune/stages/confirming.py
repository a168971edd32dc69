"""The finalists measured again, and what their figures say. Only these are reported."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.probe.memory import left_over_note
from loadtune.records import (
    ComputePoint,
    Finalist,
    Measurement,
    Precision,
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
from loadtune.report.run_file import Confirmed
from loadtune.report.wording import score_text, settings_text
from loadtune.stages.compiling import compile_ahead, compile_seconds
from loadtune.stages.gpu_contention import batch_excess, check_budget
from loadtune.stages.run import TRIAL_SHARE, Run
from loadtune.stages.searching import search_of
from loadtune.stages.timing import note_disturbance, outcome_text, split, timed
from loadtune.study.alternation import LOOKS, Outcome, alternate, barred
from loadtune.study.confirm import finalists, needed, pick_finalists
from loadtune.study.failed import (
    failure_notes,
    never_ran,
    nothing_else_ran,
    precision_notes,
    unconfirmed_notes,
    worker_note,
)
from loadtune.study.space import SearchSpace
from loadtune.study.winner import is_confirmed, not_told_apart, pick_winner, undecided, undecided_change
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


def confirmation(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> None:
    """Measure the finalists and the baseline, the user's settings, again in turn; judge by those figures alone."""
    found = run.found
    with found.stage("confirm"):
        check_budget(run)
        known = _known(run)
        if _has_ended(run, known):
            found.finalists = finalists(known)
            found.confirmed_whole = True
            _conclude(run, facts, never_ran(known, found.finalists))
            return
        configs = _picked(run, facts, searched, known)
        outcomes, end = list[Outcome](), None
        compile_ahead(run, _unsettled(run, configs, known))
        try:
            for outcome in _rounds(run, configs, known):
                outcomes.append(outcome)
                found.finalists = finalists(outcomes)
                found.tell(outcome_text(*outcome, found.config.objective))
            found.concluded_s = found.config.time_budget_s
            run.save()
            found.confirmed_whole = True
        except OutOfTimeError as error:
            end = error  # says where it waited for samples that did not return
        failed = never_ran(outcomes, found.finalists)
        if end is not None and not _is_confirmed(run, failed):
            _note_failures(run, failed)
            raise end
        _conclude(run, facts, failed)
        if end is not None:
            raise end


def _rounds(run: Run, configs: Sequence[TrialConfig], known: Sequence[Outcome]) -> Iterator[Outcome]:
    found, objective = run.found, run.found.config.objective
    at_your_batch = found.config.yours.batch_size is not None
    return alternate(
        configs,
        lambda config: _confirmed(run, config),
        run.clock,
        run.confirm_until_s,
        needed=lambda seen, able: needed(seen, able, found.yours, at_your_batch=at_your_batch, objective=objective),
        undecided=lambda seen: _undecided(run, finalists(seen)),
        answer_by_s=run.answer_until_s,
        known=known,
        seed=found.config.seed,
    )


def _is_confirmed(run: Run, failed: Sequence[Failed]) -> bool:
    """Whether a confirmation that the time budget ended has an answer, also at the user's batch size if given."""
    found, objective = run.found, run.found.config.objective
    found.finalists = ruled_out(found.finalists, found.trials, failed=failed, objective=objective)
    sizes = {None, found.config.yours.batch_size}
    return all(is_confirmed(found.finalists, found.yours, batch_size=size, objective=objective) for size in sizes)


def _picked(run: Run, facts: WorkloadFacts, searched: SearchSpace, known: Sequence[Outcome]) -> tuple[TrialConfig, ...]:
    """The finalists, those first that the answer needs most."""
    found, own_size = run.found, run.found.config.yours.batch_size
    search = search_of(run, facts, searched)
    ranked = [_within_ceiling(run, each.config) for each in search.ranked() if not each.config.remedies]
    return pick_finalists(
        list(dict.fromkeys(ranked)),
        found.yours,
        found.trials,
        at_your_batch=[] if own_size is None else search.best_at(own_size),
        smallest=search.smallest() if ranked else None,
        changed=search.changed() if ranked and found.changes is not None else None,
        typed=next(iter(search.feasible(_typed(run, searched))), None),
        time_s=run.confirm_until_s - run.clock.now(),
        kept=list(dict.fromkeys(config for config, _ in known)),
    )


def _typed(run: Run, searched: SearchSpace) -> list[TrialConfig]:
    """What one would type without measuring: as many workers as cores, pinned, in half the bits."""
    yours, cores = run.found.yours, run.found.host.num_usable_cores
    halves: tuple[Precision, ...] = ("bf16", "fp16")
    precision = next((each for each in halves if each in searched.recipes), None)
    if yours is None or precision is None:
        return []
    workers = max((number for number in searched.num_workers if number <= cores), default=0)
    return [searched.config(yours.batch_size, workers, searched.pin_memory[-1], precision)]


def _within_ceiling(run: Run, config: TrialConfig) -> TrialConfig:
    """The same at its precision's safe size, where that was verified after the search and is below its batch."""
    excess = batch_excess(run, config.precision, config.batch_size)
    if excess <= 0:
        return config
    size = config.batch_size - excess
    run.found.note(
        f"Some trials in {config.precision} had a batch size above {size}, the safe size found after the search. "
        f"The confirmation uses {size} instead."
    )
    return replace(config, loader=replace(config.loader, batch_size=size))


def _undecided(run: Run, measured: Sequence[Finalist]) -> set[TrialConfig]:
    """Who has to be run again for the answer, and for the one at the user's batch size where that was given."""
    yours, objective = run.found.yours, run.found.config.objective
    judged = ruled_out(measured, run.found.trials, objective=objective)
    sizes = {None, run.found.config.yours.batch_size}
    again = {c for size in sizes for c in undecided(judged, yours, batch_size=size, objective=objective)}
    return again | set(undecided_change(judged, pick_winner(judged, yours, objective=objective), objective))


def _known(run: Run) -> list[Outcome]:
    """Runs of the confirmation from before an interruption that still count."""
    return [(line.config, outcome) for line in run.found.confirmed if (outcome := line.measurement or line.failure)]


def _has_ended(run: Run, known: Sequence[Outcome]) -> bool:
    """Whether the confirmation ended by itself before an interruption, no more time is given now, and nothing that
    failed once is to be asked again."""
    concluded_s = run.found.concluded_s if known else None
    owed = {config for config, last in dict(known).items() if isinstance(last, TrialFailure)} - barred(known)
    return concluded_s is not None and run.found.config.time_budget_s <= concluded_s and not owed


def _unsettled(run: Run, configs: Sequence[TrialConfig], known: Sequence[Outcome]) -> list[TrialConfig]:
    """Those that the confirmation still has to run."""
    measured = [config for config, outcome in known if isinstance(outcome, Measurement)]
    num_ran = {config: measured.count(config) for config in configs if config not in barred(known)}
    num_rounds = max(num_ran.values(), default=0)
    able = [config for config, num in num_ran.items() if num >= num_rounds - 1]
    if num_rounds in LOOKS and all(num_ran[config] == num_rounds for config in able):
        again = _undecided(run, finalists(known)) if num_rounds < LOOKS[-1] else set()
        return [config for config in able if config in again]
    return able


def _confirmed(run: Run, config: TrialConfig) -> Measurement | TrialFailure:
    """Measure a configuration and keep the outcome."""
    outcome = timed(run, config, TRIAL_SHARE)
    measurement, failure = split(outcome)
    run.found.confirmed.append(Confirmed(config=config, measurement=measurement, failure=failure))
    run.save()
    return outcome


def _conclude(run: Run, facts: WorkloadFacts, failed: Sequence[Failed]) -> None:
    """The winners, their share of the compute-only rate, and notes on what to know before trusting them."""
    found, objective = run.found, run.found.config.objective
    for finalist in found.finalists:
        if finalist.config == found.yours or is_doubted(found.compute_points, finalist):
            _time_compute_of(run, finalist.config)
    found.best = _winner(run, failed, None)
    if found.yours is not None and found.config.yours.batch_size is not None:
        found.best_at_your_batch = _winner(run, failed, found.yours.batch_size)
    _judge_changes(run, failed)
    _note_failures(run, failed)
    note_disturbance(run, [measured for finalist in found.finalists for measured in finalist.runs])
    if found.best is not None:
        if objective == "samples-per-joule":
            found.note(BY_ENERGY)
        leaves_over = left_over_note(facts.dataset_length, found.best.config.batch_size, facts.min_batch_size)
        if leaves_over is not None and leaves_over not in found.notes:  # its size may be a ceiling's
            found.note(leaves_over)
        _note_best(run, found.best)


def _winner(run: Run, failed: Sequence[Failed], batch_size: int | None) -> Winner | None:
    """The best finalist that nothing rules out, also not its compute-only rate, which is timed here."""
    found, objective = run.found, run.found.config.objective
    picked: Winner | None = None
    for _ in range(1 + len(found.finalists)):
        points = found.compute_points
        found.finalists = ruled_out(
            found.finalists, found.trials, failed=failed, compute_points=points, objective=objective
        )
        again = pick_winner(found.finalists, found.yours, batch_size=batch_size, objective=objective)
        if again is None or again == picked:
            break
        picked = again
        _time_compute_of(run, picked.config)
    if again is None:
        return None
    return replace(again, compute_fraction=compute_fraction(found.compute_points, again.config, again.samples_per_s))


def _judge_changes(run: Run, failed: Sequence[Failed]) -> None:
    """What the contestant with changes of the code gains over the best; as it was judged before an interruption."""
    found = run.found
    if found.best is None or found.changes is None:
        return
    changed = next((finalist for finalist in found.finalists if finalist.config.remedies), None)
    failures = [*failed, *((trial.config, trial.failure) for trial in found.trials if trial.failure is not None)]
    found.remedies = found.changes.outcome(_finalist(run, found.best.config), changed, found.finalists, failures)
    run.save()


def _note_failures(run: Run, failed: Sequence[Failed]) -> None:
    """What failed, what is not confirmed for another reason, and what that leaves."""
    found = run.found
    in_search = [(trial.config, trial.failure) for trial in found.trials if trial.failure is not None]
    of_workers = worker_note(found.trials)
    if of_workers is not None:
        found.note(of_workers)
        failed = [(config, failure) for config, failure in failed if not config.loader.num_workers]
    in_runs = [(finalist.config, failure) for finalist in found.finalists for failure in finalist.failures]
    for note in (
        *precision_notes([*in_search, *failed, *in_runs], settings_text),
        *failure_notes(failed, found.yours, settings_text),
        *unconfirmed_notes(found.finalists, found.yours, settings_text),
    ):
        found.note(note)
    if found.best is not None and nothing_else_ran(found.trials, found.yours, found.finalists):
        found.note("No configuration but your settings could be run, so your settings are the answer.")
    if found.best is None:
        found.note("No configuration is confirmed, so this run has no answer to export. The other notes say why.")


def _note_best(run: Run, best: Winner) -> None:
    """What to know of the winner before trusting it."""
    found = run.found
    winner = _finalist(run, best.config)
    if best.measured_once:
        found.note(
            "Each configuration was measured once, because the time was spent. So no rate has an interval, and nothing "
            f"is confirmed. Give more than {seconds_text(found.config.time_budget_s)} with --time-budget."
        )
    _note_misread(run, winner)
    _note_skipped(run, winner)
    _note_ties(run, best)


def _note_misread(run: Run, winner: Finalist) -> None:
    """A compute-only rate that contradicts the winner, within its noise: it is used in no other statement."""
    point = compute_rate(run.found.compute_points, winner.config)
    if point is not None and winner.samples_per_s > MISREAD * point.samples_per_s:
        run.found.note(
            f"Of the best configuration: {contradiction_text(winner, point)} The compute-only rate is left out of all "
            "other statements."
        )


def _note_ties(run: Run, best: Winner) -> None:
    found, objective = run.found, run.found.config.objective
    rivals = [
        f for f in not_told_apart(best, found.finalists, objective) if f.config != found.yours and f.unconfirmed is None
    ]
    if rivals:
        named = "; ".join(
            f"{settings_text(f.config)} ({score_text(f.scored(objective).value, objective)})" for f in rivals
        )
        how = "fast" if objective == "samples-per-s" else "efficient"
        found.note(f"These may be as {how} as the best or more so, because they are not told apart from it: {named}.")


def _note_skipped(run: Run, winner: Finalist) -> None:
    """A skipped step leaves the optimizer out, so it is faster than one that trains."""
    timed = [window for each in winner.runs for window in each.windows]  # what settled before them is in no rate
    num_skipped, num_steps = sum(w.num_skipped_steps for w in timed), sum(w.num_steps for w in timed)
    if num_skipped > SKIPPED * num_steps:
        run.found.note(
            f"GradScaler skipped the optimizer in {num_skipped} of the {counted(num_steps, 'step')} that were timed of "
            "the best configuration. Skipped steps are faster than others. Check that the model trains in fp16, or "
            "leave fp16 out with --precision."
        )


def _finalist(run: Run, config: TrialConfig) -> Finalist:
    return next(finalist for finalist in run.found.finalists if finalist.config == config)


def _time_compute_of(run: Run, config: TrialConfig) -> None:
    """The compute-only rate of exactly this finalist, where it was not timed, or reads less than training did.

    It is timed again then, because other load may have slowed the timing down. Nothing happens where the
    configuration was not measured or the time is spent.
    """
    finalist = next((each for each in run.found.finalists if each.config == config), None)
    for _ in range(MOST_TIMINGS if finalist is not None else 0):
        assert finalist is not None
        known = compute_rate(run.found.compute_points, config)
        if known is not None and not is_doubted(run.found.compute_points, finalist):
            return
        point = _compute_point(run, finalist)
        if point is None:
            return
        run.found.compute_points = _with_point(run.found.compute_points, point)
        run.save()


def _with_point(points: tuple[ComputePoint, ...], new: ComputePoint) -> tuple[ComputePoint, ...]:
    """One point for each recipe and batch size: the fastest timing of it, and how many there were."""
    same = [p for p in points if (p.recipe, p.batch_size) == (new.recipe, new.batch_size)]
    fastest = max([*(p for p in same if p.num_timings), new], key=lambda point: point.samples_per_s)
    num_timings = sum(point.num_timings for point in (*same, new))
    return (*(point for point in points if point not in same), replace(fastest, num_timings=num_timings))


def _compute_point(run: Run, finalist: Finalist) -> ComputePoint | None:
    """Timed now. None: it fails, or the time is spent."""
    config = finalist.config
    steps_s = COMPUTE_STEPS * config.batch_size / finalist.samples_per_s
    if compile_seconds(run, config) + steps_s > run.found.left_s:
        return None
    try:
        point = run.bench.time_compute(config.recipe, config.batch_size, min(1.0, 0.1 * run.found.left_s))
    except LoadtuneError as error:  # the answer does not depend on it
        run.found.tell(f"The compute-only rate of {settings_text(config)} was not timed: {error}", warning=True)
        return None
    if isinstance(point, TrialFailure):
        return None
    run.found.trained.add((config.recipe, config.batch_size))
    return point
