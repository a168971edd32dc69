"""The finalists measured again, and what their figures say. Only these are reported."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from loadtune.errors import LoadtuneError, OutOfTimeError
from loadtune.probe.memory import left_over_note
from loadtune.records import (
    Finalist,
    Measurement,
    TrialConfig,
    TrialFailure,
    Winner,
    WorkloadFacts,
)
from loadtune.report.journal import Confirmed, Timed
from loadtune.report.wording import score_text, settings_text
from loadtune.stages.compiling import compile_ahead, compile_seconds
from loadtune.stages.crowding import check_budget
from loadtune.stages.run import CONFIRM_OF_LEFT, TRIAL_SHARE, Run
from loadtune.stages.timing import outcome_text, split, timed
from loadtune.study.confirm import MAX_ROUNDS, Outcome, between_run_spread, confirm, finalists, pick_finalists
from loadtune.study.failed import failure_notes, nothing_else_ran
from loadtune.study.gather import OVER_THE_TOP
from loadtune.study.rounds import MIN_RUNS
from loadtune.study.seeds import leaner
from loadtune.study.space import SearchSpace
from loadtune.study.winner import is_confirmed, is_told, not_told_apart, pick_winner
from loadtune.units import counted, percent_text

COMPUTE_STEPS = 4
"""Steps a compute point takes at the least: one or more to warm up, two to time."""

SKIPPED = 0.1
"""Share of the winner's timed steps above which skipped ones are told: fewer change its rate by less than its noise."""

BY_ENERGY = (
    "The best is the configuration that trains the most samples per joule of the GPU's board, which need not be the "
    "fastest. What the rest of the machine takes is not in it. A precision's recipe was still chosen for its speed."
)

UNQUIET = 0.12
"""Relative spread between runs above which the machine is called unquiet: 6 to 7% is usual on an H200."""


