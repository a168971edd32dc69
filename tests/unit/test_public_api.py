"""What ``import loadtune`` offers, and what it costs."""

import compileall
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import loadtune

OPTIMIZING = {"torch", "optuna", "scipy"}
SHOWING = {"numpy", "rich"}
COMMAND = "import loadtune.__main__; loadtune.__main__.main()"


@pytest.mark.parametrize(
    ("code", "words", "heavy"),
    [
        ("dir(loadtune)", "", OPTIMIZING | SHOWING | {"torchvision", "argparse", "msgspec", "psutil", "cloudpickle"}),
        ("loadtune.load_result, loadtune.best_loader_kwargs", "", OPTIMIZING),
        ("loadtune.find_batch_size", "", {"torch", "torchvision", "optuna", "cloudpickle"}),
        (COMMAND, "--help", OPTIMIZING | SHOWING),
        ("import loadtune.host.machine", "", {"torch", "optuna", "pynvml", "psutil"}),
        ("from loadtune.host.machine import read_host; read_host(); import loadtune.training.client", "", OPTIMIZING),
        (COMMAND, "exec --exact -- true", OPTIMIZING | SHOWING | {"loadtune.records.config"}),
    ],
)
def test_what_is_not_needed_is_not_imported(code: str, words: str, heavy: set[str]) -> None:
    """In a fresh Python: this process has torch loaded already, for other tests."""
    code = f"import sys, loadtune\ntry: {code}\nfinally: print(*sys.modules, file=sys.stderr)"
    ended = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0
    assert "sys" in ended.stderr.split()
    assert not heavy & set(ended.stderr.split())


@pytest.mark.parametrize("name", loadtune.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(loadtune, name) is not None
    assert name in dir(loadtune)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tunes'"):
        _ = loadtune.tunes


@pytest.mark.parametrize("form", ["zip", "pyc"])
def test_the_public_names_are_found_in_an_archive_and_beside_bytecode_alone(form: str, tmp_path: Path) -> None:
    folder = tmp_path / "copied"
    shutil.copytree(Path(loadtune.__file__).parent, folder / "loadtune")
    if form == "pyc":
        compileall.compile_dir(folder, quiet=1, legacy=True)
        for source in folder.rglob("*.py"):
            source.unlink()
    path = str(folder) if form == "pyc" else shutil.make_archive(str(tmp_path / "archive"), "zip", folder)
    code, environment = "import loadtune; print(loadtune.__file__, loadtune.tune)", os.environ | {"PYTHONPATH": path}
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.stdout.startswith(path), ended.stderr
