"""The commands on stored results: what they print where, and how they end. Nothing is measured here."""

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_rig import invoke
from page_rig import GOLDEN as KEPT
from page_rig import golden

from loadtune.report.forms import FORMS
from loadtune.run.state import Resumable, write_run
from loadtune.store import load_result, write_result


def test_an_export_goes_to_stdout_or_to_a_file_in_each_form_that_the_help_names(tmp_path: Path) -> None:
    shown = invoke("export", str(KEPT))
    assert shown.exit_code == 0
    assert "LOADER_KWARGS = {" in shown.stdout
    file = tmp_path / "loader_kwargs.py"
    written = invoke("export", str(KEPT), "--out", str(file))
    assert (written.exit_code, written.stdout) == (0, "")
    assert file.read_text(encoding="utf-8") == shown.stdout
    listed = invoke("export", "--help").stdout.split("Forms:")[1].split("Examples:")[0]
    named = {line.split()[0] for line in listed.splitlines() if line.startswith("    ") and line[4] != " "}
    assert named == {*FORMS}


def test_what_another_user_could_have_written_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = golden()
    stored = write_result(kept, tmp_path)
    write_run(Resumable(kept.config, kept.host, kept.device, "0"), tmp_path)
    for user, mode in ((1234, 0o100644), (os.getuid(), 0o100646)):
        about = SimpleNamespace(st_size=9, st_uid=user, st_mode=mode)
        monkeypatch.setattr("os.fstat", lambda at, about=about: about)
        ended = invoke("run", "--resume", str(tmp_path))
        assert (ended.exit_code, ended.stdout) == (2, "")
        assert "it must belong to you or root, and others may not write it" in " ".join(ended.stderr.split())
    assert load_result(stored) == kept  # which imports nothing


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two runs of one workload, the older one named last."""
    monkeypatch.chdir(tmp_path)
    folders = [Path("loadtune-results/a-b") / name for name in ("2026-11-20T10-00-00Z", "2026-11-20T09-00-00Z")]
    for hour, folder in zip((10, 9), folders, strict=True):
        folder.mkdir(parents=True)
        write_result(dataclasses.replace(golden(), created=f"2026-11-20T{hour:02}:00:00Z"), folder)
    return folders


def test_one_page_is_written_of_the_newest_run_beside_its_result_or_where_it_is_wanted(runs: list[Path]) -> None:
    ended = invoke("report")
    assert ended.exit_code == 0
    page = runs[0] / "report.html"
    assert Path(ended.stdout.strip()) == page
    assert list(Path().rglob("*.html")) == [page]
    page.unlink()
    assert invoke("report", str(runs[1]), "--out", "here.html").exit_code == 0
    assert list(Path().rglob("*.html")) == [Path("here.html")]
    assert "2026-11-20 09:00 UTC" in Path("here.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("words", ["{0} {1}", "loadtune-results --board", "loadtune-results {0}"])
def test_a_board_has_a_row_for_each_result(runs: list[Path], words: str) -> None:
    ended = invoke("report", *words.format(*runs).split())
    assert Path(ended.stdout.strip()).read_text(encoding="utf-8").count("<tr data-outcome=") == 2
    assert len(list(Path().rglob("*.html"))) == 1
