"""What is searched, what is not, and when the search is over; over a fake bench."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune.errors import ResultError, UsageError
from loadtune.records.config import Fixed, LoaderConfig, Recipe, TrialConfig, TuneConfig, YourSettings
from loadtune.records.facts import Device
from loadtune.records.measurement import TrialFailure
from loadtune.records.result import TuningResult, Winner
from loadtune.records.telemetry import Progress
from loadtune.report.store import write_result
from loadtune.testing import FakeBench, Surface, fake_facts, fake_host

pytestmark = pytest.mark.usefixtures("study_in_memory")

FIXED = (
    Fixed(name="precision", value="bf16"),
    Fixed(name="batch_size", value=200),
    Fixed(name="memory_format", value="contiguous"),
)


def values(result: TuningResult, name: str) -> set[object]:
    return {getattr(t.config.loader, name) for t in result.trials if t.config.loader.num_workers}


def test_what_is_fixed_stays_and_the_baseline_is_compared_all_the_same(tmp_path: Path) -> None:
    config = TuneConfig(fix=FIXED, max_workers=3, num_trials=20, yours=YourSettings(batch_size=64, num_workers=2))
    result = tune_fake(FakeBench(), tmp_path, config)
    run = [trial.config for trial in result.trials]
    assert {(c.batch_size, c.precision, c.recipe.memory_format) for c in run} == {(200, "bf16", "contiguous")}
    assert len({c.loader for c in run}) < 8, "nothing that cannot win is run for completeness"
    assert result.best is not None
    assert result.best.config.loader.num_workers == 3
    assert result.yours is not None
    assert (result.yours.batch_size, result.yours.precision) == (64, "fp32")
    assert any(finalist.config == result.yours for finalist in result.finalists)


def test_what_is_tuned_is_searched_and_the_rest_is_not(tmp_path: Path) -> None:
    tuned = TuneConfig(
        tune=("prefetch_factor", "memory_format", "in_order"), num_trials=24, time_budget_s=900.0, max_batch_size=256
    )
    result = tune_fake(FakeBench(), tmp_path, tuned)
    assert len(values(result, "prefetch_factor")) >= 3
    assert values(result, "in_order") == {False, True}
    assert values(result, "persistent_workers") == {True}
    assert {t.config.recipe.memory_format for t in result.trials} == {"contiguous", "channels_last"}
    assert result.best is not None
    assert result.best.config.recipe.memory_format == "channels_last"


@pytest.mark.parametrize(
    ("config", "device", "shape", "told"),
    [
        (
            TuneConfig(fix=(Fixed(name="batch_size", value=5000),)),
            "cuda",
            (3, 8, 8),
            "--fix batch_size=5000 does not fit",
        ),
        (TuneConfig(fix=(Fixed(name="pin_memory", value=True),)), "cpu", (3, 8, 8), "without a GPU"),
        (TuneConfig(max_gpu_memory_bytes=1 << 34), "cpu", (3, 8, 8), "--max-gpu-memory is for a GPU"),
        (TuneConfig(tune=("memory_format",)), "cuda", (8,), "a sample of this dataset is 8. .*memory_format"),
        (TuneConfig(fix=(Fixed(name="precision", value="fp16"),)), "cuda", (8,), "fp16 is not available"),
    ],
)
def test_what_cannot_be_had_is_told(tmp_path: Path, config: TuneConfig, device: str, shape: object, told: str) -> None:
    surface = Surface(compute_per_s={"fp32": 2300.0})
    bench = FakeBench(surface, facts=replace(fake_facts(surface), input_shape=shape))
    with pytest.raises(UsageError, match=told):
        tune_fake(bench, tmp_path, config, device=Device(kind=device, uuid="GPU-0", name="Fake"))


def elsewhere(folder: Path, result: TuningResult, **loader: int) -> Path:
    """Another machine's result, with a winner of 48 workers."""
    config = TrialConfig(
        loader=LoaderConfig(**{"batch_size": 300, "num_workers": 48, "pin_memory": True, **loader}),
        recipe=Recipe(precision="bf16"),
    )
    winner = Winner(config=config, samples_per_s=9000.0, half_width_fraction=None)
    folder.mkdir()
    return write_result(replace(result, best=winner), folder)


