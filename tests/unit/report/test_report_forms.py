"""Forms of a winner: each says what was confirmed, in a shape that its reader takes."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
from page_rig import golden, named

from loadtune import export
from loadtune.errors import UsageError


def test_an_unknown_form_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="format is 'yaml'; it must be python, pytorch, json"):
        export(golden(), "yaml")


@pytest.mark.parametrize("form", ["python", "pytorch"])
def test_no_name_gets_out_of_its_comment(form: str) -> None:
    text = export(named('x:y\nraise SystemExit("out")\r"""\\', golden()), form)
    compile(text, form, "exec")
    assert not any(line.startswith("raise") for line in text.splitlines())


def test_a_shell_reads_the_environment(tmp_path: Path) -> None:
    (tmp_path / "tuned.env").write_text(export(golden(), "env"))
    shell = "set -a; . ./tuned.env; env"
    told = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert {"LOADTUNE_BATCH_SIZE=256", "LOADTUNE_PIN_MEMORY=1", "LOADTUNE_PRECISION=fp16"} <= set(told.splitlines())


def test_markdown_escapes_names() -> None:
    text = export(named("a|b:<c>", golden()), "markdown")
    assert r"a\|b:\<c\>" in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {4}


def test_a_benchmark_entry_is_what_its_action_checks() -> None:
    """It takes a list of name, unit and a number, and a name once; a curve goes on where the winner changes."""
    listed = json.loads(export(golden(), "github-action-benchmark"))
    for entry in listed:
        assert set(entry) <= {"name", "unit", "value", "range", "extra"}
        assert isinstance(entry["value"], (int, float))
    names = [entry["name"] for entry in listed]
    assert len({*names}) == len(names)
    with pytest.warns(UserWarning, match="not confirmed"):
        other = export(dataclasses.replace(golden(), best=golden().best_at_your_batch), "github-action-benchmark")
    assert [entry["name"] for entry in json.loads(other)] == names
