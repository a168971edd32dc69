"""Every code block of the README and the docs runs as it stands: Python in order, a process a page; commands parse."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from cli_rig import Command

from loadtune import load_result
from loadtune.cli import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
STORED = ROOT / "tests" / "golden" / "result.json"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"\bloadtune ((?:run|doctor|memory|report|export|compare|exec)\b[^|>);&]*)")
FILE_NAME = re.compile(r"# (\w+\.py)\n")
"""A block that begins with a file's name is that file, for the blocks after it to import."""


def blocks(page: Path, language: str) -> list[str]:
    return [code for found, code in FENCE.findall(page.read_text(encoding="utf-8")) if found == language]


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


@pytest.mark.parametrize("page", with_blocks("python"), ids=lambda page: page.name)
def test_python_blocks_run_in_order(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "loadtune-results" / "FakeData-resnet50" / "2026-11-20T17-03-12Z"
    folder.mkdir(parents=True)
    shutil.copy(STORED, folder)
    for code in blocks(page, "python"):
        if named := FILE_NAME.match(code):
            (tmp_path / named[1]).write_text(code, encoding="utf-8")
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(page, "python")), encoding="utf-8")
    ran = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("page", with_blocks("sh"), ids=lambda page: page.name)
def test_commands_parse(page: Path) -> None:
    commands = typer.main.get_group(app).commands
    for line in "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        for words in COMMAND.findall(line):
            name, *arguments = shlex.split(words, comments=True)
            assert commands[name].make_context(name, arguments).info_name == name


def test_the_readme_tunes_a_dataset_of_ones_own(tmp_path: Path) -> None:
    """Its file and its command are run, and asked to end once a trial is measured."""
    page = ROOT / "README.md"
    job = next(code for code in blocks(page, "python") if code.startswith("# job.py"))
    command = next(code for code in blocks(page, "sh") if "job:make_dataset" in code)
    short = ["--time-budget", "600", "--precision", "fp32", "--max-batch-size", "64", "--device", "cpu"]
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "job.py").write_text(job, encoding="utf-8")
    with Command(tmp_path, *shlex.split(command)[1:], *short) as running:
        running.until(lambda: "[search] trial 1" in running.stderr())
        running.signal(signal.SIGINT)
        ended = running.end()
    assert ended.code == 130
    assert ended.left_behind == []
    (result,) = tmp_path.glob("cwd/loadtune-results/*/*/result.json")
    assert any(trial.measurement for trial in load_result(result).trials), ended.stderr
