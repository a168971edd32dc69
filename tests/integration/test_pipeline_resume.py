"""A run that was cut off anywhere goes on where it was, and mixes with no other; over a fake bench."""

from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_rig import ALL_TRIALS, Killed, finished, kill_at, killed, resumed, tune_fake

from loadtune.errors import ResultError
from loadtune.records.config import Fixed, Recipe, TrialConfig, TuneConfig, YourSettings
from loadtune.records.measurement import TrialFailure
from loadtune.records.result import TuningResult
from loadtune.records.telemetry import Progress
from loadtune.run_file import RUN_FILE, newest_run, read_run
from loadtune.testing import FakeBench, Surface

pytestmark = pytest.mark.usefixtures("study_in_memory")


PATIENT = TuneConfig(num_trials=40)
"""More trials than there is time for."""


def num_run(result: TuningResult) -> int:
    return len(result.trials)


def test_a_resumed_search_tries_what_it_would_have_tried_anyway(tmp_path: Path) -> None:
    """Without noise: it learns from what was measured, and from nothing else."""

    def quiet() -> FakeBench:
        return FakeBench(noise=0.0, between_runs=0.0)

    config = TuneConfig(num_trials=5, time_budget_s=3000.0)  # no trial takes more than its share of the time left
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = tune_fake(quiet(), tmp_path / "whole", config)
    with pytest.raises(Killed):
        tune_fake(quiet(), tmp_path / "cut", config, kill_at("study", 2))
    result = resumed(tmp_path / "cut", config, quiet())
    assert [(each.config, each.predicted) for each in result.trials] == [
        (each.config, each.predicted) for each in whole.trials
    ]


def test_half_a_file_that_a_crash_left_is_ignored_and_goes(tmp_path: Path) -> None:
    killed(tmp_path, "study", 2)
    half = tmp_path / f".{RUN_FILE}.new"
    half.write_bytes((tmp_path / RUN_FILE).read_bytes()[:-100])
    known = len(read_run(tmp_path).trials)
    result = resumed(tmp_path)
    assert len(read_run(tmp_path).trials) == len(result.trials) > known
    assert result.best is not None
    assert not half.exists()


def test_the_rate_of_your_own_recipe_is_none_of_the_space(tmp_path: Path) -> None:
    """Plain fp32 at the user's batch is the fastest here, and --precision leaves it out of the search."""
    surface = Surface(compute_per_s={"fp32": 9000.0, "bf16": 1000.0}, sample_s=1 / 3000)
    config = TuneConfig(precisions=("bf16",), num_trials=2)
    finished = tune_fake(FakeBench(surface), tmp_path, config)
    assert max(finished.compute_points, key=lambda point: point.samples_per_s).recipe == Recipe()
    result = resumed(tmp_path, replace(config, num_trials=4), FakeBench(surface, seed=1))
    assert len(result.trials) > len(finished.trials)
    assert {trial.config.precision for trial in result.trials} == {"bf16"}
    assert result.best is not None


@pytest.mark.parametrize("stage", ["calibrate", "study"])
def test_a_run_that_ended_before_its_first_trial_is_calibrated_once_and_whole(tmp_path: Path, stage: str) -> None:
    def listen(progress: Progress) -> None:
        if progress.stage == stage:
            raise Killed

    with pytest.raises(Killed):
        tune_fake(FakeBench(), tmp_path, None, listen)
    before, bench = read_run(tmp_path), FakeBench(seed=1)
    result = resumed(tmp_path, None, bench)
    assert bool(before.ceilings) == bool(before.compute_points) == (stage == "study")
    assert (result.recipes == before.recipes) == (stage == "study")
    assert (bench.requests[0][0] == "training") == (stage == "study")
    assert len({ceiling.precision for ceiling in result.ceilings}) == len(result.ceilings)
    assert result.best is not None


def test_what_failed_once_is_asked_again_and_what_failed_twice_is_not(tmp_path: Path) -> None:
    planted = TrialFailure(kind="shm", phase="training", message="planted")
    config = TuneConfig(num_trials=3, yours=YourSettings(batch_size=64, num_workers=4))

    def fail(config: TrialConfig) -> TrialFailure | None:
        return planted if config.loader.num_workers == 4 and config.batch_size == 64 else None

    first = tune_fake(FakeBench(fail=fail), tmp_path, config)
    (own,) = (trial.config for trial in first.trials if trial.origin == "yours")
    again = resumed(tmp_path, config, FakeBench(fail=fail, seed=1))
    assert [trial.failure for trial in again.trials if trial.config == own] == [planted, planted]
    last = resumed(tmp_path, config, FakeBench(seed=2))
    assert [trial.failure for trial in last.trials if trial.config == own] == [planted, planted]


def test_a_confirmation_goes_on_and_is_made_anew_after_newer_trials(tmp_path: Path) -> None:
    killed(tmp_path, "confirm")
    kept = read_run(tmp_path).confirmed
    finished = resumed(tmp_path)
    assert finished.best is not None
    runs = [run for finalist in finished.finalists for run in finalist.runs]
    assert all(line.measurement in runs for line in kept)
    again = resumed(tmp_path)
    assert again.best == finished.best
    extended = resumed(tmp_path, TuneConfig(num_trials=5), FakeBench(seed=2))
    assert num_run(finished) < num_run(extended) <= 5
    newer = [run for finalist in extended.finalists for run in finalist.runs]
    assert not any(run in newer for run in runs)


