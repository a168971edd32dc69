"""``loadtune report``: which file it reads, and where the page goes."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from page_rig import golden
from typer.testing import CliRunner

from loadtune.cli import app
from loadtune.report.store import write_result


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two runs of one workload, the older one named last."""
    monkeypatch.chdir(tmp_path)
    folders = [Path("loadtune-results/a-b") / name for name in ("2026-11-20T10-00-00Z", "2026-11-20T09-00-00Z")]
    for hour, folder in zip((10, 9), folders, strict=True):
        folder.mkdir(parents=True)
        write_result(replace(golden(), created=f"2026-11-20T{hour:02}:00:00Z"), folder)
    return folders


def report(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)], prog_name="loadtune")


def pages() -> list[Path]:
    return sorted(Path().rglob("*.html"))


def test_it_writes_the_newest_runs_page_beside_its_result(runs: list[Path]) -> None:
    ended = report()
    assert ended.exit_code == 0
    assert Path(ended.stdout.strip()) == runs[0] / "report.html"
    assert pages() == [runs[0] / "report.html"]


def test_out_is_the_only_file_that_is_written(runs: list[Path]) -> None:
    assert report(runs[1], "--out", "here.html").exit_code == 0
    assert pages() == [Path("here.html")]
    assert "2026-11-20 09:00 UTC" in Path("here.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("{0}", "{1}"), id="several"),
        pytest.param(("loadtune-results", "--board"), id="one, when asked for"),
        pytest.param(("loadtune-results", "{0}"), id="a result counts once"),
    ],
)
def test_a_board_has_a_row_for_each_result(runs: list[Path], words: tuple[str, ...]) -> None:
    ended = report(*(word.format(*runs) for word in words))
    assert Path(ended.stdout.strip()).read_text(encoding="utf-8").count("<tr data-outcome=") == 2
    assert len(pages()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [(("nowhere",), "does not exist"), (("--out", "result.json"), "HTML file"), (("--out", "no/x.html"), "written")],
)
def test_what_a_user_can_mend_is_said(runs: list[Path], words: tuple[str, ...], said: str) -> None:
    before = os.listdir()
    ended = report(*words)
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert os.listdir() == before