def test_another_machines_winner_is_tried_first_as_far_as_this_one_goes(tmp_path: Path) -> None:
    first = tune_fake(FakeBench(), tmp_path, TuneConfig(num_trials=1))
    path = elsewhere(tmp_path / "elsewhere", first)
    result = tune_fake(FakeBench(), tmp_path / "elsewhere", TuneConfig(warm_start=str(path), num_trials=3))
    (warm,) = [trial for trial in result.trials if trial.origin == "warm start"]
    assert warm.number == 1
    assert warm.config.loader == LoaderConfig(batch_size=256, num_workers=16, pin_memory=True)
    assert warm.config.precision == "bf16"


def test_a_resumed_run_starts_with_what_the_first_one_read(tmp_path: Path) -> None:
    first = tune_fake(FakeBench(), tmp_path, TuneConfig(num_trials=1))
    path = elsewhere(tmp_path / "elsewhere", first)
    config = TuneConfig(warm_start=str(path), num_trials=3, yours=YourSettings(batch_size=64))
    folder = tmp_path / "resumed"
    folder.mkdir()

    def interrupt(progress: Progress) -> None:
        if progress.stage == "study":
            raise KeyboardInterrupt

    assert tune_fake(FakeBench(), folder, config, interrupt).trials == ()
    path.unlink()
    result = tune_fake(FakeBench(), folder, config, resume=True)
    assert [trial.origin for trial in result.trials].count("warm start") == 1
    assert result.best is not None


def test_a_result_without_a_winner_starts_nothing(tmp_path: Path) -> None:
    write_result(replace(tune_fake(FakeBench(), tmp_path, TuneConfig(num_trials=1)), best=None), tmp_path)
    with pytest.raises(ResultError, match=r"--warm-start is .*confirmed no configuration"):
        tune_fake(FakeBench(), tmp_path, TuneConfig(warm_start=str(tmp_path)))


def test_an_oom_in_a_trial_lowers_that_precisions_bound(tmp_path: Path) -> None:
    """The probe saw these sizes train; with a loader beside them they do not."""

    def fail(config: TrialConfig) -> TrialFailure | None:
        over = config.precision == "fp16" and config.batch_size >= 100
        return TrialFailure(kind="oom", phase="training", message="planted") if over else None

    result = tune_fake(FakeBench(fail=fail), tmp_path, TuneConfig(time_budget_s=600.0, num_trials=8))
    failed = [trial.config.batch_size for trial in result.trials if trial.failure]
    assert failed == sorted(failed, reverse=True)
    assert len(failed) == len(set(failed))
    assert result.best is not None


def test_ram_that_ran_out_in_a_trial_bounds_what_is_prefetched(tmp_path: Path) -> None:
    def in_flight(config: TrialConfig) -> int:
        return config.batch_size * config.loader.num_workers

    def fail(config: TrialConfig) -> TrialFailure | None:
        over = in_flight(config) > 1500
        return TrialFailure(kind="shm", phase="training", message="planted") if over else None

    result = tune_fake(FakeBench(fail=fail), tmp_path, TuneConfig(num_trials=20))
    failed = [in_flight(trial.config) for trial in result.trials if trial.failure]
    assert failed == sorted(failed, reverse=True)
    assert len(failed) == len(set(failed))


