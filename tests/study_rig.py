"""A study on disk with one trial of each kind, told as a run tells it; and what one run measured."""

from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.measurement import Measurement, TrialFailure, Window
from loadtune.records.result import Trial
from loadtune.search.space import SearchSpace
from loadtune.search.study import OptunaStudy


def begun_study(folder):
    """Number 0 was measured, 1 cannot run."""
    space = SearchSpace(
        batch_sizes=(16, 32, 64),
        num_workers=(0, 2),
        pin_memory=(False, True),
        recipes={"fp32": Recipe()},
        ceilings={"fp32": 64},
    )
    measured, failed = [*space.modelled()][:2]
    study = OptunaStudy(space, [trial(0, 900.0, measured), trial(1, None, failed)])
    study.write(folder / "study.db")
    return study


CONFIG = TrialConfig(loader=LoaderConfig(batch_size=16), recipe=Recipe())


def trial(number: int, rate: float | None, config: TrialConfig = CONFIG) -> Trial:
    """At this rate. None: it could not run."""
    failure = TrialFailure(kind="oom", phase="training", message="out of memory") if rate is None else None
    measurement = None if rate is None else measured(rate)
    return Trial(number=number, config=config, measurement=measurement, failure=failure)


RUN_S = 10.0


def measured(rate: float) -> Measurement:
    windows = (Window(start_s=0.0, seconds=1000.0, num_steps=10, num_samples=round(rate * 1000)),)
    return Measurement(windows=windows, first_batch_s=0.1, seconds=RUN_S)
