"""The whole story where there is hardly anything to choose, hardly any time, or hardly anything that runs."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pipeline_rig import tune_fake

from loadtune.errors import UsageError, WorkloadError
from loadtune.probe.host_memory import SHM_SHARE, prefetch_bytes
from loadtune.records.config import Recipe, TrialConfig, TuneConfig, YourSettings
from loadtune.records.facts import Device
from loadtune.records.measurement import ComputePoint, FailureKind, TrainingRun, TrialFailure, Window
from loadtune.records.result import TuningResult
from loadtune.records.telemetry import Progress
from loadtune.run import Run
from loadtune.seams import Watch
from loadtune.testing import GIB, FakeBench, FakeClock, FakeSensor, Surface, fake_facts, fake_host

pytestmark = pytest.mark.usefixtures("study_in_memory")


def bench_with(surface: Surface | None = None, **facts: Any) -> FakeBench:
    surface = surface or Surface()
    return FakeBench(surface, facts=replace(fake_facts(surface), **facts))


def failing(kind: FailureKind, when: Any = lambda config: True) -> Any:
    return lambda config: TrialFailure(kind=kind, phase="training", message="planted") if when(config) else None


def is_plain(config: TrialConfig) -> bool:
    """The user's own: no recipe of the study's is plain on this surface."""
    return config.recipe.memory_format == "contiguous"


def searched(result: TuningResult) -> set[int]:
    return {trial.config.loader.num_workers for trial in result.trials}


def test_one_rank_of_four_has_a_quarter_of_the_machine(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(), tmp_path, TuneConfig(num_trials=3, ranks_per_node=4))
    assert max(searched(result)) <= 4
    whole, rank = fake_host(), result.host
    assert (rank.num_usable_cores, rank.num_listed_cores) == (4, 16)
    for name in ("ram_limit_bytes", "ram_available_bytes", "shm_total_bytes", "shm_free_bytes"):
        assert getattr(rank, name) == getattr(whole, name) // 4
    text = "one rank of 4: it has 4 of 16 usable cores, 32.0 GiB of 128 GiB RAM, and 16.0 GiB of 64.0 GiB /dev/shm"
    assert [note for note in result.notes if text in note]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_has_its_share_of_memory_that_grew_too(tmp_path: Path, ranks: int) -> None:
    """A virtual machine shows too little at first. What is there later bounds the batches in flight."""
    small, grown = (replace(fake_host(), shm_free_bytes=free) for free in (1, 2 * GIB))
    config = TuneConfig(num_trials=6, ranks_per_node=ranks)
    result = tune_fake(FakeBench(), tmp_path, config, host=small, host_now=lambda: grown)
    sample_bytes = fake_facts(Surface()).sample_bytes
    most = max(prefetch_bytes(t.config.loader, sample_bytes) for t in result.trials if t.config.loader.num_workers)
    assert (most <= SHM_SHARE * GIB) == (ranks == 2)


def test_a_rank_without_a_core_is_refused(tmp_path: Path) -> None:
    bench = FakeBench()
    with pytest.raises(UsageError, match=r"--ranks-per-node is 17, but this machine has 16 usable cores .* at most 16"):
        tune_fake(bench, tmp_path, TuneConfig(ranks_per_node=17))
    assert bench.requests == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("num_usable_cores", [0, 1])
def test_a_single_core(tmp_path: Path, num_usable_cores: int) -> None:
    result = tune_fake(FakeBench(), tmp_path, host=fake_host(num_usable_cores=num_usable_cores))
    assert searched(result) <= {0, 1}
    assert result.best is not None


def test_a_cpu_has_nothing_to_pin_for(tmp_path: Path) -> None:
    cpu = Device(kind="cpu", name="CPU")
    yours = YourSettings(pin_memory=True)
    result = tune_fake(
        FakeBench(), tmp_path, TuneConfig(num_trials=3, yours=yours), host=fake_host(num_gpus=0), device=cpu
    )
    assert result.best is not None
    assert not any(trial.config.loader.pin_memory for trial in result.trials)
    assert any("pin_memory has no effect without a GPU" in note for note in result.notes)


def test_no_workers_allowed(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(), tmp_path, TuneConfig(num_trials=3, max_workers=0))
    assert searched(result) == {0}
    assert result.best is not None
    assert result.best.config.loader.num_workers == 0


def test_the_users_workers_above_the_most_allowed_are_compared_with_and_not_searched(tmp_path: Path) -> None:
    config = TuneConfig(num_trials=3, max_workers=2, yours=YourSettings(num_workers=8))
    result = tune_fake(FakeBench(), tmp_path, config)
    assert searched(result) <= {0, 1, 2}
    assert result.yours is not None
    assert result.yours.loader.num_workers == 8
    assert any(f.config == result.yours for f in result.finalists)


@pytest.mark.parametrize(("dataset_length", "min_batch_size"), [(2, 2), (7, 1)])
def test_a_dataset_of_a_few_samples(tmp_path: Path, dataset_length: int, min_batch_size: int) -> None:
    bench = bench_with(dataset_length=dataset_length, min_batch_size=min_batch_size)
    result = tune_fake(bench, tmp_path)
    assert {ceiling.batch_size for ceiling in result.ceilings} == {dataset_length}
    assert {ceiling.limit for ceiling in result.ceilings} == {"dataset"}
    assert all(min_batch_size <= trial.config.batch_size <= dataset_length for trial in result.trials)
    assert result.best is not None


def test_a_model_that_refuses_single_samples_under_a_small_cap(tmp_path: Path) -> None:
    result = tune_fake(bench_with(min_batch_size=2), tmp_path, TuneConfig(num_trials=3, max_batch_size=4))
    assert {ceiling.batch_size for ceiling in result.ceilings} == {4}
    assert result.best is not None
    assert 2 <= result.best.config.batch_size <= 4


@pytest.mark.parametrize(
    ("facts", "config", "named"),
    [
        ({}, TuneConfig(max_batch_size=1), "--max-batch-size 1"),
        ({}, TuneConfig(yours=YourSettings(batch_size=1)), "--batch-size 1"),
        ({"dataset_length": 1}, TuneConfig(), "an epoch has 1 sample"),
    ],
)
def test_a_batch_of_one_that_cannot_train_is_the_users_to_mend(
    tmp_path: Path, facts: dict[str, int], config: TuneConfig, named: str
) -> None:
    with pytest.raises(UsageError, match=named) as raised:
        tune_fake(bench_with(min_batch_size=2, **facts), tmp_path, config)
    assert "at least 2" in str(raised.value)


def test_only_a_precision_that_is_not_the_users(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(), tmp_path, TuneConfig(num_trials=3, precisions=("bf16",)))
    assert {trial.config.precision for trial in result.trials} == {"bf16"}
    assert result.yours is not None
    assert result.yours.precision == "fp32"
    assert result.best is not None
    assert result.best.speedup is not None


def test_every_trial_fails_and_yours_runs(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(fail=failing("crash", lambda config: not is_plain(config))), tmp_path)
    assert all(trial.failure for trial in result.trials)
    assert [f.config for f in result.finalists] == [result.yours]
    assert any("No configuration but your settings could be run" in note for note in result.notes)


@pytest.mark.parametrize("kind", ["crash", "oom", "hang"])
def test_everything_fails(tmp_path: Path, kind: FailureKind) -> None:
    result = tune_fake(FakeBench(fail=failing(kind)), tmp_path)
    assert result.best is None
    assert result.best_at_your_batch is None
    assert result.bottleneck is None
    assert result.finalists == ()
    assert any(kind in note and "planted" in note for note in result.notes)


def test_yours_fails_and_the_winner_claims_no_speedup(tmp_path: Path) -> None:
    config = TuneConfig(num_trials=3, yours=YourSettings(batch_size=32))
    result = tune_fake(FakeBench(fail=failing("shm", is_plain)), tmp_path, config)
    assert result.best is not None
    assert result.best.speedup is None
    assert result.best_at_your_batch is not None
    assert result.best_at_your_batch.speedup is None
    assert any("The baseline (your settings)" in note and "shm" in note for note in result.notes)


def test_a_rate_that_still_grows_where_its_curve_ends_rules_nothing_out(tmp_path: Path) -> None:
    surface = Surface(compute_per_s={"fp32": 2000.0}, half_batch=512.0, sample_s=1e-6, pinned_per_s=1e9)
    result = tune_fake(FakeBench(surface), tmp_path, TuneConfig(time_budget_s=600.0, max_batch_size=4096))
    assert result.best is not None
    assert result.best.config.batch_size > max(p.batch_size for p in result.compute_points if not p.num_timings)


@pytest.mark.parametrize(("point_s", "most_s"), [(0.0, 144.0), (8.0, 300.0)])
def test_a_run_aims_at_half_of_its_time_and_takes_of_the_rest_what_it_needs(
    tmp_path: Path, point_s: float, most_s: float
) -> None:
    """Slow to probe: a search and two rounds are run all the same."""

    class Probed(FakeBench):
        def time_compute(self, recipe, batch_size, seconds):
            self.clock.spend(point_s)
            return FakeBench.time_compute(self, recipe, batch_size, seconds)

    result = tune_fake(Probed(between_runs=0.05), tmp_path, TuneConfig())
    assert result.seconds < most_s
    assert len(result.trials) >= 6
    assert min(len(finalist.runs) for finalist in result.finalists) >= 2


@pytest.mark.parametrize(("probes_s", "search_s"), [(20.0, 155.2), (100.0, 75.2), (150.0, 45.0)])
def test_the_search_leaves_the_confirmation_and_the_last_figures_their_time(probes_s: float, search_s: float) -> None:
    """Of 240 s they need 64.8; where a workload was slow to probe, half of what is left."""
    clock = FakeClock()
    cpu, bench, sensor = Device(kind="cpu", name="Fake"), FakeBench(clock=clock), FakeSensor(clock)
    run = Run(TuneConfig(), fake_host(), cpu, "test", clock, bench, sensor, Path(), fake_host)
    clock.spend(probes_s)
    begun_s = clock.now()
    assert run.search_until_s(begun_s, expected=1.0, of_code=False) - begun_s == pytest.approx(search_s)
    assert run.search_until_s(begun_s, expected=0.01, of_code=False) - begun_s == pytest.approx(min(48.0, search_s))
    assert run.search_until_s(begun_s, expected=0.01, of_code=True) - begun_s == pytest.approx(24.0)


@pytest.mark.parametrize(("num_overflowing", "told"), [(10_000, True), (4, False)])
def test_skipped_steps_in_the_winners_rate_are_told(tmp_path: Path, num_overflowing: int, told: bool) -> None:
    """A model that overflows in fp16 is fast because its optimizer never steps; until its scale fits, many do."""

    class Overflowing(FakeBench):
        num_overflowing = 0

        def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
            num_windows = count()

            def overflow(window: Window) -> bool:
                skips = config.precision == "fp16" and next(num_windows) < self.num_overflowing
                return watch(replace(window, num_skipped_steps=window.num_steps if skips else 0))

            run = FakeBench.time_training(self, config, window_s, overflow)
            assert isinstance(run, TrainingRun)
            skipped = (window.num_steps for window in run.windows[: self.num_overflowing])
            return replace(run, num_skipped_steps=sum(skipped) if config.precision == "fp16" else 0)

    bench = Overflowing(Surface(sample_s=1 / 50_000, pinned_per_s=1e9, copy_per_s=1e9))
    bench.num_overflowing = num_overflowing
    result = tune_fake(bench, tmp_path)
    assert result.best is not None
    assert result.best.config.precision == "fp16"
    assert any("GradScaler skipped" in note for note in result.notes) == told


def test_a_ceiling_that_cannot_be_timed_takes_nothing_from_what_was_confirmed(tmp_path: Path) -> None:
    """A bench that is replaced then builds the workload anew, which may fail: a dataset's files are gone, say."""

    class Gone(FakeBench):
        confirming = False

        def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
            if self.confirming:
                raise WorkloadError("the dataset is gone")
            return FakeBench.time_compute(self, recipe, batch_size, seconds)

    bench = Gone()

    def listen(progress: Progress) -> None:
        bench.confirming |= progress.stage == "confirm"

    result = tune_fake(bench, tmp_path, TuneConfig(num_trials=3, yours=YourSettings(batch_size=100)), listen)
    assert result.cut_short is None
    assert result.best is not None
    assert result.bottleneck is not None