@pytest.mark.parametrize(
    ("total", "free", "said"),
    [
        (
            64 << 20,
            64 << 20,
            "need 1.72 GiB of /dev/shm, of which 51.2 MiB can be used. Start the container with --shm-size=3g",
        ),
        (0, 0, "Workers need a /dev/shm, which is missing or read-only here. Start the container with --shm-size=3g"),
        (64 << 30, 64 << 30, None),
        (None, None, None),
    ],
)
def test_workers_that_do_not_fit_into_shm_are_named_with_the_remedy(
    tmp_path: Path, total: int | None, free: int | None, said: str | None
) -> None:
    host = replace(fake_host(), shm_total_bytes=total, shm_free_bytes=free)
    result = tune_fake(FakeBench(), tmp_path, host=host)
    notes = [note for note in result.notes if "/dev/shm" in note]
    assert [said in note for note in notes] == [True] * (said is not None)
    assert result.best is not None
    assert total != 0 or not any(trial.config.loader.num_workers for trial in result.trials)


def test_where_pinning_does_not_limit_the_most_workers_win(tmp_path: Path) -> None:
    surface = Surface(pinned_per_s=1e9, pageable_per_s=1e9)
    result = tune_fake(FakeBench(surface), tmp_path, TuneConfig(), host=fake_host(num_usable_cores=12))
    assert result.best is not None
    assert surface.training_rate(result.best.config) >= 0.97 * 12 / surface.sample_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SameStep(Surface):
    """A step takes as long whatever its batch."""

    step_s: float = 0.15

    def compute_rate(self, recipe: Recipe, batch_size: int) -> float:
        return batch_size / self.step_s


CPU = Device(kind="cpu", uuid=None, name="Fake CPU")


def waiting(surface: Surface, **facts: object) -> FakeBench:
    """On a CPU, with small samples that wait rather than compute."""
    few = {"precisions": ("fp32",), "sample_bytes": 4096, "sample_cpu_s": surface.sample_s / 100, **facts}
    return FakeBench(surface, facts=replace(fake_facts(surface), **few))


def test_a_job_whose_step_takes_as_long_whatever_its_batch_gets_a_large_one(tmp_path: Path) -> None:
    surface = SameStep(sample_s=0.006, bytes_per_sample={"fp32": 1e6}, pageable_per_s=1e9)
    result = tune_fake(
        waiting(surface), tmp_path, TuneConfig(), host=fake_host(num_usable_cores=2, num_gpus=0), device=CPU
    )
    assert result.best is not None
    assert surface.training_rate(result.best.config) >= 2500


def test_a_batch_is_at_most_a_tenth_of_an_epoch(tmp_path: Path) -> None:
    bench = waiting(SameStep(pageable_per_s=1e9), dataset_length=1000)
    result = tune_fake(bench, tmp_path, host=fake_host(num_gpus=0), device=CPU)
    assert max(result.batch_sizes) <= 100
    assert any("an epoch would have fewer than 10 steps" in note for note in result.notes)


def test_what_could_not_turn_over_its_queue_in_the_time_left_is_not_tried_and_that_is_said(tmp_path: Path) -> None:
    config = TuneConfig(time_budget_s=120.0)
    bench = waiting(SameStep(step_s=0.5, sample_s=0.1))
    result = tune_fake(bench, tmp_path, config, host=fake_host(num_usable_cores=2, num_gpus=0), device=CPU)
    assert any("The time left was too short to measure them" in note for note in result.notes)
    assert all(trial.measurement is not None for trial in result.trials)


@pytest.mark.parametrize("given", [None, 48])
def test_an_assumed_baseline_is_a_power_of_two_that_the_machine_can_run(tmp_path: Path, given: int | None) -> None:
    bench = waiting(Surface(compute_per_s={"fp32": 8.0}, half_batch=1.0, bytes_per_sample={"fp32": 87e6}))
    config = TuneConfig(num_trials=1, yours=YourSettings(batch_size=given))
    result = tune_fake(bench, tmp_path, config, host=fake_host(num_usable_cores=2, num_gpus=0), device=CPU)
    assert result.yours is not None
    assert result.yours.batch_size == (given or 8)
    assert any(finalist.config == result.yours for finalist in result.finalists)
