"""How a run ended, in words: what had not come back, what to do about it."""

from loadtune.errors import OutOfTimeError
from loadtune.report.store import LOG_FILE
from loadtune.run import Run
from loadtune.search.notes import hung
from loadtune.units import counted, seconds_text


def ended_text(run: Run, end: OutOfTimeError) -> str:
    """Why the run was cut short. A larger budget is advised only where nothing hung."""
    budget, failed = seconds_text(run.config.time_budget_s), hung(run)
    if end.stuck is not None:
        return (
            f"the time budget of {budget} ended: {end.stuck}. Every sample has to return or raise: look for a lock, a "
            f"download or a read without a timeout. The stacks are at the end of {run.folder / LOG_FILE}"
        )
    if failed:
        last = failed[-1].message.rstrip(".")
        return f"the time budget of {budget} ended after {counted(len(failed), 'trial')} hung: {last}"
    if run.facts is None:
        return (
            f"the time budget of {budget} ended before the workload was built and had trained a first step (phase "
            f"{end.phase or 'start'}). Importing torch and the workload's own code counts. Give a larger --time-budget"
        )
    if not any(trial.measurement for trial in run.trials):
        return (
            f"the time budget of {budget} ended before anything was measured. The workload took "
            f"{seconds_text(run.stage_seconds.get('start', 0.0))} to build. Give a larger --time-budget"
        )
    stage = "confirmation" if run.stage_name == "confirm" else f"{run.stage_name} stage"
    return f"the time budget of {budget} ended in the {stage}. A larger --time-budget lets the run finish"


def overrun(run: Run) -> None:
    """Say so where a run took longer than it was given: requests end in time, ending their process may take seconds."""
    spent, budget = seconds_text(run.config.time_budget_s - run.left_s), seconds_text(run.config.time_budget_s)
    if run.left_s >= 0 or spent == budget:
        return
    longest = sorted(run.stage_seconds.items(), key=lambda stage: -stage[1])[:2]
    named = " and ".join(f"{name} ({seconds_text(seconds)})" for name, seconds in longest)
    run.note(f"The run took {spent}, more than its time budget of {budget}. The longest stages were {named}.")
