"""A whole script under the tracer."""

import subprocess
import sys
from pathlib import Path

import pytest

import loadtune
from loadtune.footprint.trace import run_traced, trace_text

SCRIPT = """\
import sys
import torch
from torch import nn
import beside

def step(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

assert __name__ == "__main__"
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, lr=0.1)
for _ in range(int(sys.argv[1])):
    step(model, optimizer, beside.batch())
"""
BESIDE = "import torch\n\ndef batch():\n    return torch.randn(512, 64)\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text(BESIDE)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(autouse=True)
def _unloaded() -> None:
    sys.modules.pop("beside", None)


def test_a_training_script_is_traced_as_main_with_its_arguments(script: Path) -> None:
    argv, path, main = sys.argv[:], sys.path[:], sys.modules["__main__"]
    trace = run_traced(script, ["4"])
    assert (sys.argv, sys.path, sys.modules["__main__"]) == (argv, path, main)
    assert (trace.error, trace.exit_code) == (None, 0)
    by_source = {line.source: line for line in reversed(trace.lines)}
    assert {tensor.kind for tensor in by_source["loss.backward()"].appeared} == {"gradient"}
    assert "optimizer state" in {tensor.kind for tensor in by_source["optimizer.step()"].appeared}
    assert by_source["return torch.randn(512, 64)"].num_visits == 4
    model = next(line for line in trace.lines if line.source.startswith("model ="))
    assert {tensor.kind for tensor in model.appeared} == {"Parameter"}
    assert trace.peak is not None
    assert trace.peak.source == "loss.backward()"
    assert "train.py:8  loss.backward()" in trace_text(trace).splitlines()[-1]


def test_only_the_script_itself(script: Path) -> None:
    trace = run_traced(script, ["2"], only=script)
    assert {line.file for line in trace.lines if line.file} == {str(script)}


def test_an_exception_is_told_with_the_users_traceback_alone(script: Path) -> None:
    trace = run_traced(script, ["many"])
    assert trace.exit_code == 1
    assert trace.error is not None
    assert trace.error.startswith(f'Traceback (most recent call last):\n  File "{script}", line 15')
    assert "ValueError: invalid literal" in trace.error
    assert any(line.source.startswith("model =") for line in trace.lines)


@pytest.mark.parametrize(
    ("ending", "told"),
    [("sys.exit(3)", (None, 3)), ("sys.exit()", (None, 0)), ("sys.exit('no')", ("no", 1)), ("1 +", ("invalid", 1))],
)
def test_how_a_script_ends(tmp_path: Path, ending: str, told: tuple[str | None, int]) -> None:
    path = tmp_path / "ends.py"
    path.write_text(f"import sys\n{ending}\n")
    trace = run_traced(path, [])
    assert trace.exit_code == told[1]
    assert (told[0] or "") in (trace.error or "")


def test_no_such_script(tmp_path: Path) -> None:
    with pytest.raises(loadtune.UsageError, match="no such script"):
        run_traced(tmp_path / "nothing.py", [])


def test_the_command_shows_the_scripts_lines_and_ends_as_the_script_does(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("import sys\nimport torch\n\nkept = torch.zeros(1024)\nsys.exit(int(sys.argv[1]))\n")
    command = [sys.executable, "-m", "loadtune", "memory", "--trace", str(script), "--", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 3
    assert "kept = torch.zeros(1024)" in ended.stdout
    assert "4.00 KiB" in ended.stdout
