"""A run that was cut off anywhere goes on where it was, and mixes with no other; over a fake training."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_rig import ALL_TRIALS, Killed, kill_at, killed, resumed, tune_fake

from loadtune.errors import ResultError
from loadtune.records.config import TuneConfig
from loadtune.records.telemetry import Progress
from loadtune.run import RUN_FILE, newest_run, read_run
from loadtune.testing import FakeTraining, Surface, fake_facts

pytestmark = pytest.mark.usefixtures("study_in_memory")


PATIENT = TuneConfig(num_trials=40)
"""More trials than there is time for."""


def test_a_resumed_search_tries_what_it_would_have_tried_anyway(tmp_path: Path) -> None:
    """Without noise: it learns from what was measured, and from nothing else."""

    def quiet() -> FakeTraining:
        return FakeTraining(noise=0.0, between_runs=0.0)

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


@pytest.mark.parametrize("stage", ["calibrate", "study"])
def test_a_run_that_ended_before_its_first_trial_is_calibrated_once_and_whole(tmp_path: Path, stage: str) -> None:
    def listen(progress: Progress) -> None:
        if progress.stage == stage:
            raise Killed

    with pytest.raises(Killed):
        tune_fake(FakeTraining(), tmp_path, None, listen)
    before, training = read_run(tmp_path), FakeTraining(seed=1)
    result = resumed(tmp_path, None, training)
    assert bool(before.ceilings) == bool(before.compute_points) == (stage == "study")
    assert (result.recipes == before.recipes) == (stage == "study")
    assert (training.requests[0][0] == "training") == (stage == "study")
    assert len({ceiling.precision for ceiling in result.ceilings}) == len(result.ceilings)
    assert result.best is not None


@pytest.fixture(scope="module")
def cut_in_the_confirmation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose search was ended by its time, and that was killed in its confirmation."""
    folder = tmp_path_factory.mktemp("cut")
    killed(folder, "confirm", config=PATIENT)
    return folder


@pytest.mark.parametrize(
    "more", [{"num_trials": PATIENT.num_trials + 3}, {"time_budget_s": 300.0}], ids=["more trials", "more time"]
)
def test_a_confirmation_goes_on_and_a_search_that_had_ended_only_where_more_is_asked_for(
    tmp_path: Path, cut_in_the_confirmation: Path, more: dict
) -> None:
    """A confirmation is made anew after newer trials."""
    shutil.copytree(cut_in_the_confirmation, tmp_path, dirs_exist_ok=True)
    before = read_run(tmp_path)
    assert len(before.trials) < PATIENT.num_trials
    assert before.searched is not None
    finished = resumed(tmp_path, PATIENT)
    assert list(finished.trials) == before.trials
    assert any("was resumed" in note for note in finished.notes)
    runs = [run for finalist in finished.finalists for run in finalist.runs]
    assert all(line.measurement in runs for line in before.confirmed)
    config = replace(PATIENT, **more)
    extended = resumed(tmp_path, config, FakeTraining(seed=2))
    assert len(extended.trials) > len(finished.trials)
    newer = [run for finalist in extended.finalists for run in finalist.runs]
    assert not any(run in newer for run in runs)
    assert resumed(tmp_path, config).trials == extended.trials


def test_what_was_measured_and_said_is_not_asked_for_again_nor_lost_with_a_smaller_budget(tmp_path: Path) -> None:
    finished, training = tune_fake(FakeTraining(), tmp_path, ALL_TRIALS), FakeTraining(seed=1)
    again = resumed(tmp_path, ALL_TRIALS, training)
    assert training.requests == []
    for name in ("trials", "finalists", "best", "bottleneck"):
        assert getattr(again, name) == getattr(finished, name) is not None
    hurried = resumed(tmp_path, replace(ALL_TRIALS, time_budget_s=10.0))
    assert len(finished.finalists) > 2
    assert {f.config: f.runs for f in hurried.finalists} == {f.config: f.runs for f in finished.finalists}


def test_a_resumed_run_searches_the_workers_that_it_searched_before(tmp_path: Path) -> None:
    """Where samples wait, how many workers are worth a trial depends on the time budget and on what a sample took."""
    waits = replace(fake_facts(Surface()), sample_cpu_s=Surface().sample_s / 20)
    longer = TuneConfig(num_trials=2, time_budget_s=600.0)
    tune_fake(FakeTraining(facts=waits), tmp_path, longer)
    before = read_run(tmp_path).num_workers
    assert max(before) > 16, "more than there are cores"
    shorter = replace(longer, num_trials=3, time_budget_s=100.0)
    result = resumed(tmp_path, shorter, training=FakeTraining(facts=waits, seed=1))
    assert len(result.trials) >= 3
    assert {trial.config.loader.num_workers for trial in result.trials} <= {0, *before}


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
