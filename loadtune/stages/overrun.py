"""After everything: what was spent beyond the time budget, and on what."""

from loadtune.stages.run import Run
from loadtune.units import seconds_text

WORTH_SAYING = 1.2
"""Times the time budget: a run that has begun is measured to its end, and that alone may take a few seconds more."""


def overrun(run: Run) -> None:
    """Say so where a run took longer than it was given."""
    found = run.found
    budget_s = found.config.time_budget_s
    spent_s = budget_s - found.left_s
    if spent_s <= WORTH_SAYING * budget_s:
        return
    longest = sorted(found.stage_seconds.items(), key=lambda stage: -stage[1])[:2]
    named = " and ".join(f"{name} ({seconds_text(seconds)})" for name, seconds in longest)
    found.note(
        f"It took {seconds_text(spent_s)}, more than the time budget of {seconds_text(budget_s)}, most of it for "
        f"{named}: your own configuration and the first prediction are run and confirmed however little time there is. "
        "Give it that much, or take a smaller --image-size or model."
    )