def test_more_trials_take_nothing_from_an_answer_where_nothing_is_left_to_try(tmp_path: Path) -> None:
    values = {"batch_size": 256, "precision": "fp16", "num_workers": 8}
    config = TuneConfig(num_trials=5, fix=tuple(Fixed(name=name, value=value) for name, value in values.items()))
    finished = tune_fake(FakeBench(), tmp_path, config)
    assert {trial.config.loader.pin_memory for trial in finished.trials} == {False, True}
    bench = FakeBench(seed=1)
    again = resumed(tmp_path, replace(config, num_trials=30), bench)
    assert bench.requests == []
    assert (again.trials, again.finalists, again.best) == (finished.trials, finished.finalists, finished.best)


def test_a_search_that_had_ended_is_not_gone_on_with(tmp_path: Path) -> None:
    """Time ended it before its trials did; a run that was killed in the confirmation goes on there."""
    killed(tmp_path, "confirm", config=PATIENT)
    before = read_run(tmp_path)
    assert len(before.trials) < PATIENT.num_trials
    assert before.searched is not None
    result = resumed(tmp_path, PATIENT)
    assert list(result.trials) == before.trials
    assert {line.config for line in before.confirmed} <= {finalist.config for finalist in result.finalists}
    runs = [run for finalist in result.finalists for run in finalist.runs]
    assert all(line.measurement in runs for line in before.confirmed)


@pytest.mark.parametrize("more", [{"num_trials": PATIENT.num_trials + 3}, {"time_budget_s": 900.0}])
def test_more_trials_or_time_go_on_with_a_search_that_had_ended(tmp_path: Path, more: dict) -> None:
    finished = tune_fake(FakeBench(), tmp_path, PATIENT)
    assert num_run(resumed(tmp_path, replace(PATIENT, **more))) > num_run(finished)


def test_as_many_trials_as_were_left_are_more_where_they_are_asked_for(tmp_path: Path) -> None:
    """`--resume --trials 3` after 11 of 14 asks for 14 again."""
    finished = tune_fake(FakeBench(), tmp_path, PATIENT)
    again = resumed(tmp_path, PATIENT, reopen=True)
    assert num_run(again) > num_run(finished)
    assert resumed(tmp_path, PATIENT).trials == again.trials


@pytest.mark.parametrize("time_budget_s", [10.0, 300.0])
def test_what_was_said_of_the_searchs_end_is_said_again(tmp_path: Path, time_budget_s: float) -> None:
    config = TuneConfig(time_budget_s=time_budget_s)
    finished = tune_fake(FakeBench(), tmp_path, config)
    again = resumed(tmp_path, config)
    said = [
        [note for note in result.notes if note.startswith("The search ended after")] for result in (finished, again)
    ]
    assert said[0] == said[1]
    assert bool(said[0]) == (time_budget_s == 10.0)


def test_a_smaller_budget_takes_no_finalist_from_what_was_confirmed(tmp_path: Path) -> None:
    whole = finished(tmp_path)
    result = resumed(tmp_path, replace(ALL_TRIALS, time_budget_s=10.0))
    assert len(whole.finalists) > 2
    assert {f.config: f.runs for f in result.finalists} == {f.config: f.runs for f in whole.finalists}


def test_what_was_timed_of_the_winner_is_not_timed_again(tmp_path: Path) -> None:
    first, second = FakeBench(), FakeBench(seed=1)
    finished = tune_fake(first, tmp_path, ALL_TRIALS)
    again = resumed(tmp_path, ALL_TRIALS, bench=second)
    assert second.requests == []
    assert (again.trials, again.finalists) == (finished.trials, finished.finalists)
    for name in ("best", "bottleneck"):
        assert getattr(again, name) == getattr(finished, name) is not None


def test_of_another_winner_they_are_timed_anew(tmp_path: Path) -> None:
    surface = Surface()
    finished = tune_fake(FakeBench(surface), tmp_path, TuneConfig(num_trials=2))
    assert finished.best is not None
    winner = finished.best.config
    bench = FakeBench(surface, seed=1)
    planted = TrialFailure(kind="crash", phase="training", message="planted")
    bench.fail = lambda config: planted if config == winner else None
    other = resumed(tmp_path, TuneConfig(num_trials=4), bench=bench)
    assert other.best is not None
    assert other.best.config != winner


def test_what_cannot_be_resumed_is_told(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="holds no run to resume"):
        newest_run(tmp_path)
    with pytest.raises(ResultError, match=r"run\.json cannot be read: No such file .* without --resume"):
        read_run(tmp_path)
    for content, message in (
        (b'{"schema_vers', r"run\.json is damaged"),
        (b'{"schema_version":99}', "newer loadtune"),
        (b'{"schema_version":1}', r"run\.json is not a run .* without --resume"),
    ):
        (tmp_path / RUN_FILE).write_bytes(content)
        with pytest.raises(ResultError, match=message):
            read_run(tmp_path)


def test_the_baselines_loader_with_workers_that_stay_is_confirmed_without_a_trial(tmp_path: Path) -> None:
    """It trains at the same rate; what differs is the start of workers in each epoch."""
    values = {"batch_size": 64, "num_workers": 4, "precision": "fp32"}
    fixed = tuple(Fixed(name=name, value=value) for name, value in values.items())
    config = TuneConfig(yours=YourSettings(batch_size=64, num_workers=4), fix=fixed)
    result = tune_fake(FakeBench(), tmp_path, config)
    tried, confirmed = (
        {(each.config.loader.pin_memory, each.config.loader.persistent_workers) for each in found}
        for found in (result.trials, result.finalists)
    )
    assert tried == {(False, False), (True, True)}
    assert confirmed >= {(False, False), (False, True)}