def confirmation(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> None:
    """Measure the finalists and the user's own configuration again, in turn, and judge by those figures alone."""
    found, config = run.found, run.found.config
    given = config.yours.batch_size is not None
    with found.stage("confirm"):
        check_budget(run)
        outcomes: list[Outcome] = []
        known = _known(run)
        configs = pick_finalists(
            found.trials,
            found.yours,
            at_your_batch=given,
            leaner=lambda c, m: leaner(searched, c, m, facts.sample_s),
            objective=config.objective,
            time_s=run.confirm_until_s - run.clock.now(),
            kept=list(dict.fromkeys(config for config, _ in known)),
        )
        compile_ahead(run, _unsettled(run, configs, known))
        end = None
        try:
            for outcome in confirm(
                configs,
                lambda config: _confirmed(run, config),
                run.clock,
                run.confirm_until_s,
                yours=found.yours,
                at_your_batch=given,
                answer_by_s=run.until(CONFIRM_OF_LEFT),
                objective=config.objective,
                told=lambda measured: _is_told(run, measured),
                known=known,
            ):
                outcomes.append(outcome)
                found.finalists = finalists(outcomes)
                found.tell(outcome_text(*outcome, config.objective))
        except OutOfTimeError as error:
            end = error
            outcomes += _hung(run, error)
            found.finalists = finalists(outcomes)
        for note in failure_notes(outcomes, found.yours, settings_text):
            found.note(note)
        if end is not None and not _is_confirmed(run):
            raise end
        if nothing_else_ran(found.trials, found.yours, found.finalists):
            found.note("Nothing but your own configuration could be run: it wins for want of any other.")
        _conclude(run, facts)
        if end is not None:
            raise end


def _hung(run: Run, end: OutOfTimeError) -> list[Outcome]:
    """The run that the end of the time budget ended: it failed where it waited for samples that did not return."""
    if end.stuck is None or run.found.running is None:
        return []
    failure = TrialFailure(kind="hang", phase=end.phase or "training", message=end.stuck)
    return [(run.found.running, failure)]


def _is_confirmed(run: Run) -> bool:
    """Also at the user's batch size where that was given."""
    found, objective = run.found, run.found.config.objective
    sizes = {None, found.config.yours.batch_size}
    return all(is_confirmed(found.finalists, found.yours, batch_size=size, objective=objective) for size in sizes)


def _is_told(run: Run, measured: Sequence[Finalist]) -> bool:
    """Of the winner, and of the one at the user's batch size where that was given."""
    yours, objective = run.found.yours, run.found.config.objective
    sizes = {None, run.found.config.yours.batch_size}
    return all(is_told(measured, yours, batch_size=size, objective=objective) for size in sizes)


def _known(run: Run) -> list[Outcome]:
    """What was confirmed before an interruption.

    After a trial that was run since, it is of another choice of finalists, and all is measured anew.
    """
    if run.kept is None or any(trial.screened is None for trial in run.found.trials[len(run.kept.trials) :]):
        return []
    lines = run.kept.confirmed
    return [(line.config, outcome) for line in lines if (outcome := line.measurement or line.failure)]


def _unsettled(run: Run, configs: Sequence[TrialConfig], known: Sequence[Outcome]) -> list[TrialConfig]:
    """Those that are to be run still; of the others all is known that the confirmation asks for."""
    runs = {config: [outcome for other, outcome in known if other == config] for config in configs}
    going_on = {c: outcomes for c, outcomes in runs.items() if not any(isinstance(o, TrialFailure) for o in outcomes)}
    whole_rounds = min((len(outcomes) for outcomes in going_on.values()), default=0)
    if whole_rounds >= MIN_RUNS and _is_told(run, finalists(known)):
        return []  # `confirm` looks after whole rounds
    return [config for config, outcomes in going_on.items() if len(outcomes) < MAX_ROUNDS]


def _confirmed(run: Run, config: TrialConfig) -> Measurement | TrialFailure:
    """Measure a configuration and keep what came of it."""
    outcome = timed(run, config, TRIAL_SHARE, None)
    measurement, failure = split(outcome)
    run.keep(Confirmed(config=config, measurement=measurement, failure=failure))
    return outcome


def _conclude(run: Run, facts: WorkloadFacts) -> None:
    """Winners and their distance from the compute-only rate."""
    found, objective = run.found, run.found.config.objective
    measured = {finalist.config: finalist for finalist in found.finalists}
    if found.yours in measured:
        _compute_rate(run, measured[found.yours])
    if found.yours is not None and found.config.yours.batch_size is not None:
        same_batch = pick_winner(found.finalists, found.yours, batch_size=found.yours.batch_size, objective=objective)
        found.best_at_your_batch = _with_ceiling(run, same_batch, measured)
    found.best = _with_ceiling(run, pick_winner(found.finalists, found.yours, objective=objective), measured)
    if found.best is not None:
        if objective == "samples-per-joule":
            found.note(BY_ENERGY)
        if (found.best.compute_fraction or 0.0) > OVER_THE_TOP:
            found.note(
                f"The winner reads {percent_text(found.best.compute_fraction)} of the compute-only rate, which cannot "
                "be: one of the two is wrong, most likely because something else was using this machine meanwhile."
            )
        leaves_over = left_over_note(facts.dataset_length, found.best.config.batch_size, facts.min_batch_size)
        if leaves_over is not None and leaves_over not in found.notes:  # its size may be a ceiling's
            found.note(leaves_over)
        _tell_skipped(run, measured[found.best.config])
        _tell_ties(run, found.best)
    spread = between_run_spread([f.runs for f in found.finalists])
    if spread is not None and spread.relative_sd > UNQUIET:
        found.note(
            f"Runs of one configuration differed by {percent_text(spread.relative_sd)} (standard deviation), more "
            "than usual. If something else was using this machine, run again when it is quiet."
        )


def _tell_ties(run: Run, best: Winner) -> None:
    found, objective = run.found, run.found.config.objective
    rivals = [f for f in not_told_apart(best, found.finalists, objective) if f.config != found.yours]
    if rivals:
        named = "; ".join(f"{settings_text(f.config)} ({score_text(f.score(objective), objective)})" for f in rivals)
        how = "fast" if objective == "samples-per-s" else "sparing"
        found.note(f"Not told apart from the winner, and maybe as {how}: {named}.")


def _tell_skipped(run: Run, winner: Finalist) -> None:
    """A skipped step leaves the optimizer out, so it is faster than one that trains."""
    timed = [window for each in winner.runs for window in each.windows]  # what settled before them is in no rate
    num_skipped, num_steps = sum(w.num_skipped_steps for w in timed), sum(w.num_steps for w in timed)
    if num_skipped > SKIPPED * num_steps:
        run.found.note(
            f"GradScaler skipped the optimizer in {counted(num_skipped, 'step')} of the winner's runs, which timed "
            f"{num_steps}: such steps are faster than real ones. Check that the model trains in fp16, or leave it out "
            "with --precision."
        )


def _with_ceiling(run: Run, winner: Winner | None, measured: Mapping[TrialConfig, Finalist]) -> Winner | None:
    """The winner beside the compute-only rate of exactly its batch size and recipe."""
    if winner is None:
        return None
    ceiling = _compute_rate(run, measured[winner.config])
    return winner if ceiling is None else replace(winner, compute_fraction=winner.samples_per_s / ceiling)


def _compute_rate(run: Run, finalist: Finalist) -> float | None:
    """Compute-only samples/s of exactly this batch size and recipe, measured now if it was not.

    None: it fails, or the time is spent.
    """
    config = finalist.config
    for point in run.found.compute_points:
        if (point.recipe, point.batch_size) == (config.recipe, config.batch_size):
            return point.samples_per_s
    steps_s = COMPUTE_STEPS * config.batch_size / finalist.samples_per_s
    if compile_seconds(run, config) + steps_s > run.found.left_s:
        return None
    try:
        timed = run.bench.time_compute(config.recipe, config.batch_size, min(1.0, 0.1 * run.found.left_s))
    except LoadtuneError as error:  # what was confirmed stands without it
        run.found.tell(f"The winner's compute-only rate was not timed: {error}", warning=True)
        return None
    if isinstance(timed, TrialFailure):
        return None
    run.found.compute_points += (timed,)
    run.found.trained.add((config.recipe, config.batch_size))
    run.keep(Timed(point=timed))
    return timed.samples_per_s
