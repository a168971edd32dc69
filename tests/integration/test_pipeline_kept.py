"""What was measured is kept, and what only explains or shows it ends no run; over a fake training."""

import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import optuna
import pytest
from fakes import FakeSensor, FakeTraining
from pipeline_rig import ALL_TRIALS, interrupt, resumed, tune_fake

from loadtune import story
from loadtune.errors import ResultError, UsageError
from loadtune.records.config import TuneConfig
from loadtune.records.measurement import Progress, Telemetry
from loadtune.records.result import Result
from loadtune.run.state import read_run
from loadtune.store import load_result

TESTS = Path(__file__).resolve().parents[1]


def singular(matrix: object) -> None:
    raise np.linalg.LinAlgError("Singular matrix")


def told(result: Result, words: str) -> str:
    (note,) = [note for note in result.notes if words in note]
    return note


@pytest.mark.parametrize("stage", ["study", "confirm"])
def test_a_model_that_cannot_be_fitted_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def listen(progress: Progress) -> None:
        if progress.stage == stage and progress.message:
            monkeypatch.setattr(np.linalg, "inv", singular)

    result = tune_fake(FakeTraining(), tmp_path, ALL_TRIALS, listen)
    assert result.best is not None
    assert result.cut_short is None
    assert result.bottleneck is None
    assert "Singular matrix" in told(result, "The bottleneck is not named")
    assert any("The search ended early" in note for note in result.notes) == (stage == "study")
    assert load_result(tmp_path) == result


@pytest.fixture
def full_disk() -> object:
    """Call it with a number of bytes: no file of this process grows beyond."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda num_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_run_file_that_cannot_be_written_ends_the_run_and_stays_whole(
    tmp_path: Path, full_disk: Callable[[int], None]
) -> None:
    def listen(progress: Progress) -> None:
        if progress.stage == "study" and progress.number == 3:
            full_disk((tmp_path / "run.json").stat().st_size + 100)

    with pytest.raises(ResultError, match=r"run\.json could not be written .* needs .* free.* --resume"):
        tune_fake(FakeTraining(), tmp_path, ALL_TRIALS, listen)
    full_disk(resource.RLIM_INFINITY)
    assert len(read_run(tmp_path).trials) == 2
    result = resumed(tmp_path, ALL_TRIALS)
    assert len(result.trials) == ALL_TRIALS.num_trials
    assert result.best is not None


def test_a_result_that_cannot_be_written_is_written_by_the_next_resumption(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    with pytest.raises(ResultError, match=r"result\.json could not be written .* needs .* free.* --resume"):
        tune_fake(FakeTraining(), tmp_path, ALL_TRIALS)
    (tmp_path / "result.json").rmdir()
    before, result = read_run(tmp_path), resumed(tmp_path, ALL_TRIALS)
    assert list(result.trials) == before.trials
    assert load_result(tmp_path) == result


OWNER = """
import sys, time
from pathlib import Path
from pipeline_rig import tune_fake
from fakes import FakeTraining

def listen(progress):
    if progress.stage == "study" and progress.message:
        print("runs", flush=True)
        time.sleep(600)

tune_fake(FakeTraining(), Path(sys.argv[1]), listener=listen)
"""


def test_a_folder_has_one_owner_until_that_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(TESTS)!r}]\n{OWNER}", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout.readline() == "runs\n"
            before = {path: path.read_bytes() for path in tmp_path.iterdir()}
            for again in (resumed, tune_fake):
                training = FakeTraining()
                with pytest.raises(UsageError, match=rf"in use by another run \(process {owner.pid} .*since 20\d\d-"):
                    again(folder=tmp_path, training=training)
                assert training.requests == []
            assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
        finally:
            owner.send_signal(signal.SIGKILL)
    half_written = tmp_path / ".run.json.abcd1234"
    half_written.touch()
    assert resumed(tmp_path, TuneConfig(num_trials=2)).best is not None
    assert not (tmp_path / "run.lock").exists()
    assert not half_written.exists()


def test_side_files_that_cannot_be_written_are_notes(tmp_path: Path) -> None:
    names, shown = ("report.html", "study.db", "training.log"), list[str]()
    for name in names:
        (tmp_path / name).mkdir()
    result = tune_fake(FakeTraining(), tmp_path, ALL_TRIALS, lambda progress: shown.append(progress.message or ""))
    assert result.best is not None
    assert len(result.trials) == ALL_TRIALS.num_trials
    for name in names:
        note = told(result, name)
        assert "directory" in note
        assert shown.count(note) == 1
    assert load_result(tmp_path) == result


class Broken(FakeSensor):
    def between(self, start_s: float, end_s: float) -> Telemetry:
        raise RuntimeError(f"the driver was unloaded at {start_s}")


def test_progress_that_cannot_be_shown_a_sensor_that_raises_and_ctrl_c_at_the_page_are_each_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listen(progress: Progress) -> None:
        raise OSError(28, f"No space left on device, {progress.left_s}")

    training = FakeTraining()
    monkeypatch.setattr(story, "write_page", interrupt)
    result = tune_fake(training, tmp_path, ALL_TRIALS, listen, sensor=Broken(training.clock))
    assert result.best is not None
    assert "No space left" in told(result, "Progress could not be shown")
    assert "the driver was unloaded" in told(result, "Telemetry is missing")
    assert told(result, "The report page was not written")
    assert all(trial.measurement is None or trial.measurement.telemetry is None for trial in result.trials)
    assert load_result(tmp_path) == result


def study_of(folder: Path) -> optuna.Study:
    return optuna.load_study(study_name="loadtune", storage=f"sqlite:///{folder / 'study.db'}")


def test_the_study_is_kept_for_other_tools_and_whoever_locks_it_is_in_nobodys_way(tmp_path: Path) -> None:
    """A viewer may hold its lock for as long as the run goes on."""
    viewers = list[sqlite3.Connection]()

    def listen(progress: Progress) -> None:
        if progress.stage == "study" and progress.message and not viewers:
            viewers.append(sqlite3.connect(tmp_path / "study.db", isolation_level=None))
            viewers[0].execute("BEGIN EXCLUSIVE")

    result = tune_fake(FakeTraining(), tmp_path, ALL_TRIALS, listen)
    viewers[0].close()
    assert result.best is not None
    stored = study_of(tmp_path).trials
    assert len(stored) == len(result.trials) == ALL_TRIALS.num_trials
    assert all(trial.state == optuna.trial.TrialState.COMPLETE for trial in stored)
    assert {"batch_size", "num_workers", "pin_memory", "precision"} <= set(stored[0].params)
    proposed = [trial.user_attrs for trial in stored if "predicted" in trial.user_attrs]
    assert len(proposed) == ALL_TRIALS.num_trials - 1, "all but the baseline"
    assert all(attrs["predicted_low"] < attrs["predicted"] < attrs["predicted_high"] for attrs in proposed)
