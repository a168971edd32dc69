"""A study as others may look at it: which one is taken, what it shows, and what is said where it cannot be shown."""

import importlib.util
from pathlib import Path

import optuna
import pytest
from study_rig import begun_study, trial
from typer.testing import CliRunner

from loadtune.cli import app
from loadtune.dashboard import open_study, study_file
from loadtune.errors import ResultError


def test_nothing_is_written_while_a_run_goes_on_writing(tmp_path: Path) -> None:
    study, asked = begun_study(tmp_path)
    shown, before = open_study(tmp_path / "study.db"), (tmp_path / "study.db").read_bytes()
    assert len(shown.get_all_trials(1)) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["study.db"]
    assert (tmp_path / "study.db").read_bytes() == before
    study.tell(trial(asked, 1000.0))
    assert shown.get_best_trial(1).value == 1000.0
    with pytest.raises(optuna.exceptions.StorageInternalError):
        shown.set_study_user_attr(1, "mine", 1)


def test_a_path_with_marks_of_urls_is_a_path(tmp_path: Path) -> None:
    folder = tmp_path / "what? 50% #1 {ü}"
    folder.mkdir()
    begun_study(folder)
    assert [path.name for path in folder.iterdir()] == ["study.db"]
    assert len(open_study(folder / "study.db").get_all_trials(1)) == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "no such table"), (b"no study, but text\n" * 500, "not a database")],
)
def test_a_damaged_file_is_told_with_what_to_do(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "study.db"
    file.write_bytes(content)
    with pytest.raises(ResultError, match=f"cannot be read as a study: .*({said}).*another run's folder"):
        open_study(file)


def test_a_file_a_run_a_workload_or_all_of_them(tmp_path: Path) -> None:
    newer, older = (tmp_path / "a-b" / name / "study.db" for name in ("2026-11-20T10-00-00Z", "2026-11-20T09-00-00Z"))
    for file in (newer, older):
        file.parent.mkdir(parents=True)
        file.touch()
    assert study_file(older) == study_file(older.parent) == older
    assert study_file(older.parent.parent) == study_file(tmp_path) == newer


def test_without_a_study_it_says_where_one_comes_from(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["report", "--live", str(tmp_path)])
    assert ended.exit_code == 2
    assert "no study.db" in ended.stderr
    assert "loadtune run" in ended.stderr


def test_without_the_extra_it_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun_study(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ended = CliRunner().invoke(app, ["report", "--live", str(tmp_path)])
    assert ended.exit_code == 2
    assert "pip install '.[live]'" in ended.stderr
