"""What was measured is kept, and what only explains or shows it ends no run; over a fake bench."""

import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
from pipeline_rig import ALL_TRIALS, Killed, resumed, tune_fake

from loadtune import tuner
from loadtune.errors import ResultError, UsageError
from loadtune.records.config import TuneConfig, YourSettings
from loadtune.records.result import TuningResult
from loadtune.records.telemetry import Progress, Reading, Telemetry
from loadtune.report.store import load_result
from loadtune.run_file import read_run
from loadtune.testing import FakeBench, FakeSensor

TESTS = Path(__file__).resolve().parents[1]


def singular(matrix: object) -> None:
    raise np.linalg.LinAlgError("Singular matrix")


def told(result: TuningResult, words: str) -> str:
    (note,) = [note for note in result.notes if words in note]
    return note


@pytest.mark.usefixtures("study_in_memory")
@pytest.mark.parametrize("stage", ["study", "confirm"])
def test_a_model_that_cannot_be_fitted_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def listen(progress: Progress) -> None:
        if progress.stage == stage and progress.message:
            monkeypatch.setattr(np.linalg, "inv", singular)

    for run in (tune_fake, resumed):
        result = run(bench=FakeBench(), folder=tmp_path, config=ALL_TRIALS, listener=listen)
        assert result.best is not None
        assert result.cut_short is None
        assert result.bottleneck is None
        assert "Singular matrix" in told(result, "The bottleneck is not named")
        assert any("The search ended early" in note for note in result.notes) == (stage == "study")
        assert load_result(tmp_path) == result


@pytest.mark.usefixtures("study_in_memory")
def test_what_is_confirmed_is_on_the_disk_before_it_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*given: object) -> None:
        raise Killed

    monkeypatch.setattr(tuner, "name_bottleneck", dies)
    with pytest.raises(Killed):
        tune_fake(FakeBench(), tmp_path, ALL_TRIALS)
    monkeypatch.undo()
    best = load_result(tmp_path).best
    assert best is not None
    assert resumed(tmp_path, ALL_TRIALS).best == best


