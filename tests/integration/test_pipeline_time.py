"""What a time budget is spent on, over a fake training whose requests last as long as those of a real one."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fakes import FakeTraining, Surface, fake_facts, fake_host
from pipeline_rig import tune_fake

from loadtune.records.config import Recipe, TrialConfig, TuneConfig
from loadtune.records.facts import Device
from loadtune.records.measurement import ComputePoint, TrainingRun, TrialFailure, Window
from loadtune.seams import Watch

STEP_S, SAMPLE_S, WORKER_S = 0.25, 0.01, 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class LongSteps(Surface):
    """A step takes 0.25 s whatever the batch, and a sample 10 ms of waiting: as many workers as there are help."""

    def compute_rate(self, recipe: Recipe, batch_size: int) -> float:
        return batch_size / STEP_S

    def training_rate(self, config: TrialConfig) -> float:
        load_s, num_workers = config.batch_size * SAMPLE_S, config.loader.num_workers
        return config.batch_size / (max(STEP_S, load_s / num_workers) if num_workers else STEP_S + load_s)


@dataclass(slots=True)
class Lasting(FakeTraining):
    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        self._spend(STEP_S, "warm-up")
        self.requests.append(("compute", batch_size))
        windows = [self._window(STEP_S, max(1, round(seconds / 4 / STEP_S)), batch_size) for _ in range(2)]
        return ComputePoint(recipe=recipe, batch_size=batch_size, windows=tuple(windows))

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        """A batch is there once a worker made the first one."""
        num_workers, batch_s = config.loader.num_workers, config.batch_size * SAMPLE_S
        self._spend(STEP_S + WORKER_S * num_workers + (batch_s if num_workers else 0.0), "first batch")

        def queued(window: Window) -> bool:
            return watch(replace(window, queue_start=0.0, queue_end=0.0) if num_workers else window)

        ran = FakeTraining.time_training(self, config, window_s, queued)
        return ran if isinstance(ran, TrialFailure) else replace(ran, batch_s=batch_s if num_workers else 0.0)


@pytest.mark.parametrize(("budget_s", "least_per_s"), [(60.0, 450.0), (150.0, 2500.0), (240.0, 3700.0)])
def test_a_job_of_long_steps_and_waiting_samples_uses_its_time_to_find_many_workers(
    tmp_path: Path, budget_s: float, least_per_s: float
) -> None:
    """With shares of the budget for each stage it ended at 260, 1,490 and 2,480 samples/s."""
    each = {"compute_per_s": {"fp32": 1.0, "bf16": 1.0}, "bytes_per_sample": {"fp32": 1e3, "bf16": 1e3}}
    surface = LongSteps(**each, pageable_per_s=1e9)
    facts = replace(fake_facts(surface), dataset_length=10_240, sample_s=SAMPLE_S, sample_cpu_s=2e-4, sample_bytes=40)
    training = Lasting(surface, facts=replace(facts, input_shape=(8,), takes_channels_last=False), build_s=10.0)
    begun, host = training.clock(), fake_host(num_usable_cores=2, num_gpus=0)
    config, cpu = TuneConfig(time_budget_s=budget_s), Device(kind="cpu", name="CPU")
    result = tune_fake(training, tmp_path, config, host=host, device=cpu)
    assert training.clock() - begun <= budget_s
    assert result.cut_short is None
    assert result.best.samples_per_s > least_per_s
    assert result.best.half_width_fraction is not None
    assert len([size for request, size in training.requests if request == "compute"]) <= 12
