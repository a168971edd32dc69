"""The whole story over a fake bench whose best is known: what a run concludes, and what it survives."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune.errors import NothingFitsError, UsageError, WorkloadError
from loadtune.records.config import LoaderConfig, TrialConfig, TuneConfig, YourSettings
from loadtune.records.measurement import TrialFailure
from loadtune.records.result import TuningResult
from loadtune.records.telemetry import Progress
from loadtune.report.store import load_result
from loadtune.testing import GIB, FakeBench, Surface, fake_facts, fake_host

pytestmark = pytest.mark.usefixtures("study_in_memory")


def best_possible(surface: Surface, result: TuningResult) -> float:
    """The surface's own maximum over everything the study could choose."""
    recipes = {choice.chosen for choice in result.recipes}
    return max(
        surface.training_rate(
            TrialConfig(loader=LoaderConfig(batch_size=b, num_workers=w, pin_memory=p), recipe=recipe)
        )
        for recipe in recipes
        for b in result.batch_sizes
        for w in range(17)
        for p in (False, True)
        if b <= surface.largest_batch(recipe.precision)
    )


@pytest.mark.parametrize("seed", range(2))
def test_finds_the_best_of_a_transfer_bound_surface(tmp_path: Path, seed: int) -> None:
    bench = FakeBench(seed=seed)
    result = tune_fake(bench, tmp_path, TuneConfig(seed=seed))
    assert result.best is not None
    assert bench.surface.training_rate(result.best.config) >= 0.97 * best_possible(bench.surface, result)
    assert result.best.config.loader.pin_memory
    assert result.best.speedup is not None
    assert result.best.speedup.value > 5
    assert result.best.speedup.holds(1.0) is False
    assert result.cut_short is None


def test_workers_are_not_wasted_where_compute_is_the_wall(tmp_path: Path) -> None:
    surface = Surface(sample_s=1 / 50_000, pinned_per_s=1e9, pageable_per_s=1e9)
    # Runs that differ by less than the 2% within which the smallest configuration wins.
    result = tune_fake(FakeBench(surface, between_runs=0.004), tmp_path, TuneConfig())
    assert result.best is not None
    assert result.best.config.loader.num_workers == 1
    assert result.bottleneck is not None
    assert result.bottleneck.limits[0].resource == "device"


def test_the_wall_is_respected(tmp_path: Path) -> None:
    surface = Surface(budget_bytes=12 * GIB)
    bench = FakeBench(surface)
    result = tune_fake(bench, tmp_path, TuneConfig())
    for ceiling in result.ceilings:
        largest = surface.largest_batch(ceiling.precision)
        assert 0.95 * largest <= ceiling.batch_size <= largest
        was_run = any(p.batch_size == ceiling.batch_size and p.fits for p in ceiling.probes)
        assert was_run == ceiling.verified
    assert result.trials
    assert all(t.config.batch_size <= surface.largest_batch(t.config.precision) for t in result.trials)
    assert not any(t.failure for t in result.trials)


@pytest.mark.parametrize("kind", ["crash", "host_oom"])
def test_a_failing_trial_is_data(tmp_path: Path, kind: str) -> None:
    def fail(config: TrialConfig) -> TrialFailure | None:
        bad = config.loader.num_workers > 10
        return TrialFailure(kind=kind, phase="training", message="planted") if bad else None  # type: ignore[arg-type]

    bench = FakeBench(fail=fail)
    result = tune_fake(bench, tmp_path, TuneConfig())
    assert any(t.failure is not None and t.failure.kind == kind for t in result.trials)
    assert result.best is not None
    assert result.best.config.loader.num_workers <= 10


@pytest.mark.parametrize(
    ("most", "words"),
    [(None, "No configuration with workers ran: A worker"), (1, "Your loader does not work with workers: A worker")],
)
def test_that_no_worker_survives_is_told_once(tmp_path: Path, most: int | None, words: str) -> None:
    def fail(config: TrialConfig) -> TrialFailure | None:
        died = TrialFailure(kind="crash", phase="first batch", message="A worker exited with code 1.")
        return died if config.loader.num_workers else None

    result = tune_fake(
        FakeBench(fail=fail), tmp_path, TuneConfig(yours=YourSettings(num_workers=1), max_workers=most, num_trials=4)
    )
    told = [note for note in result.notes if "exited with code 1" in note]
    assert len(told) == 1
    assert told[0].startswith(words)


def test_a_users_error_ends_the_run_and_keeps_what_was_measured(tmp_path: Path) -> None:
    seen: list[TrialConfig] = []

    def fail(config: TrialConfig) -> TrialFailure | None:
        seen.append(config)
        broken = TrialFailure(kind="user_error", phase="training", message="sample 7 raised", log_tail="KeyError: 7")
        return broken if len(seen) == 3 else None

    with pytest.raises(WorkloadError, match="sample 7 raised") as raised:
        tune_fake(FakeBench(fail=fail), tmp_path)
    assert raised.value.user_traceback == "KeyError: 7"
    kept = load_result(tmp_path)
    assert sum(trial.measurement is not None for trial in kept.trials) == 2
    assert kept.best is None
    assert kept.cut_short is not None


