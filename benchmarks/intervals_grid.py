"""Which cases are simulated, in full and for CI. Pure data."""

from intervals_confirm import SCHEDULES
from intervals_steps import StepTimes

from loadtune.records import TuneConfig
from loadtune.stages.run import TRIAL_SHARE

MAX_S = tuple(times * TRIAL_SHARE * TuneConfig().time_budget_s for times in (1.0, 1.5))
"""Seconds that a run may take at the default time budget, and at one half as large again."""

PROMISED: tuple[StepTimes, ...] = (
    *(
        StepTimes(kind=kind, mean_s=mean_s, variation=variation)
        for kind in ("independent", "AR(1) 0.5")
        for mean_s in (0.02, 0.1, 0.3)
        for variation in (0.02, 0.1, 0.3)
    ),
    *(
        StepTimes(kind="stall", mean_s=mean_s, variation=0.05, num_workers=num_workers)
        for mean_s in (0.02, 0.1)
        for num_workers in range(1, 9)
    ),
)
"""Where 93% or more have to hold the truth. A window has one or two steps of 0.3 s, or a round of workers of 0.8 s."""

BEYOND: tuple[StepTimes, ...] = (
    StepTimes(kind="independent", mean_s=1.0, variation=0.1),
    StepTimes(kind="AR(1) 0.5", mean_s=1.0, variation=0.1),
    StepTimes(kind="stall", mean_s=0.3, variation=0.05, num_workers=8),
)
"""Reported, and not promised: a run of three to five steps, and windows that cut rounds."""

QUICK: tuple[StepTimes, ...] = (
    StepTimes(kind="independent", mean_s=0.02, variation=0.1),
    StepTimes(kind="AR(1) 0.5", mean_s=0.3, variation=0.02),
    StepTimes(kind="stall", mean_s=0.1, variation=0.05, num_workers=4),
)
"""Those that are hardest to keep: many runs end for being precise, or hold few correlated steps."""

NUM_FINALISTS = (2, 3, 5)
ALIKE = tuple((number, schedule) for number in NUM_FINALISTS for schedule in SCHEDULES)
QUICK_ALIKE = ((2, "two rounds"), (5, "one round, then the leader and yours"), (5, "three rounds"))

NUM_RUNS = (2, 3, 4, 6, 8, 12)
GAINS = (0.02, 0.05, 0.10, 0.15, 0.20, 0.30, 0.50, 1.00)
TIME_BUDGETS_S = (60.0, 120.0, 180.0, 300.0, 1800.0)

SHARES = (1.0, 0.9, 0.8, 0.7, 0.5)
"""Of the incumbent's rate, for runs that may end as hopeless."""
