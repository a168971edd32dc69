"""``loadtune dashboard``: which study it takes, and what it says where it cannot."""

import importlib.util
from pathlib import Path

import pytest
from study_rig import begun_study
from typer.testing import CliRunner

from loadtune.cli import app
from loadtune.dashboard import study_file


@pytest.fixture
def studies(tmp_path: Path) -> list[Path]:
    """Two runs of one workload, the newer one first."""
    files = [tmp_path / "a-b" / name / "study.db" for name in ("2026-11-20T10-00-00Z", "2026-11-20T09-00-00Z")]
    for file in files:
        file.parent.mkdir(parents=True)
        begun_study(file.parent)
    return files


def test_a_file_a_run_a_workload_or_all_of_them(studies: list[Path]) -> None:
    newer, older = studies
    assert study_file(older) == study_file(older.parent) == older
    assert study_file(older.parent.parent) == study_file(older.parent.parent.parent) == newer


def test_without_a_study_it_says_where_one_comes_from(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["dashboard", str(tmp_path)])
    assert ended.exit_code == 2
    assert "no study.db" in ended.stderr
    assert "loadtune run" in ended.stderr


def test_without_the_extra_it_says_how_to_install_it(studies: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ended = CliRunner().invoke(app, ["dashboard", str(studies[0])])
    assert ended.exit_code == 2
    assert "pip install '.[live]'" in ended.stderr
