"""A run whose study.db was damaged or lost goes on by its journal; over a fake bench."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial
from pipeline_rig import tune_fake

from loadtune.errors import ResultError
from loadtune.records import TuneConfig, TuningResult
from loadtune.report.journal import JOURNAL_FILE, read_journal
from loadtune.study.dashboard_view import open_study
from loadtune.study.study_file import connected
from loadtune.testing import FakeBench

FIRST, MORE = TuneConfig(num_trials=5), TuneConfig(num_trials=9)


def told(folder: Path) -> list[FrozenTrial]:
    study = optuna.load_study(study_name="loadtune", storage=f"sqlite:///{folder / 'study.db'}")
    return study.get_trials(deepcopy=False)


def as_told(folder: Path) -> dict[int, tuple[object, ...]]:
    return {
        trial.number: (trial.state, trial.value, trial.params, trial.constraints, trial.user_attrs["origin"])
        for trial in told(folder)
    }


def resumed(folder: Path, config: TuneConfig = MORE) -> TuningResult:
    return tune_fake(FakeBench(seed=1), folder, config, resume=True)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:9000])


def replaced(file: Path) -> None:
    """By the study of a run that was killed earlier, as a backup may do."""
    file.unlink()
    study = optuna.create_study(study_name="loadtune", storage=f"sqlite:///{file}", direction="maximize")
    study.tell(study.ask(), 1.0)


def of_another_program(file: Path) -> None:
    file.unlink()
    with connected(file, read_only=False) as database:
        database.execute("CREATE TABLE studies (study_id INTEGER)")


@pytest.mark.parametrize(
    "damage",
    [lambda file: file.write_bytes(b"garbage"), cut, replaced, of_another_program],
    ids=["garbage", "cut", "replaced", "another program's"],
)
def test_a_damaged_study_is_put_aside_and_built_anew(tmp_path: Path, damage) -> None:
    first = tune_fake(FakeBench(), tmp_path, FIRST)
    before = as_told(tmp_path)
    damage(tmp_path / "study.db")
    result = resumed(tmp_path)
    assert (tmp_path / "study.db.damaged").exists()
    assert result.trials[: len(first.trials)] == first.trials
    assert len(result.trials) > len(first.trials)
    after = as_told(tmp_path)
    run = [trial.number for trial in first.trials]
    assert [after[number] for number in run] == [before[number] for number in run]
    assert any("study.db.damaged. The study was rebuilt from the journal" in note for note in result.notes)
    assert len(open_study(tmp_path / "study.db").get_all_trials(1)) == len(after)


@pytest.mark.parametrize("lose", [Path.unlink, lambda file: file.write_bytes(b"")], ids=["missing", "empty"])
def test_numbers_go_on_where_the_study_was_lost(tmp_path: Path, lose) -> None:
    tune_fake(FakeBench(), tmp_path, FIRST)
    lose(tmp_path / "study.db")
    result = resumed(tmp_path)
    numbers = [trial.number for trial in result.trials]
    assert numbers == sorted(set(numbers))
    assert len(told(tmp_path)) > max(numbers)
    assert any(note.startswith("study.db was ") for note in result.notes)
    assert not (tmp_path / "study.db.damaged").exists()
    again = resumed(tmp_path)
    assert not any("rebuilt" in note for note in again.notes)  # said once


def test_what_is_left_of_a_transaction_goes_with_the_damaged_file(tmp_path: Path) -> None:
    tune_fake(FakeBench(), tmp_path, FIRST)
    (tmp_path / "study.db").write_bytes(b"garbage")
    (tmp_path / "study.db-journal").write_bytes(b"half of a page")
    resumed(tmp_path)
    assert not (tmp_path / "study.db-journal").exists()
    assert (tmp_path / "study.db.damaged").read_bytes() == b"garbage"


def test_numbers_that_repeat_in_a_journal_are_all_gone_on_from(tmp_path: Path) -> None:
    """As it was where a study.db had been deleted."""
    tune_fake(FakeBench(), tmp_path, FIRST)
    path = tmp_path / JOURNAL_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    trials = [line for line in lines if b'"type":"trial"' in line]
    path.write_bytes(b"".join([*lines, *trials]))
    (tmp_path / "study.db").unlink()
    known = read_journal(tmp_path).trials
    result = resumed(tmp_path, replace(MORE, num_trials=14))
    newer = [trial.number for trial in result.trials[len(known) :]]
    assert newer
    assert min(newer) >= len(known)
    resumed(tmp_path, replace(MORE, num_trials=14))
    assert not (tmp_path / "study.db.damaged").exists()


def test_a_search_that_had_ended_has_its_study_mended_too(tmp_path: Path) -> None:
    first = tune_fake(FakeBench(), tmp_path, FIRST)
    (tmp_path / "study.db").write_bytes(b"garbage")
    assert resumed(tmp_path, FIRST).trials == first.trials
    assert open_study(tmp_path / "study.db").get_best_trial(1).value


def test_a_study_that_another_process_writes_is_no_damaged_one(tmp_path: Path, monkeypatch) -> None:
    tune_fake(FakeBench(), tmp_path, FIRST)
    other = connected(tmp_path / "study.db", read_only=False)
    other.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr("loadtune.study.study_file.WAIT_S", 0.1)
    with pytest.raises(ResultError, match="is in use by another process"):
        resumed(tmp_path)
    other.close()
    assert not (tmp_path / "study.db.damaged").exists()


def test_a_finished_run_needs_no_study(tmp_path: Path, monkeypatch) -> None:
    """Another process looks at it for hours: the answer stays, and the reason is a note."""
    first = tune_fake(FakeBench(), tmp_path, FIRST)
    monkeypatch.setattr("loadtune.study.study_file.WAIT_S", 0.1)
    with closing(connected(tmp_path / "study.db", read_only=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        again = resumed(tmp_path, FIRST)
    assert again.best is not None
    assert again.best == first.best
    assert any("is in use by another process" in note for note in again.notes)