@pytest.mark.parametrize("name", ["report.html", "study.db", "bench.log"])
def test_a_side_file_that_cannot_be_written_is_a_note(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    shown: list[str] = []
    result = tune_fake(FakeBench(), tmp_path, ALL_TRIALS, lambda progress: shown.append(progress.message or ""))
    assert result.best is not None
    assert len(result.trials) == ALL_TRIALS.num_trials
    note = told(result, name)
    assert "directory" in note
    assert shown.count(note) == 1
    assert load_result(tmp_path) == result


def test_whoever_locks_the_study_is_in_nobodys_way(tmp_path: Path) -> None:
    """A viewer may hold its lock for as long as the run goes on."""
    viewers = list[sqlite3.Connection]()

    def listen(progress: Progress) -> None:
        if progress.stage == "study" and progress.message and not viewers:
            viewers.append(sqlite3.connect(tmp_path / "study.db", isolation_level=None))
            viewers[0].execute("BEGIN EXCLUSIVE")

    result = tune_fake(FakeBench(), tmp_path, ALL_TRIALS, listen)
    viewers[0].close()
    assert result.best is not None
    study = optuna.load_study(study_name="loadtune", storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert len(study.trials) == len(result.trials) == ALL_TRIALS.num_trials


@pytest.mark.usefixtures("study_in_memory")
def test_progress_that_cannot_be_shown_is_told_once(tmp_path: Path) -> None:
    def listen(progress: Progress) -> None:
        raise OSError(28, f"No space left on device, {progress.left_s}")

    result = tune_fake(FakeBench(), tmp_path, ALL_TRIALS, listen)
    assert result.best is not None
    assert "No space left" in told(result, "Progress could not be shown")


class Broken(FakeSensor):
    def latest(self) -> Reading:
        raise RuntimeError("the driver was unloaded")

    def between(self, start_s: float, end_s: float) -> Telemetry:
        raise RuntimeError(f"the driver was unloaded at {start_s}")


@pytest.mark.usefixtures("study_in_memory")
def test_a_sensor_that_raises_is_told_once(tmp_path: Path) -> None:
    bench = FakeBench()
    result = tune_fake(bench, tmp_path, ALL_TRIALS, lambda progress: None, sensor=Broken(bench.clock))
    assert result.best is not None
    assert "the driver was unloaded" in told(result, "Telemetry is missing")
    assert all(trial.measurement is None or trial.measurement.telemetry is None for trial in result.trials)


@pytest.fixture
def full_disk() -> object:
    """Call it with a number of bytes: no file of this process grows beyond."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda num_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("study_in_memory")
def test_a_run_file_that_cannot_be_written_ends_the_run_and_stays_whole(
    tmp_path: Path, full_disk: Callable[[int], None]
) -> None:
    def listen(progress: Progress) -> None:
        if progress.stage == "study" and progress.trial_number == 2:
            full_disk((tmp_path / "run.json").stat().st_size + 100)

    with pytest.raises(ResultError, match=r"run\.json could not be written .* needs .* free.* --resume"):
        tune_fake(FakeBench(), tmp_path, ALL_TRIALS, listen)
    full_disk(resource.RLIM_INFINITY)
    assert len(read_run(tmp_path).trials) == 2
    result = resumed(tmp_path, ALL_TRIALS)
    assert len(result.trials) == ALL_TRIALS.num_trials
    assert result.best is not None


@pytest.mark.usefixtures("study_in_memory")
def test_a_result_that_cannot_be_written_is_written_by_the_next_resumption(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    with pytest.raises(ResultError, match=r"result\.json could not be written .* needs .* free.* --resume"):
        tune_fake(FakeBench(), tmp_path, ALL_TRIALS)
    (tmp_path / "result.json").rmdir()
    bench = FakeBench(seed=1)
    assert resumed(tmp_path, ALL_TRIALS, bench).best is not None
    assert "training" not in [kind for kind, _ in bench.requests]
    assert load_result(tmp_path).best is not None


OWNER = """
import sys, time
from pathlib import Path
from pipeline_rig import tune_fake
from loadtune.testing import FakeBench

def listen(progress):
    if progress.stage == "study" and progress.message:
        print("runs", flush=True)
        time.sleep(600)

tune_fake(FakeBench(), Path(sys.argv[1]), listener=listen)
"""


@pytest.mark.usefixtures("study_in_memory")
def test_a_folder_has_one_owner_until_that_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(TESTS)!r}]\n{OWNER}", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "runs\n"
            before = {path: path.read_bytes() for path in tmp_path.iterdir()}
            for again in (resumed, tune_fake):
                bench = FakeBench()
                with pytest.raises(UsageError, match=rf"in use by another run \(process {owner.pid} .*since 20\d\d-"):
                    again(folder=tmp_path, bench=bench)
                assert bench.requests == []
            assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
        finally:
            owner.send_signal(signal.SIGKILL)
    assert resumed(tmp_path, TuneConfig(num_trials=2)).best is not None
    assert not (tmp_path / "run.lock").exists()


@pytest.mark.parametrize("content", [None, b"garbage"])
def test_a_study_that_was_lost_or_damaged_is_written_anew(tmp_path: Path, content: bytes | None) -> None:
    """With the baseline, whose workers end with each epoch, as those of no other configuration of the space do."""
    config = TuneConfig(num_trials=2, yours=YourSettings(num_workers=4))
    first = tune_fake(FakeBench(), tmp_path, config)
    (tmp_path / "study.db").unlink()
    if content is not None:
        (tmp_path / "study.db").write_bytes(content)
    result = resumed(tmp_path, replace(config, num_trials=3))
    study = optuna.load_study(study_name="loadtune", storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert [trial.number for trial in study.trials] == [trial.number for trial in result.trials]
    assert result.trials[:2] == first.trials
    assert all("pin_memory" in trial.params for trial in study.trials)