def test_ctrl_c_keeps_the_trials_and_claims_nothing(tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == "study" and (progress.trial_number or 0) >= 3:
            raise KeyboardInterrupt

    result = tune_fake(FakeBench(), tmp_path, listener=interrupt)
    assert result.cut_short == "interrupted by Ctrl-C"
    assert result.best is None
    assert result.bottleneck is None
    assert len(result.trials) >= 3
    assert load_result(tmp_path) == result
    assert "No configuration could be confirmed." in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_nothing_fits(tmp_path: Path) -> None:
    with pytest.raises(NothingFitsError, match="smallest batch"):
        tune_fake(FakeBench(Surface(budget_bytes=GIB // 2)), tmp_path)


def test_a_batch_larger_than_the_dataset_is_refused(tmp_path: Path) -> None:
    bench = FakeBench(facts=replace(fake_facts(Surface()), dataset_length=100))
    with pytest.raises(UsageError, match="--batch-size is 101, but an epoch has only 100 samples"):
        tune_fake(bench, tmp_path, TuneConfig(yours=YourSettings(batch_size=101)))


def test_a_second_winner_at_the_users_batch(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(), tmp_path, TuneConfig(yours=YourSettings(batch_size=32)))
    assert result.best_at_your_batch is not None
    assert result.best_at_your_batch.config.batch_size == 32
    surface, fastest = Surface(), result.recipes[1].chosen
    reachable = min(surface.pinned_per_s, surface.compute_rate(fastest, 32))
    assert fastest.precision == "fp16"
    assert surface.training_rate(result.best_at_your_batch.config) > 0.9 * reachable
    assert result.assumed == ("num_workers", "pin_memory", "precision")


def test_only_confirmed_figures_are_reported(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(between_runs=0.05), tmp_path)
    assert result.best is not None
    finalist = next(f for f in result.finalists if f.config == result.best.config)
    assert len(finalist.runs) >= 2
    assert math.isclose(result.best.samples_per_s, finalist.samples_per_s)
    study_figures = {t.measurement.samples_per_s for t in result.trials if t.measurement}
    assert result.best.samples_per_s not in study_figures


def test_a_precision_that_computes_too_slowly_is_left_alone(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(Surface(compute_per_s={"fp32": 300.0, "bf16": 2600.0})), tmp_path, TuneConfig())
    assert {t.config.precision for t in result.trials if t.origin == "search"} == {"bf16"}


def test_same_seed_same_trials(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        runs.append(tune_fake(FakeBench(seed=5), tmp_path / name, TuneConfig(seed=5, num_trials=5)))
    assert [t.config for t in runs[0].trials] == [t.config for t in runs[1].trials]


def test_an_assumed_batch_is_one_its_precision_trains(tmp_path: Path) -> None:
    surface = Surface(bytes_per_sample={"fp32": 2e9, "fp16": 1e6, "bf16": 1e6}, budget_bytes=20 * GIB)
    result = tune_fake(FakeBench(surface), tmp_path)
    ceiling = next(c.safe_batch_size for c in result.ceilings if c.precision == "fp32")
    assert result.yours is not None
    assert result.yours.batch_size == 8 <= ceiling < 16
    assert any(f.config == result.yours for f in result.finalists)


def test_a_given_batch_that_does_not_fit_is_said_and_not_replaced(tmp_path: Path) -> None:
    surface = Surface(bytes_per_sample={"fp32": 2e9, "fp16": 1e6, "bf16": 1e6}, budget_bytes=20 * GIB)
    result = tune_fake(FakeBench(surface), tmp_path, TuneConfig(num_trials=3, yours=YourSettings(batch_size=64)))
    assert any("Your batch size 64 is above" in note for note in result.notes)
    assert any("The baseline (your settings)" in note and "oom" in note for note in result.notes)
    assert result.best is not None
    assert result.best.speedup is None


def test_a_machine_that_shows_more_memory_later_is_believed(tmp_path: Path) -> None:
    """Nothing that prefetches fits the memory seen at first; asked again, it does."""
    small = replace(fake_host(), ram_available_bytes=GIB // 64)
    most = {}
    for name, now in (("grown", fake_host()), ("small", small)):
        (tmp_path / name).mkdir()
        run = tune_fake(FakeBench(), tmp_path / name, host=small, host_now=lambda now=now: now)
        most[name] = max(trial.config.loader.num_workers * trial.config.batch_size for trial in run.trials)
    assert most["grown"] > 4 * most["small"]
