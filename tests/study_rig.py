"""A study on disk with one trial of each kind, told as a run tells it."""

from loadtune.records import Recipe
from loadtune.study.optuna_study import OptunaStudy
from loadtune.study.space import SearchSpace

MEASURED_PER_S, BOUND_PER_S = 900.0, 700.0


def begun_study(folder, objective="samples-per-s"):
    """Number 0 was measured, 1 was screened out, 2 cannot run, 3 still runs."""
    space = SearchSpace(
        batch_sizes=(16, 32, 64),
        num_workers=(0, 2),
        pin_memory=(False, True),
        recipes={"fp32": Recipe()},
        ceilings={"fp32": 64},
    )
    study = OptunaStudy(space, [], folder / "study.db", seed=0, objective=objective)
    study.tell_measured(study.ask(), MEASURED_PER_S)
    study.tell_screened(study.ask(), BOUND_PER_S, "the loader makes 700/s at most")
    study.tell_infeasible(study.ask(), 0.5, "batches up to 32 train")
    return study, study.ask()
