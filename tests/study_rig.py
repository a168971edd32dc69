"""Trials of one kind each, and what one run measured."""

from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.measurement import Measurement, TrialFailure, Window
from loadtune.records.result import Trial

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
