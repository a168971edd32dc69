"""Planted causes are named: a slow loader, a slow worker, a slow step, through the real bench on the CPU."""

import pytest
from bench_rig import CPU
from planted import Plant, judged

from loadtune.records import LoaderConfig

WITH_TWO = LoaderConfig(batch_size=8, num_workers=2)


@pytest.mark.parametrize(("dataset", "bound_by"), [("SlowSamples", "workers"), ("SlowFirstWorker", "slow_worker")])
def test_a_planted_loader_is_named(dataset, bound_by, tmp_path):
    found = judged(Plant(dataset, "Linear", WITH_TWO), CPU, tmp_path)
    assert found.verdict.bound_by == bound_by, found.verdict
    assert found.run.wait_fraction > 0.5


def test_a_planted_step_is_named_and_the_parts_of_a_step_tell_the_same(tmp_path):
    found = judged(Plant("Samples", "SlowStep", WITH_TWO), CPU, tmp_path)
    assert found.verdict.bound_by == "compute", found.verdict
    assert found.run.compute_fraction > 0.8
    assert found.run.copy_fraction < 0.05
