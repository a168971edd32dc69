"""Calibration: few sizes tell recipe, memory line and compute curve, and none of their steps takes long."""

from collections import Counter
from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune.records.config import Recipe
from loadtune.records.measurement import ComputePoint, TrialFailure
from loadtune.records.memory import BatchTry, FitReport
from loadtune.records.result import TuningResult
from loadtune.records.telemetry import Progress
from loadtune.testing import FakeBench, Surface

pytestmark = pytest.mark.usefixtures("study_in_memory")


class Stepping(FakeBench):
    """Remembers how long a step of each request took."""

    longest_s = 0.0

    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        self.longest_s = max(self.longest_s, batch_size / self.surface.compute_rate(recipe, batch_size))
        return super().time_compute(recipe, batch_size, seconds)

    def try_batch(self, asked: BatchTry) -> FitReport:
        step_s = asked.batch_size / self.surface.compute_rate(asked.recipe, asked.batch_size)
        self.longest_s = max(self.longest_s, step_s)
        return super().try_batch(asked)


def calibrated(bench: FakeBench, folder: Path) -> TuningResult:
    def listen(progress: Progress) -> None:
        if progress.stage == "study":
            raise KeyboardInterrupt

    return tune_fake(bench, folder, None, listen)


def test_a_precision_takes_three_sizes_and_each_recipe_one_timing(tmp_path: Path) -> None:
    bench = Stepping(noise=0.0)
    result = calibrated(bench, tmp_path)
    assert len(result.recipes) == len(result.ceilings) == 3
    for choice in result.recipes:
        curve = {point.batch_size: point for point in result.compute_points if point.recipe == choice.chosen}
        assert sorted(curve) == [32, 256, 1024]
        for size, point in curve.items():
            assert point.samples_per_s == pytest.approx(bench.surface.compute_rate(choice.chosen, size), rel=0.01)
    num_recipes = sum(len(choice.points) for choice in result.recipes)
    on_the_way, single_steps = 2, 2 * 2  # to the moderate batch; of two precisions, each beside the first one
    asked = Counter(kind for kind, _ in bench.requests)
    assert asked == {"compute": on_the_way + num_recipes, "memory": 3 * 2 + single_steps}


@pytest.mark.parametrize("samples_per_s", [8.0, 100.0, 1000.0])
def test_no_step_takes_much_more_than_a_second(tmp_path: Path, samples_per_s: float) -> None:
    bench = Stepping(Surface(compute_per_s={"fp32": samples_per_s}, half_batch=0.5), noise=0.0)
    result = calibrated(bench, tmp_path)
    assert bench.longest_s <= 1.1
    assert max(point.batch_size for point in result.compute_points) >= samples_per_s / 2
