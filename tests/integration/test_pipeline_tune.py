"""What was asked for is tried: dimensions given to --tune, spaces within the trials asked for; over a fake bench."""

from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune.records import (
    Fixed,
    LoaderConfig,
    OptionalDimension,
    Progress,
    Recipe,
    TrialConfig,
    TrialFailure,
    TuneConfig,
    TuningResult,
    YourSettings,
)
from loadtune.testing import FakeBench, Surface

TUNED: tuple[OptionalDimension, ...] = ("prefetch_factor", "memory_format", "in_order", "persistent_workers")
NARROW = (Fixed(name="precision", value="bf16"), Fixed(name="batch_size", value=200))
WHOLE = TuneConfig(fix=NARROW, max_workers=16, num_trials=100)
"""26 configurations: 0 to 8 workers, 10, 12, 14 and 16, pinned or not."""


def configs(result: TuningResult) -> list[TrialConfig]:
    return [trial.config for trial in result.trials]


def notes(result: TuningResult, name: str) -> list[str]:
    return [note for note in result.notes if note.startswith(f"--tune {name}: ")]


@pytest.mark.parametrize("prepare_s", [1.0, 12.0])
def test_each_tuned_dimension_is_tried_in_the_time_there_is_by_default(tmp_path: Path, prepare_s: float) -> None:
    result = tune_fake(FakeBench(prepare_s=prepare_s), tmp_path, TuneConfig(tune=TUNED))
    _, corner, *others = configs(result)
    loader = corner.loader
    same = [other.loader for other in others if other.batch_size == loader.batch_size]
    assert any((each.prefetch_factor, each.in_order, each.persistent_workers) == (4, True, True) for each in same)
    assert any((each.prefetch_factor, each.in_order, each.persistent_workers) == (2, False, True) for each in same)
    assert any((each.prefetch_factor, each.in_order, each.persistent_workers) == (2, True, False) for each in same)
    formats = {other.recipe.memory_format for other in others if other.loader == loader}
    assert formats == {"contiguous", "channels_last"}
    assert not any(notes(result, name) for name in TUNED)


def test_what_was_not_tried_in_time_is_told_and_what_was_is_not(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(prepare_s=25.0), tmp_path, TuneConfig(tune=TUNED))
    ends = "only one value was tried, because the time ended. Raise --time-budget to try others."
    assert notes(result, "in_order") == [f"--tune in_order: {ends}"]
    assert notes(result, "persistent_workers") == [f"--tune persistent_workers: {ends}"]
    assert not notes(result, "prefetch_factor")
    assert {config.loader.in_order for config in configs(result)} == {True}
    assert {config.loader.prefetch_factor for config in configs(result)} == {2, 4}


def test_a_resumed_run_says_what_was_not_tried_as_the_first_did(tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == "confirm":
            raise KeyboardInterrupt

    config = TuneConfig(tune=TUNED)
    first = tune_fake(FakeBench(prepare_s=25.0), tmp_path, config, interrupt)
    again = tune_fake(FakeBench(prepare_s=25.0), tmp_path, config, resume=True)
    told = [note for note in first.notes if "--time-budget" in note]
    assert len(told) > 2
    assert [note for note in again.notes if note in told] == told


def test_without_a_second_trial_no_larger_time_budget_is_advised(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(), tmp_path, TuneConfig(tune=("in_order",), num_trials=1))
    assert notes(result, "in_order") == [
        "--tune in_order: only one value was tried before the search ended (1 trial was measured)."
    ]


def test_without_workers_there_is_no_other_value_of_what_concerns_them(tmp_path: Path) -> None:
    config = TuneConfig(tune=("in_order", "memory_format"), fix=(Fixed(name="num_workers", value=0),))
    result = tune_fake(FakeBench(), tmp_path, config)
    (note,) = notes(result, "in_order")
    assert "no effect without workers" in note
    assert {config.recipe.memory_format for config in configs(result)} == {"contiguous", "channels_last"}


@pytest.mark.parametrize("num_trials", [26, 100])
def test_a_space_within_the_trials_asked_for_is_run_whole(tmp_path: Path, num_trials: int) -> None:
    """Four workers reach what it computes, and no more does any later one: that ends no search that was to see all."""
    surface = Surface(compute_per_s={"fp32": 450.0, "bf16": 450.0})
    run = configs(tune_fake(FakeBench(surface), tmp_path, replace(WHOLE, num_trials=num_trials, time_budget_s=600.0)))
    assert len(run) == len(set(run)) == 26


def test_by_default_no_more_is_run_whole_than_there_are_trials(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(), tmp_path, TuneConfig(fix=NARROW, max_workers=16))
    assert len(configs(result)) < 12
    assert any("a worker needs for a sample" in (trial.screened or "") for trial in result.trials)


def test_where_time_ends_a_space_that_was_to_be_run_whole_it_is_told(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(prepare_s=10.0), tmp_path, WHOLE)
    run = configs(result)
    assert 6 < len(run) < 26
    assert any(f"ended the search after {len(run)} of the 26 configurations" in note for note in result.notes)
    assert all(config.loader.num_workers > 2 for config in run), "what is near the prediction comes first"


def test_what_cannot_reach_the_best_any_more_is_ended_early(tmp_path: Path) -> None:
    """A trial's noise would be worth six windows and 1.2 s; what trains at half the best rate has three."""
    config = TuneConfig(fix=NARROW, max_workers=2, num_trials=20, yours=YourSettings(batch_size=200, num_workers=2))
    measured = {
        (trial.config.loader.num_workers, trial.config.loader.pin_memory): trial.measurement
        for trial in tune_fake(FakeBench(), tmp_path, config).trials
    }
    best, hopeless = measured[2, True], measured[1, True]
    assert best is not None
    assert hopeless is not None
    assert hopeless.samples_per_s < 0.7 * best.samples_per_s
    assert len(best.windows) >= 6
    assert len(hopeless.windows) == 3


def test_a_precision_that_ran_out_of_memory_in_one_format_does_so_in_the_other(tmp_path: Path) -> None:
    def fail(config: TrialConfig) -> TrialFailure | None:
        over = config.precision == "fp16" and config.batch_size >= 64
        return TrialFailure(kind="oom", phase="training", message="planted") if over else None

    config = TuneConfig(tune=("memory_format",), precisions=("fp16",), num_trials=20)
    result = tune_fake(FakeBench(fail=fail), tmp_path, config)
    failed = [trial.config.batch_size for trial in result.trials if trial.failure]
    assert failed == sorted(set(failed), reverse=True)
    refused = [trial.config for trial in result.trials if "ran out of memory in a trial" in (trial.screened or "")]
    assert Recipe(precision="fp16") in {config.recipe for config in refused}
    assert LoaderConfig(batch_size=256, num_workers=16, pin_memory=True) in {config.loader for config in refused}
