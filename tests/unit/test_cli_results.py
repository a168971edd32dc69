"""The commands on stored results: what they print where, and how they end. Nothing is measured here."""

import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_rig import invoke
from page_rig import GOLDEN as KEPT
from page_rig import golden
from study_rig import measured

from loadtune.report.forms import FORMS
from loadtune.report.store import load_result, write_result
from loadtune.run.state import Resumable, write_run


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    """The kept result, two days later on half the cores."""
    kept = load_result(KEPT)
    host = dataclasses.replace(kept.host, num_usable_cores=8)
    folder = tmp_path / "slower"
    folder.mkdir()
    return write_result(dataclasses.replace(kept, created="2026-11-22T17:03:12Z", host=host), folder)


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


def test_a_comparison_fits_80_columns_and_says_what_changed_also_as_json(slower: Path) -> None:
    ended = invoke("compare", str(KEPT), str(slower))
    assert ended.exit_code == 0
    assert "usable cores" in ended.stdout
    assert "The second is 1.00×" in ended.stdout
    assert " of the first: not told apart." in " ".join(ended.stdout.split())
    assert max(map(len, ended.stdout.splitlines())) <= 80
    found = json.loads(invoke("compare", str(KEPT), str(slower), "--json").stdout)
    assert found["changes"] == [{"name": "num_usable_cores", "before": 16, "after": 8}]
    assert found["ratio"]["low"] < found["ratio"]["value"] == 1.0 < found["ratio"]["high"]


def test_a_run_without_a_winner_is_compared_as_far_as_it_goes(slower: Path) -> None:
    cut = dataclasses.replace(load_result(slower), best=None, finalists=(), cut_short="interrupted by Ctrl-C")
    write_result(cut, slower.parent)
    ended = invoke("compare", str(KEPT), str(slower))
    assert ended.exit_code == 1
    assert "cut short: interrupted by Ctrl-C" in " ".join(ended.stdout.split())


@pytest.mark.parametrize(
    ("rates", "words", "outcome", "code"),
    [
        ((900.0, 1000.0, 1100.0), "5%", "unclear", 3),
        ((980.0, 1000.0, 1020.0), "20%", "held", 0),
        ((790.0, 800.0, 810.0), "0.1", "fell", 1),
        ((800.0,), "10%", "unclear", 3),
    ],
)
def test_the_whole_interval_of_the_ratio_decides_whether_more_than_the_tolerance_was_lost(
    slower: Path, rates: tuple[float, ...], words: str, outcome: str, code: int
) -> None:
    kept, before = load_result(slower), slower.parent / "before"
    before.mkdir()
    for found, folder in (((980.0, 1000.0, 1020.0), before), (rates, slower.parent)):
        finalist = dataclasses.replace(kept.finalists[0], runs=tuple(measured(rate) for rate in found))
        best = dataclasses.replace(kept.best, config=finalist.config)
        write_result(dataclasses.replace(kept, best=best, finalists=(finalist,)), folder)
    ended = invoke("compare", str(before), str(slower), "--tolerance", words, "--json")
    found = json.loads(ended.stdout)
    assert (found["outcome"], ended.exit_code) == (outcome, code), found["verdict"]
    assert invoke("compare", str(before), str(slower), "--tolerance", words).stdout.count(outcome.capitalize()) == 1


def test_an_answer_that_is_not_confirmed_tells_no_loss(slower: Path) -> None:
    words = ["compare", str(KEPT), str(slower), "--tolerance", "20%"]
    assert invoke(*words).exit_code == 0
    write_result(dataclasses.replace(load_result(slower), confirmed_whole=False), slower.parent)
    ended = invoke(*words)
    assert (ended.exit_code, "Unclear." in ended.stdout) == (3, True)


def test_what_another_user_could_have_written_is_not_imported(slower: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = load_result(slower)
    write_run(Resumable(kept.config, kept.host, kept.device, "0"), slower.parent)
    for user, mode in ((1234, 0o100644), (os.getuid(), 0o100646)):
        about = SimpleNamespace(st_size=9, st_uid=user, st_mode=mode)
        monkeypatch.setattr("os.fstat", lambda at, about=about: about)
        ended = invoke("run", "--resume", str(slower.parent))
        assert (ended.exit_code, ended.stdout) == (2, "")
        assert "it must belong to you or root, and others may not write it" in " ".join(ended.stderr.split())
    assert load_result(slower) == kept  # which imports nothing


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
