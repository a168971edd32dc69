"""The whole story over a fake training: what is concluded, also where there is hardly anything to choose or to run."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fakes import GIB, FakeTraining, Surface, fake_facts, fake_host
from pipeline_rig import tune_fake

from loadtune.errors import UsageError, WorkloadError
from loadtune.model.workers import SHM_SHARE, prefetch_bytes
from loadtune.records.config import LoaderConfig, TrialConfig, TuneConfig, YourSettings
from loadtune.records.facts import Device
from loadtune.records.measurement import FailureKind, TrainingRun, TrialFailure, Window
from loadtune.run.state import read_run
from loadtune.seams import Watch
from loadtune.store import load_result


def test_finds_the_best_of_a_transfer_bound_surface(tmp_path: Path) -> None:
    training = FakeTraining(noise=0.01, between_runs=0.01)
    result = tune_fake(training, tmp_path, TuneConfig())
    surface = training.surface
    possible = [
        surface.training_rate(
            TrialConfig(loader=LoaderConfig(batch_size=size, num_workers=16, pin_memory=True), recipe=r)
        )
        for r in {choice.chosen for choice in result.recipes}
        for size in read_run(tmp_path).batch_sizes
        if size <= surface.largest_batch(r.precision)
    ]
    assert surface.training_rate(result.best.config) >= 0.97 * max(possible), "all of its workers, pinned"
    assert result.best.speedup.low > 5
    assert result.cut_short is None
    confirmed = next(f for f in result.finalists if f.config == result.best.config)
    assert len(confirmed.runs) >= 2
    assert result.best.samples_per_s == pytest.approx(confirmed.samples_per_s)
    assert result.best.samples_per_s not in {t.measurement.samples_per_s for t in result.trials if t.measurement}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretched(Surface):
    """As ResNet-50 with SGD on an H200: alone fp16 is the fastest. Steps that wait for the device take longer beside a
    pinning thread, and then bf16 is."""

    def training_rate(self, config: TrialConfig) -> float:
        rate = Surface.training_rate(self, config)
        if not (config.recipe.waits_each_step and config.loader.pin_memory and config.loader.num_workers):
            return rate
        return min(rate, self.compute_rate(config.recipe, config.batch_size) / 1.6)


def test_a_precision_that_waits_for_nothing_wins_where_the_fastest_is_held_up(tmp_path: Path) -> None:
    surface = Stretched(fused_gain=1.0, sample_s=1 / 700, pinned_per_s=1e9)
    result = tune_fake(FakeTraining(surface, between_runs=0.004), tmp_path, TuneConfig())
    alone = max(result.compute_points, key=lambda point: point.samples_per_s)
    assert alone.recipe.precision == "fp16"
    assert result.best.config.precision == "bf16"


def test_workers_are_not_wasted_where_compute_is_the_wall(tmp_path: Path) -> None:
    surface = Surface(sample_s=1 / 50_000, pinned_per_s=1e9, pageable_per_s=1e9)
    # Runs that differ by less than the 2% within which the smallest configuration wins.
    result = tune_fake(FakeTraining(surface, between_runs=0.004), tmp_path, TuneConfig())
    assert result.best.config.loader.num_workers == 1
    assert result.bottleneck.limits[0].resource == "device"


@pytest.mark.parametrize(
    ("most", "words"),
    [(None, "No configuration with workers ran: A worker"), (1, "Your loader does not work with workers: A worker")],
)
def test_that_no_worker_survives_is_told_once_and_the_answer_if_any_has_none(
    tmp_path: Path, most: int | None, words: str
) -> None:
    died = TrialFailure(kind="crash", phase="first batch", message="A worker exited with code 1.")
    training = FakeTraining(fail=lambda config: died if config.loader.num_workers else None)
    config = TuneConfig(yours=YourSettings(num_workers=1), max_workers=most, num_trials=4)
    result = tune_fake(training, tmp_path, config)
    told = [note for note in result.notes if "exited with code 1" in note]
    assert len(told) == 1
    assert told[0].startswith(words)
    assert any(trial.failure is not None and trial.failure.kind == "crash" for trial in result.trials)
    assert result.best is None or result.best.config.loader.num_workers == 0


def test_a_users_error_ends_the_run_and_keeps_what_was_measured(tmp_path: Path) -> None:
    broken = TrialFailure(kind="user_error", phase="training", message="sample 7 raised", log_tail="KeyError: 7")
    fails = iter([None, None, broken])
    with pytest.raises(WorkloadError, match="sample 7 raised") as raised:
        tune_fake(FakeTraining(fail=lambda config: next(fails)), tmp_path)
    assert raised.value.user_traceback == "KeyError: 7"
    kept = load_result(tmp_path)
    assert sum(trial.measurement is not None for trial in kept.trials) == 2
    assert kept.best is None
    assert kept.cut_short is not None


def bench_with(**facts: int) -> FakeTraining:
    return FakeTraining(facts=replace(fake_facts(Surface()), **facts))


def test_memory_that_grew_since_the_start_is_used(tmp_path: Path) -> None:
    """A virtual machine shows too little at first. What is there later bounds the batches in flight."""
    small, grown = (replace(fake_host(), shm_free_bytes=free) for free in (1, 2 * GIB))
    result = tune_fake(FakeTraining(), tmp_path, TuneConfig(num_trials=6), host=small, host_now=lambda: grown)
    sample_bytes = fake_facts(Surface()).sample_bytes
    most = max(prefetch_bytes(t.config.loader, sample_bytes) for t in result.trials if t.config.loader.num_workers)
    assert SHM_SHARE * GIB < most <= 2 * SHM_SHARE * GIB


def test_a_single_core_and_nothing_to_pin_for(tmp_path: Path) -> None:
    config, cpu = TuneConfig(num_trials=3, yours=YourSettings(pin_memory=True)), Device(kind="cpu", name="CPU")
    result = tune_fake(FakeTraining(), tmp_path, config, host=fake_host(num_usable_cores=1, num_gpus=0), device=cpu)
    assert {trial.config.loader.num_workers for trial in result.trials} <= {0, 1}
    assert result.best is not None
    assert not any(trial.config.loader.pin_memory for trial in result.trials)
    assert any("pin_memory has no effect without a GPU" in note for note in result.notes)


@pytest.mark.parametrize(("dataset_length", "min_batch_size"), [(2, 2), (7, 1)])
def test_a_dataset_of_a_few_samples(tmp_path: Path, dataset_length: int, min_batch_size: int) -> None:
    training = bench_with(dataset_length=dataset_length, min_batch_size=min_batch_size)
    result = tune_fake(training, tmp_path)
    assert {ceiling.batch_size for ceiling in result.ceilings} == {dataset_length}
    assert {ceiling.limit for ceiling in result.ceilings} == {"dataset"}
    assert all(min_batch_size <= trial.config.batch_size <= dataset_length for trial in result.trials)
    assert result.best is not None


@pytest.mark.parametrize(
    ("facts", "config", "named"),
    [
        ({}, TuneConfig(max_batch_size=1), "--max-batch-size 1"),
        ({"dataset_length": 1}, TuneConfig(), "an epoch has 1 sample"),
    ],
)
def test_a_batch_of_one_that_cannot_train_is_the_users_to_mend(
    tmp_path: Path, facts: dict[str, int], config: TuneConfig, named: str
) -> None:
    with pytest.raises(UsageError, match=named) as raised:
        tune_fake(bench_with(min_batch_size=2, **facts), tmp_path, config)
    assert "at least 2" in str(raised.value)


@pytest.mark.parametrize(("kind", "yours_runs"), [("crash", True), ("crash", False), ("oom", False)])
def test_everything_fails_but_perhaps_yours(tmp_path: Path, kind: FailureKind, yours_runs: bool) -> None:
    planted = TrialFailure(kind=kind, phase="training", message="planted")

    def fail(config: TrialConfig) -> TrialFailure | None:
        is_yours = config.recipe.memory_format == "contiguous"  # no recipe of the study's is, on this surface
        return None if yours_runs and is_yours else planted

    result = tune_fake(FakeTraining(fail=fail), tmp_path)
    assert all(trial.failure for trial in result.trials)
    assert [f.config for f in result.finalists] == ([result.yours] if yours_runs else [])
    if yours_runs:
        assert any("No configuration but your settings could be run" in note for note in result.notes)
    else:
        assert any(kind in note and "planted" in note for note in result.notes)
        assert (result.best, result.best_at_your_batch, result.bottleneck) == (None, None, None)


def test_a_given_batch_that_does_not_fit_is_said_and_the_winner_claims_no_speedup(tmp_path: Path) -> None:
    surface = Surface(bytes_per_sample={"fp32": 2e9, "fp16": 1e6, "bf16": 1e6}, budget_bytes=20 * GIB)
    result = tune_fake(FakeTraining(surface), tmp_path, TuneConfig(num_trials=3, yours=YourSettings(batch_size=64)))
    assert any("Your batch size 64 is above" in note for note in result.notes)
    assert any("The baseline (your settings)" in note and "oom" in note for note in result.notes)
    assert result.best.speedup is None
    assert result.best_at_your_batch.speedup is None


def test_skipped_steps_in_the_winners_rate_are_told(tmp_path: Path) -> None:
    """A model that overflows in fp16 is fast because its optimizer never steps."""

    class Overflowing(FakeTraining):
        def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
            def overflow(window: Window) -> bool:
                skipped = window.num_steps if config.precision == "fp16" else 0
                return watch(replace(window, num_skipped_steps=skipped))

            return FakeTraining.time_training(self, config, window_s, overflow)

    result = tune_fake(Overflowing(Surface(sample_s=1 / 50_000, pinned_per_s=1e9)), tmp_path)
    assert result.best.config.precision == "fp16"
    assert any("GradScaler skipped" in note for note in result.notes)
    assert any(trial.measurement and trial.measurement.noisy for trial in result.trials)
