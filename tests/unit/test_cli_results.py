"""The commands on stored results: what they print where, and how they end. Nothing is measured here."""

import dataclasses
import json
from pathlib import Path

import pytest
from page_rig import GOLDEN as KEPT
from typer.testing import CliRunner, Result

from loadtune.cli import app
from loadtune.report.forms import FORMS
from loadtune.report.store import load_result, write_result


def invoke(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words], prog_name="loadtune")


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    """The kept result, two days later on half the cores."""
    kept = load_result(KEPT)
    host = dataclasses.replace(kept.host, num_usable_cores=8)
    folder = tmp_path / "slower"
    folder.mkdir()
    return write_result(dataclasses.replace(kept, created="2026-11-22T17:03:12Z", host=host), folder)


def test_an_export_goes_to_stdout_or_to_a_file(tmp_path: Path) -> None:
    shown = invoke("export", str(KEPT))
    assert shown.exit_code == 0
    assert "LOADER_KWARGS = {" in shown.stdout
    file = tmp_path / "loader_kwargs.py"
    written = invoke("export", str(KEPT), "--out", str(file))
    assert (written.exit_code, written.stdout) == (0, "")
    assert file.read_text(encoding="utf-8") == shown.stdout


def test_the_help_names_every_form_and_no_other() -> None:
    listed = invoke("export", "--help").stdout.split("Forms:")[1].split("Examples:")[0]
    named = {line.split()[0] for line in listed.splitlines() if line.startswith("    ") and line[4] != " "}
    assert named == {*FORMS}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("export RESULT --format yaml", "--format is 'yaml'; it must be python, pytorch"),
        ("export RESULT --out FOLDER/none/x.py", "cannot be written"),
        ("export FOLDER/none", "does not exist"),
        ("export FOLDER", "holds no result"),
        ("compare RESULT FOLDER/none", "does not exist"),
        ("compare RESULT", "two results, or one and --measure"),
        ("compare RESULT RESULT --measure", "two results, or one and --measure"),
        ("compare FOLDER/none --measure", "does not exist"),
        ("compare RESULT --measure --tolerance 5", "--tolerance is '5'; it must be above 0% and below 100%"),
        ("compare RESULT --measure --tolerance 0%", "as 5% or 0.05"),
        ("compare RESULT --measure --time-budget nan", "--time-budget is nan;"),
    ],
)
def test_bad_input_is_told_in_a_message(tmp_path: Path, words: str, told: str) -> None:
    given = words.replace("RESULT", str(KEPT)).replace("FOLDER", str(tmp_path)).split()
    ended = invoke(*given)
    assert ended.exit_code == 2
    assert told in ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.output


def test_a_comparison_fits_80_columns_and_says_what_changed(slower: Path) -> None:
    ended = invoke("compare", str(KEPT), str(slower))
    assert ended.exit_code == 0
    assert "usable cores" in ended.stdout
    assert "The second is 1.00×" in ended.stdout
    assert " of the first: not told apart." in " ".join(ended.stdout.split())
    assert max(map(len, ended.stdout.splitlines())) <= 80


def test_a_comparison_speaks_json(slower: Path) -> None:
    found = json.loads(invoke("compare", str(KEPT), str(slower), "--json").stdout)
    assert found["changes"] == [{"name": "num_usable_cores", "before": 16, "after": 8}]
    assert found["ratio"]["low"] < found["ratio"]["value"] == 1.0 < found["ratio"]["high"]


def test_a_run_without_a_winner_is_compared_as_far_as_it_goes(slower: Path) -> None:
    cut = dataclasses.replace(load_result(slower), best=None, finalists=(), cut_short="interrupted by Ctrl-C")
    write_result(cut, slower.parent)
    ended = invoke("compare", str(KEPT), str(slower))
    assert ended.exit_code == 1
    assert "cut short: interrupted by Ctrl-C" in " ".join(ended.stdout.split())


def test_other_workloads_are_refused(slower: Path) -> None:
    kept = load_result(slower)
    workload = dataclasses.replace(kept.config.workload, model="vit_b_16")
    write_result(dataclasses.replace(kept, config=dataclasses.replace(kept.config, workload=workload)), slower.parent)
    ended = invoke("compare", str(KEPT), str(slower))
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "model: resnet50 and vit_b_16" in ended.stderr


@pytest.mark.parametrize(("strict", "code"), [((), 0), (("--strict",), 3)])
def test_another_device_cannot_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: tuple[str, ...], code: int
) -> None:
    host = dataclasses.replace(load_result(KEPT).host, gpus=())
    monkeypatch.setattr("loadtune.checking.read_host", lambda: host)
    ended = invoke("compare", str(KEPT), "--measure", "--json", "--out", str(tmp_path / "out"), *strict)
    found = json.loads(ended.stdout)
    assert (ended.exit_code, found["outcome"], found["comparison"]) == (code, "unclear", None)
    assert "measured on NVIDIA H200, and this machine has no GPU" in found["reason"]
    assert not (tmp_path / "out").exists()


def test_a_baseline_without_an_interval_is_refused_before_anything_is_measured(
    slower: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = load_result(slower)
    once = tuple(dataclasses.replace(finalist, runs=finalist.runs[:1]) for finalist in kept.finalists)
    write_result(dataclasses.replace(kept, finalists=once), slower.parent)
    monkeypatch.setattr("loadtune.checking.read_host", lambda: pytest.fail("it went on to measure"))
    ended = invoke("compare", str(slower), "--measure")
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "confirmed its answer by one run" in ended.stderr
    assert "with a --time-budget above 5 min 00 s" in ended.stderr


def test_a_printed_result_is_the_short_answer() -> None:
    shown = str(load_result(KEPT))
    assert shown == repr(load_result(KEPT))
    assert len(shown.splitlines()) <= 22
    assert "DataLoader(" in shown
