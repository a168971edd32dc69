"""What limits a winner whose machine is known, what would help, and when the model says that it cannot tell."""

from dataclasses import replace
from typing import Any

import pytest
from fakes import Surface, fake_facts, fake_host

from loadtune.decide.search import model_job
from loadtune.model.answers import bottleneck
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.facts import Device
from loadtune.records.measurement import ComputePoint, Measurement, Window
from loadtune.records.result import Bottleneck, Finalist, Trial
from loadtune.records.statistics import Interval

GPU = Device(kind="cuda", uuid="GPU-0", name="GPU")
BF16 = Recipe(precision="bf16")
PINNING = Surface(pinned_per_s=2000.0)
"""Sixteen workers make 5,280 samples/s and the GPU computes 2,400; the pinning thread does 2,000."""


def config(num_workers: int) -> TrialConfig:
    return TrialConfig(loader=LoaderConfig(batch_size=256, num_workers=num_workers, pin_memory=True), recipe=BF16)


def found(
    surface: Surface,
    *,
    slower: float = 1.0,
    predicted: float = 1.0,
    sample_cpu_s: float | None = None,
    epoch_samples: int | None = None,
) -> Bottleneck:
    """Of 16 workers, after trials with 4, 8 and none. ``slower``: the winner, by nothing that explains it.
    ``predicted`` ÷ measured."""
    trials = []
    for number, (num_workers, times) in enumerate(((4, 1.0), (8, 1.0), (0, 1.0), (16, slower))):
        at = config(num_workers)
        rate = surface.training_rate(at) / times
        run = Measurement(
            windows=(Window(start_s=0.0, seconds=16 * 256 / rate, num_steps=16, num_samples=16 * 256),),
            first_batch_s=1.0,
            seconds=5.0,
            refill_s=surface.sample_s * 256 if num_workers else 0.0,
            epoch_samples=epoch_samples,
            restart_s=5.0,
        )
        value = predicted * run.samples_per_s
        expected = Interval(value=value, low=0.9 * value, high=1.1 * value)
        trials.append(Trial(number=number, config=at, measurement=run, predicted=expected))
    points = [
        ComputePoint(recipe=BF16, batch_size=size, windows=(window,))
        for size in (16, 256)
        for seconds in [size / surface.compute_rate(BF16, size)]
        for window in [Window(start_s=0.0, seconds=seconds, num_steps=1, num_samples=size)]
    ]
    facts = replace(fake_facts(surface), sample_cpu_s=sample_cpu_s)
    job = model_job(facts, fake_host(), GPU, {"bf16": BF16}, points)
    seen = [(trial.config, trial.measurement) for trial in trials]
    return bottleneck(job, seen, Finalist(config=config(16), runs=(seen[-1][1],)), (0, 4, 8, 16), trials)


def test_quicker_samples_help_workers_that_are_too_slow_and_not_the_pinning_thread() -> None:
    assert "half_the_loading" not in found(PINNING).predicted
    told = found(Surface(sample_s=1 / 50), sample_cpu_s=0.02 / 50)
    assert told.limits[0].resource == "workers"
    assert told.limits[0].shares["waiting"] > 0.5
    assert told.predicted["half_the_loading"].value > 1.3


@pytest.mark.parametrize(
    ("given", "holds", "num_missed"),
    [
        ({"predicted": 1.05}, True, 0),
        ({"epoch_samples": 1000}, True, 0),  # a prediction is of the steady rate, however short an epoch is
        ({"predicted": 2.0}, False, 4),
        ({"slower": 4.0}, False, 0),  # the resources do not explain this throughput
    ],
)
def test_predictions_that_miss_and_a_rate_that_is_not_explained_name_no_resource(
    given: dict[str, Any], holds: bool, num_missed: int
) -> None:
    told = found(PINNING, **given)
    assert (told.num_predicted, told.num_missed, told.holds) == (4, num_missed, holds)
    assert (told.explained > 1.25) == ("slower" in given)
