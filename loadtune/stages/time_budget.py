"""The end of the time budget, in words: what was under way, what had not come back, what to do about it."""

from loadtune.errors import OutOfTimeError
from loadtune.report.store import LOG_FILE
from loadtune.stages.run import Run
from loadtune.stages.search_notes import hung_trials
from loadtune.units import counted, seconds_text


def ended_text(run: Run, end: OutOfTimeError) -> str:
    """Why the run was cut short. A larger budget is advised only where nothing hung."""
    found, budget = run.found, seconds_text(run.found.config.time_budget_s)
    hung = hung_trials(found)
    if end.stuck is not None:
        return (
            f"the time budget of {budget} ended: {end.stuck}. Every sample has to return or raise: look for a lock, a "
            f"download or a read without a timeout. The stacks are at the end of {run.folder / LOG_FILE}"
        )
    if hung:
        last = hung[-1].message.rstrip(".")
        return f"the time budget of {budget} ended after {counted(len(hung), 'trial')} hung: {last}"
    if found.facts is None:
        return (
            f"the time budget of {budget} ended before the workload was built and had trained a first step (phase "
            f"{end.phase or 'start'}). Importing torch and the workload's own code counts. Give a larger --time-budget"
        )
    if not any(trial.measurement for trial in found.trials):
        return (
            f"the time budget of {budget} ended before anything was measured. The workload took "
            f"{seconds_text(found.stage_seconds.get('start', 0.0))} to build. Give a larger --time-budget"
        )
    stage = "confirmation" if found.stage_name == "confirm" else f"{found.stage_name} stage"
    return f"the time budget of {budget} ended in the {stage}. A larger --time-budget lets the run finish"


def overrun(run: Run) -> None:
    """Say so where a run took longer than it was given: requests end in time, ending their process may take seconds."""
    found = run.found
    spent, budget = seconds_text(found.config.time_budget_s - found.left_s), seconds_text(found.config.time_budget_s)
    if found.left_s >= 0 or spent == budget:
        return
    longest = sorted(found.stage_seconds.items(), key=lambda stage: -stage[1])[:2]
    named = " and ".join(f"{name} ({seconds_text(seconds)})" for name, seconds in longest)
    found.note(f"The run took {spent}, more than its time budget of {budget}. The longest stages were {named}.")
