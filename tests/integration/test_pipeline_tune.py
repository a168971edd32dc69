"""Dimensions given to --tune are tried, or it is said that they were not; over a fake bench."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune.records.config import Fixed, OptionalDimension, TrialConfig, TuneConfig
from loadtune.records.measurement import TrialFailure
from loadtune.records.result import TuningResult
from loadtune.records.telemetry import Progress
from loadtune.testing import FakeBench

pytestmark = pytest.mark.usefixtures("study_in_memory")

TUNED: tuple[OptionalDimension, ...] = ("prefetch_factor", "memory_format", "in_order", "persistent_workers")


def configs(result: TuningResult) -> list[TrialConfig]:
    return [trial.config for trial in result.trials]


def notes(result: TuningResult, name: str) -> list[str]:
    return [note for note in result.notes if note.startswith(f"--tune {name}: ")]


def settings(config: TrialConfig) -> dict[str, object]:
    return {**asdict(config.loader), **asdict(config.recipe)}


def test_each_tuned_dimension_is_tried_by_itself_in_the_time_there_is_by_default(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(), tmp_path, TuneConfig(tune=TUNED, max_batch_size=256))
    tried = [settings(config) for config in configs(result)]
    changed = [
        {name for name in one if one[name] != other[name]} for at, one in enumerate(tried) for other in tried[:at]
    ]
    assert all({name} in changed for name in TUNED)
    assert not any(notes(result, name) for name in TUNED)


def test_what_was_not_tried_in_time_is_told_and_what_was_is_not(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(prepare_s=25.0), tmp_path, TuneConfig(tune=TUNED))
    ends = "only one value was tried, because the time ended. Raise --time-budget to try others."
    values = {
        name: {settings(config)[name] for config in configs(result) if config.loader.num_workers} for name in TUNED
    }
    untried = {name for name in TUNED if len(values[name]) < 2}
    assert untried
    assert len(untried) < len(TUNED)
    assert {name: notes(result, name) for name in untried} == {name: [f"--tune {name}: {ends}"] for name in untried}
    assert not any(notes(result, name) for name in set(TUNED) - untried)


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


def test_once_every_tuned_value_was_tried_more_trials_go_to_other_configurations(tmp_path: Path) -> None:
    config = TuneConfig(tune=("prefetch_factor",), num_trials=6, max_batch_size=256)  # 8 batches a worker fit into RAM
    first = tune_fake(FakeBench(), tmp_path, config)
    assert {config.loader.prefetch_factor for config in configs(first)} == {1, 2, 4, 8}
    again = tune_fake(FakeBench(seed=1), tmp_path, replace(config, num_trials=8), resume=True)
    assert len(again.trials) == 8


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


def test_a_precision_that_ran_out_of_memory_in_one_format_does_so_in_the_other(tmp_path: Path) -> None:
    def fail(config: TrialConfig) -> TrialFailure | None:
        over = config.precision == "fp16" and config.batch_size >= 64
        return TrialFailure(kind="oom", phase="training", message="planted") if over else None

    config = TuneConfig(tune=("memory_format",), precisions=("fp16",), num_trials=20)
    result = tune_fake(FakeBench(fail=fail), tmp_path, config)
    failed = [trial.config.batch_size for trial in result.trials if trial.failure]
    assert failed
    assert failed == sorted(set(failed), reverse=True)
    assert {trial.config.recipe.memory_format for trial in result.trials} == {"contiguous", "channels_last"}
    assert result.best is not None
