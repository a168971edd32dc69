"""The story of a run, one line a stage: from what a run has at its begin to a `Result`, also in its folder."""

from contextlib import suppress
from dataclasses import replace

from loadtune.changes.stack import Stack
from loadtune.decide.search import Search, model_job
from loadtune.errors import OutOfTimeError, ResultError
from loadtune.model.answers import bottleneck
from loadtune.records.facts import WorkloadFacts
from loadtune.records.result import Finalist, Result, finalist_of
from loadtune.report.notes import cached_text, cautions, growth_text, line
from loadtune.report.page import PAGE_FILE, write_page
from loadtune.run.calibration import calibrate, restore, search_space, start, verify_memory
from loadtune.run.confirmation import confirmation
from loadtune.run.state import Journal, Run, State
from loadtune.run.study import changes, hung, study
from loadtune.store import LOG_FILE, RESULT_FILE, RUN_FILE, owned, write_result
from loadtune.units import seconds_text


def tune_on(run: Run, *, resume: bool = False) -> Result:
    """`tune` over any training, sensor and clock: with the fakes of the tests it runs in a second."""
    state, journal, folder = run.state, run.journal, run.journal.folder
    journal.line, journal.cautions = line, cautions
    with owned(folder):
        run.training.until_s = run.budget.clock() + run.budget.left_s
        if resume:
            restore(run)
        journal.aside(f"{LOG_FILE} is not written", lambda: (folder / LOG_FILE).open("ab").close())
        try:
            _tell(run)
        except Exception as error:
            state.cut_short = str(error)
            if (state.trials or state.confirmed) and journal.stage_name != "start":
                with suppress(ResultError):  # the error that came first says what to mend
                    _keep(state, journal)
            raise
        return _keep(state, journal)


def _tell(run: Run) -> None:
    """The story, to its end or as far as it came. Raises LoadtuneError."""
    try:
        story(run)
    except KeyboardInterrupt as interruption:  # names its signal where it was not Ctrl-C
        run.state.cut_short = f"interrupted by {str(interruption) or 'Ctrl-C'}"
        run.state.interrupted_by = str(interruption) or "SIGINT"
    except OutOfTimeError as end:
        run.state.cut_short = why = ended_text(run.state, run.journal, end)
        if not run.state.timed:
            message = f"{why[0].upper()}{why[1:]}."
            raise OutOfTimeError(message, phase=end.phase, stuck=end.stuck) from None


def story(run: Run) -> None:
    """The stages, in the order in which each needs what the one before found.

    The answer is on the disk before it is explained. What fails then is a note.
    """
    facts, state, journal = start(run), run.state, run.journal
    probes = calibrate(run, facts)
    search = study(run, facts, search_space(run, facts))
    stack = changes(run, facts, search)
    if stack is not None and stack.steps:
        search = study(run, facts, replace(search.space, codes=stack.codes), stack)
    verify_memory(run, facts, search, probes)
    try:
        confirmation(run, search, stack)
    finally:  # also of an answer that was there when the time budget ended
        if state.best is not None:
            write_result(journal.result(), journal.folder)
        if (winner := finalist_of(state.finalists, state.best)) is not None:
            journal.aside("The bottleneck is not named", lambda: name_bottleneck(state, facts, search, stack, winner))


def name_bottleneck(state: State, facts: WorkloadFacts, search: Search, stack: Stack | None, winner: Finalist) -> None:
    """By what was timed of the space, and the winner; not where its precision was not searched. Nothing is run."""
    space = search.space
    if winner.config.precision in space.recipes:
        measured = [(config, each) for config, each in state.timed if space.has(config) or config == winner.config]
        job = model_job(facts, state.host, state.device, space.recipes, state.compute_points, stack)
        state.bottleneck = bottleneck(job, measured, winner, space.num_workers, state.trials)


def ended_text(state: State, journal: Journal, end: OutOfTimeError) -> str:
    """Why the run was cut short. A larger budget is advised only where nothing hung."""
    ended = f"the time budget of {seconds_text(state.config.time_budget_s)} ended"
    if end.stuck is not None:
        return (
            f"{ended}: {end.stuck}. Every sample has to return or raise: look for a lock, a download or a read without"
            f" a timeout. The stacks are at the end of {journal.folder / LOG_FILE}"
        )
    if why := hung(state.failed):
        return f"{ended} after {why}"
    if not state.timed:
        start, timing = (seconds_text(journal.stage_seconds.get(name, 0.0)) for name in ("start", "calibrate"))
        return (
            f"{ended} before anything was measured. Importing torch and building the workload took {start}, timing"
            f" precisions and batch sizes {timing}. Give a larger --time-budget, or run again on a quieter machine"
        )
    stage = "confirmation" if journal.stage_name == "confirm" else f"{journal.stage_name} stage"
    return f"{ended} in the {stage}. A larger --time-budget lets the run finish"


def _keep(state: State, journal: Journal) -> Result:
    """Write the page, then the result, with what there is to say of the page. An answer is on the disk before both; one
    of before the run was resumed stands where there is no other."""
    measured, sample_bytes = [each for _, each in state.timed], state.facts.sample_bytes if state.facts else 0
    differing = next((run.differing for run in reversed(measured) if run.differing), ())
    ended = next((failure.message for _, failure in state.failed if failure.grown_bytes), None)  # a trial
    journal.aside(
        "Whether samples came from the page cache was not found out",
        lambda: journal.note(
            ended or growth_text(measured, state.share.ram_limit_bytes),
            cached_text(measured, sample_bytes),
            *(f"{each[0].upper()}{each[1:]}." for each in differing),
        ),
    )
    if state.best is None and state.earlier is not None and state.earlier.best is not None:
        journal.note(
            f"The answer of {state.earlier.created} is kept: {RESULT_FILE} and {PAGE_FILE} are unchanged. {RUN_FILE} "
            "has what was measured since, for the next --resume."
        )
        return journal.result()
    no_page = "The report page was not written"
    try:
        journal.aside(no_page, lambda: write_page(journal.result(), journal.folder / PAGE_FILE))
    except KeyboardInterrupt as interruption:
        journal.note(f"{no_page}: interrupted by {str(interruption) or 'Ctrl-C'}.")
    result = journal.result()
    if state.best is None:
        write_result(result, journal.folder)
    else:
        journal.aside(f"{RESULT_FILE} has the answer alone", lambda: write_result(result, journal.folder))
    if state.cut_short is None:
        state.ended = True
        with suppress(ResultError):  # the result is there; a later --resume writes it again
            journal.save()
    return result
