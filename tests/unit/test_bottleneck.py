"""What limits a winner whose machine is known, what would help, and when the model says that it cannot tell."""

from dataclasses import replace

import pytest

from loadtune.bottleneck import bottleneck
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig
from loadtune.records.facts import Device
from loadtune.records.interval import Interval
from loadtune.records.measurement import ComputePoint, Measurement, Window, WorkerShare
from loadtune.records.result import Bottleneck, Finalist, Trial
from loadtune.search.search import job_of
from loadtune.testing import Surface, fake_facts, fake_host

GPU = Device(kind="cuda", uuid="GPU-0", name="GPU")
BF16 = Recipe(precision="bf16")
PINNING = Surface(pinned_per_s=2000.0)
"""Sixteen workers make 5,280 samples/s and the GPU computes 2,400; the pinning thread does 2,000."""


def config(num_workers: int, *, pinned: bool = True, batch_size: int = 256) -> TrialConfig:
    loader = LoaderConfig(batch_size=batch_size, num_workers=num_workers, pin_memory=pinned)
    return TrialConfig(loader=loader, recipe=BF16)


def measured(surface: Surface, at: TrialConfig, slower: float = 1.0, **shown: int) -> Measurement:
    rate = surface.training_rate(at) / slower
    step_s = at.batch_size / rate
    window = Window(start_s=0.0, seconds=16 * step_s, num_steps=16, num_samples=16 * at.batch_size, **shown)  # type: ignore[arg-type]
    made_s = surface.sample_s * at.batch_size
    share = WorkerShare(wait_s=0.1, max_wait_s=0.01, num_made=20, made_s=20 * made_s, max_made_s=made_s)
    return Measurement(windows=(window,), first_batch_s=1.0, seconds=5.0, workers=(share,) * at.loader.num_workers)


def found(
    surface: Surface,
    *,
    slower: float = 1.0,
    predicted: float = 1.0,
    waits: bool = False,
    epoch_samples: int | None = None,
) -> Bottleneck:
    """Of 16 workers, after trials with 4, 8 and none. ``slower``: the winner, by nothing that explains it.
    ``predicted`` ÷ measured. ``waits``: samples take next to no CPU."""
    best, facts = config(16), fake_facts(surface)
    if waits:
        facts = replace(facts, sample_cpu_s=0.02 * facts.sample_s)
    seen = [(each, measured(surface, each)) for each in (config(4), config(8), config(0))]
    seen.append((best, measured(surface, best, slower)))
    seen = [(each, replace(run, epoch_samples=epoch_samples, restart_s=5.0)) for each, run in seen]
    trials = [
        Trial(
            number=number,
            config=each,
            origin="search",
            measurement=run,
            predicted=Interval(value=rate, low=0.9 * rate, high=1.1 * rate),
        )
        for number, (each, run) in enumerate(seen)
        for rate in [predicted * run.samples_per_s]
    ]
    points = [
        ComputePoint(
            recipe=BF16,
            batch_size=size,
            windows=(Window(start_s=0.0, seconds=size / rate, num_steps=1, num_samples=size),),
        )
        for size in (16, 256)
        for rate in [surface.compute_rate(BF16, size)]
    ]
    job = job_of(facts, fake_host(), GPU, {"bf16": BF16}, points)
    return bottleneck(job, seen, Finalist(config=best, runs=(seen[-1][1],)), (0, 4, 8, 16), trials)


def test_the_slowest_resource_is_named_and_quicker_samples_do_not_help_the_pinning_thread() -> None:
    told = found(PINNING)
    assert told.holds
    assert told.explained == pytest.approx(1.0, abs=0.2)
    assert {limit.resource for limit in told.limits[:2]} >= {"pinning"}
    assert sum(limit.probability for limit in told.limits) == pytest.approx(1.0)
    assert "half_the_loading" not in {change.kind for change in told.changes}


def test_workers_that_are_too_slow_are_named_and_quicker_samples_help() -> None:
    told = found(Surface(sample_s=1 / 50), waits=True)
    assert told.limits[0].resource == "workers"
    assert told.limits[0].shares["waiting"] > 0.5
    gains = {change.kind: change for change in told.changes}
    assert gains["half_the_loading"].gain.value > 1.3


def test_a_prediction_is_of_the_steady_rate_however_short_an_epoch_is() -> None:
    assert found(PINNING, epoch_samples=1000).num_missed == 0


@pytest.mark.parametrize(("predicted", "holds", "num_missed"), [(1.05, True, 0), (2.0, False, 4)])
def test_predictions_that_miss_name_no_resource(predicted: float, holds: bool, num_missed: int) -> None:
    told = found(PINNING, predicted=predicted)
    assert (told.num_predicted, told.num_missed, told.holds) == (4, num_missed, holds)


def test_a_throughput_that_the_resources_do_not_explain_names_none() -> None:
    told = found(PINNING, slower=4.0)
    assert told.explained > 1.25
    assert not told.holds
