"""Every block of the README and the docs runs as it stands, or says what it needs. Every link leads somewhere."""

import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest
from cli_rig import Command
from forked import Forked
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
TEXTS = [*PAGES, *ROOT.glob("[!R]*.md"), *ROOT.glob("benchmarks/**/*.md"), ROOT / "loadtune" / "README.md"]
BLOCK = re.compile(r"^(?:<!-- needs: (.+) -->\n)?```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
NEEDS = {"Slurm", "Docker", "a GPU", "several ranks", "a notebook", "OpenCV"}
"""What a test cannot have; it stands before a block as ``<!-- needs: Slurm -->``."""
COMMAND = re.compile(r"^(\$ |loadtune |python |pip |docker |srun |torchrun |import |from \S+ import )", re.MULTILINE)
TRAIN = """
import torch
from torch.utils.data import DataLoader

make_loader, make_model = lambda: DataLoader([(torch.zeros(4), 0)] * 64, 8), lambda: torch.nn.Linear(4, 2)

if __name__ == "__main__":
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for inputs, classes in make_loader():
        torch.nn.functional.cross_entropy(model(inputs), classes).backward()
        optimizer.step()
"""
FILE_NAME = re.compile(r"# (\w+\.py)\b.*\n")  # a block that begins so is that file, or goes on with it


def blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [code for needs, kind, code in found if kind == language and not needs]


def folder_of(page: Path, tmp_path: Path) -> Path:
    """Where a reader has the page's files, a script of their own, pictures and a result."""
    stored = tmp_path / "loadtune-results" / "FakeData-resnet50" / "2026-11-20T17-03-12Z"
    stored.mkdir(parents=True)
    (stored / "result.json").write_bytes((ROOT / "tests" / "golden" / "result.json").read_bytes())
    (tmp_path / "train.py").write_text(TRAIN)
    photos = tmp_path / "photos" / "cats"
    photos.mkdir(parents=True)
    for number in range(256):
        Image.new("RGB", (50, 40), (number, 0, 0)).save(photos / f"{number}.jpg")
    for code in blocks(page, "python"):
        if named := FILE_NAME.match(code):
            with (tmp_path / named[1]).open("a", encoding="utf-8") as file:
                file.write(code)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_block_escapes(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for needs, kind, code in BLOCK.findall(text):
        assert needs in NEEDS or kind in ("python", "sh") or (not kind and not COMMAND.search(code)), code
    assert not re.findall(r"^(?: {4}|\t|~~~| +```).*", BLOCK.sub("", text), re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_blocks_run_in_order(page: Path, tmp_path: Path) -> None:
    folder = folder_of(page, tmp_path)
    (folder / "page.py").write_text("\n".join(blocks(page, "python")), encoding="utf-8")
    with (tmp_path / "said").open("w") as said:
        ran = Forked([sys.executable, "page.py"], cwd=folder, env=os.environ, stdout=said, stderr=said)
    assert ran.wait() == 0, (tmp_path / "said").read_text()


LINES = [
    pytest.param(page, line, id=f"{page.name}: {line}")
    for page in PAGES
    for line in "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    if "pip install" not in line
]


@pytest.mark.parametrize(("page", "line"), LINES)
def test_commands_run(page: Path, line: str, tmp_path: Path) -> None:
    """A run is ended once its job is built and has trained a batch."""
    folder_of(page, tmp_path / "cwd")
    line = line.replace("--nproc-per-node 8", "--nproc-per-node 2")  # as many as there are cores
    words, is_run = shlex.split(line.partition("loadtune ")[2], comments=True), "loadtune run " in line
    with Command(tmp_path, *words, *(["--device", "cpu"] if is_run else [])) as running:
        if is_run:
            running.until(lambda: "[calibrate] " in running.stderr())
            running.signal(signal.SIGINT)
        ended = running.end()
    assert (ended.code, ended.left_behind) == (130 if is_run else 0, []), ended.stderr


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", BLOCK.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
