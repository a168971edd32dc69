"""The confirmation within a run, where its time is short; over a fake bench."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune.records.config import TrialConfig, TuneConfig, YourSettings
from loadtune.records.measurement import TrainingRun, TrialFailure, Window
from loadtune.seams import Watch
from loadtune.testing import FakeBench

pytestmark = pytest.mark.usefixtures("study_in_memory")

AFTER = ("confirm", "bounds", "costs")
"""The confirmation and the stages after it."""


class Busy(FakeBench):
    """Others on the machine: workers take 6 s to start, so a run of the confirmation takes 12 s, and vary more."""

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        self.clock.spend(6.0)
        return super().time_training(config, window_s, watch)


class Locking(FakeBench):
    """Up to six windows of a run lock a pinned loader's blocks, and their steps take twice as long."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed, noise=0.01, between_runs=0.01)
        self.left, self.chance = 0, random.Random(seed)

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        self.left = self.chance.randint(0, 6) if config.loader.pin_memory else 0
        return super().time_training(config, window_s, watch)

    def _window(self, step_s: float, num_steps: int, batch_size: int, wait_fraction: float = 0.0) -> Window:
        locks, self.left = self.left > 0, max(0, self.left - 1)
        window = super()._window(step_s * (1 + locks), num_steps, batch_size, wait_fraction)
        return replace(window, page_lock_s=0.3 * window.seconds if locks else 0.0)


@pytest.mark.parametrize("seed", range(2))
def test_page_locking_is_in_no_figure_of_the_answer(tmp_path: Path, seed: int) -> None:
    bench = Locking(seed)
    result = tune_fake(bench, tmp_path, TuneConfig(seed=seed))
    assert result.best is not None
    assert result.best.config.loader.pin_memory
    assert result.best.samples_per_s == pytest.approx(bench.surface.training_rate(result.best.config), rel=0.03)
    assert result.best.half_width_fraction is not None
    assert result.best.half_width_fraction < 0.1


@pytest.mark.parametrize("seed", range(2))
def test_on_a_busy_machine_the_winner_and_the_baseline_are_run_twice_and_told_apart(tmp_path: Path, seed: int) -> None:
    result = tune_fake(Busy(seed=seed, between_runs=0.065), tmp_path, TuneConfig(seed=seed, time_budget_s=360.0))
    assert result.best is not None
    runs = {finalist.config: len(finalist.runs) for finalist in result.finalists}
    assert min(runs[result.best.config], runs[result.yours]) >= 2
    assert result.best.speedup is not None
    assert result.best.speedup.holds(1.0) is False
    before_s = sum(seconds for name, seconds in result.stage_seconds.items() if name not in AFTER)
    longest_s = max(run.seconds for finalist in result.finalists for run in finalist.runs)
    assert result.stage_seconds["confirm"] <= 0.85 * (result.config.time_budget_s - before_s) + longest_s


@pytest.mark.parametrize("seed", range(2))
def test_on_a_quiet_machine_the_confirmation_takes_no_longer_than_it_is_meant_to(tmp_path: Path, seed: int) -> None:
    result = tune_fake(FakeBench(seed=seed, noise=0.01, between_runs=0.01), tmp_path, TuneConfig(seed=seed))
    assert result.stage_seconds["confirm"] <= 0.25 * result.config.time_budget_s


@pytest.mark.parametrize("seed", range(2))
def test_the_best_at_your_batch_is_run_twice_as_well(tmp_path: Path, seed: int) -> None:
    yours = YourSettings(batch_size=32)
    result = tune_fake(Busy(seed=seed, between_runs=0.065), tmp_path, TuneConfig(seed=seed, yours=yours))
    at_batch = [finalist for finalist in result.finalists if finalist.config.batch_size == 32]
    assert len(at_batch) >= 2
    assert min(len(finalist.runs) for finalist in at_batch) >= 2
    assert result.best_at_your_batch is not None
    assert result.best_at_your_batch.config in {finalist.config for finalist in at_batch}
    assert result.best_at_your_batch.config != result.yours


@pytest.mark.parametrize(("time_budget_s", "batch_size"), [(90.0, None), (120.0, 32)])
def test_a_short_budget_has_an_answer(tmp_path: Path, time_budget_s: float, batch_size: int | None) -> None:
    config = TuneConfig(time_budget_s=time_budget_s, yours=YourSettings(batch_size=batch_size))
    result = tune_fake(Busy(), tmp_path, config)
    assert result.best is not None
    assert result.best.config != result.yours or result.best.measured_once
    assert (result.best_at_your_batch is None) == (batch_size is None)
