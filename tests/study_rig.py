"""A study on disk with one trial of each kind, told as a run tells it; and what one run measured."""

import itertools

from loadtune.records import Measurement, Recipe, Window
from loadtune.report.store import write_whole
from loadtune.study.optuna_study import OptunaStudy
from loadtune.study.search import Next
from loadtune.study.space import SearchSpace

MEASURED_PER_S = 900.0


def begun_study(folder, objective="samples-per-s"):
    """Number 0 was measured, 1 cannot run, 2 still runs."""
    space = SearchSpace(
        batch_sizes=(16, 32, 64),
        num_workers=(0, 2),
        pin_memory=(False, True),
        recipes={"fp32": Recipe()},
        ceilings={"fp32": 64},
    )
    configs = itertools.cycle(space.modelled())

    def save(content):
        write_whole(folder / "study.db", content())

    study = OptunaStudy(space, lambda: Next(config=next(configs), origin="search"), save, objective=objective)
    study.tell_measured(study.ask(), MEASURED_PER_S)
    study.tell_infeasible(study.ask(), "out of memory")
    return study, study.ask()


def measured(rate: float) -> Measurement:
    windows = (Window(start_s=0.0, seconds=1000.0, num_steps=10, num_samples=round(rate * 1000)),)
    return Measurement(windows=windows, first_batch_s=0.1, seconds=1.0)
