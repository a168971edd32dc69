"""A study as others may look at it: which one is taken, what it shows, and what is said where it cannot be shown."""

import importlib.util
from pathlib import Path

import optuna
import pytest
from study_rig import begun_study, trial
from typer.testing import CliRunner

from loadtune.cli import app
from loadtune.dashboard import open_study
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


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "no such table"), (b"no study, but text\n" * 500, "not a database")],
)
def test_a_damaged_file_is_told_with_what_to_do(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "study.db"
    file.write_bytes(content)
    with pytest.raises(ResultError, match=f"cannot be read as a study: .*({said}).*another run's folder"):
        open_study(file)


@pytest.mark.parametrize(
    ("has_study", "said"), [(False, "no study.db"), (True, "pip install '.[live]'")], ids=["no study", "no extra"]
)
def test_where_it_cannot_be_shown_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_study: bool, said: str
) -> None:
    if has_study:
        begun_study(tmp_path)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ended = CliRunner().invoke(app, ["report", "--live", str(tmp_path)])
    assert ended.exit_code == 2
    assert said in ended.stderr
