"""Planted causes are named: a slow loader, a slow worker, a slow step, through the real training process on the CPU."""

from bench_rig import CPU
from planted import Plant, judged

from loadtune.records import LoaderConfig

WITH_TWO = LoaderConfig(batch_size=8, num_workers=2)


def test_samples_that_wait_are_named(tmp_path):
    found = judged(Plant("SlowSamples", "Linear", WITH_TWO), CPU, tmp_path)
    first = found.bottleneck.limits[0]
    assert found.bottleneck.holds
    assert first.resource == "workers", found.bottleneck
    assert max(first.shares, key=first.shares.__getitem__) == "waiting"
    assert found.bottleneck.late is None
    assert found.run.wait_fraction > 0.5


def test_one_slow_worker_is_named(tmp_path):
    found = judged(Plant("SlowFirstWorker", "Linear", WITH_TWO), CPU, tmp_path)
    assert found.bottleneck.late is not None
    assert found.bottleneck.late.by == "worker"
    assert found.bottleneck.late.ratio > 3
    assert found.bottleneck.limits[0].resource == "workers"


def test_a_planted_step_is_named_and_the_parts_of_a_step_tell_the_same(tmp_path):
    found = judged(Plant("Samples", "SlowStep", WITH_TWO), CPU, tmp_path)
    first = found.bottleneck.limits[0]
    assert first.resource == "cores", found.bottleneck
    assert first.shares["computing"] > 0.8
    assert found.run.compute_fraction > 0.8
    assert found.run.copy_fraction < 0.05
