"""A machine on which steps that wait for the device take longer beside a pinning thread: the search goes round it."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune.records.config import Fixed, Recipe, TrialConfig, TuneConfig, WorkloadSpec
from loadtune.testing import FakeBench, Surface

pytestmark = pytest.mark.usefixtures("study_in_memory")

STRETCH = 1.6


@dataclass(frozen=True, slots=True, kw_only=True)
class StretchedSurface(Surface):
    """As ResNet-50 with SGD on an H200: alone fp16 is the fastest, with batches pinned bf16 is."""

    def training_rate(self, config: TrialConfig) -> float:
        rate = Surface.training_rate(self, config)
        if not (config.recipe.waits_each_step and config.loader.pin_memory and config.loader.num_workers):
            return rate
        return min(rate, self.compute_rate(config.recipe, config.batch_size) / STRETCH)


def test_a_precision_that_waits_for_nothing_wins_where_the_fastest_is_held_up(tmp_path: Path) -> None:
    surface = StretchedSurface(fused_gain=1.0, sample_s=1 / 700, pinned_per_s=1e9)
    result = tune_fake(FakeBench(surface, between_runs=0.004), tmp_path, TuneConfig())
    assert result.best is not None
    alone = max(result.compute_points, key=lambda point: point.samples_per_s)
    assert alone.recipe.precision == "fp16"
    assert result.best.config.precision == "bf16"


def test_where_nothing_waits_the_fastest_precision_wins(tmp_path: Path) -> None:
    surface = StretchedSurface(sample_s=1 / 700, pinned_per_s=1e9)
    config = TuneConfig(workload=WorkloadSpec(optimizer="adamw"))
    result = tune_fake(FakeBench(surface, between_runs=0.004), tmp_path, config)
    assert result.best is not None
    assert result.best.config.recipe == Recipe(precision="fp16", memory_format="channels_last", fused_optimizer=True)


def test_without_workers_there_is_no_thread_that_pins(tmp_path: Path) -> None:
    config = TuneConfig(fix=(Fixed(name="num_workers", value=0),))
    bench = FakeBench(StretchedSurface(fused_gain=1.0, sample_s=1 / 100_000, pinned_per_s=1e9), between_runs=0.004)
    result = tune_fake(bench, tmp_path, config)
    assert result.best is not None
    assert result.best.config.precision == "fp16"
