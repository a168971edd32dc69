"""A whole script under the tracer."""

import sys
from pathlib import Path

import pytest
from cli_rig import Command

import loadtune
from loadtune.cli.app import app
from loadtune.footprint.trace import run_traced

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


def test_a_training_script_is_traced_as_main_with_its_arguments(tmp_path: Path) -> None:
    sys.modules.pop("beside", None)
    (tmp_path / "beside.py").write_text(BESIDE)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    argv, path, main = sys.argv[:], sys.path[:], sys.modules["__main__"]
    trace = loadtune.trace_memory()
    run_traced(script, ["4"], trace)
    assert (sys.argv, sys.path, sys.modules["__main__"]) == (argv, path, main)
    (batch,) = (line for line in trace.lines if line.source == "return torch.randn(512, 64)")
    assert batch.num_visits == 4
    model = next(line for line in trace.lines if line.source.startswith("model ="))
    assert {tensor.kind for tensor in model.appeared} == {"Parameter"}
    assert "train.py:8  loss.backward()" in trace.text().splitlines()[-1]


def test_the_command_shows_the_scripts_lines_and_ends_as_the_script_does(tmp_path: Path, capsys) -> None:
    script = tmp_path / "mine.py"
    words = ["memory", "--trace", str(script), "--", "3", "--json", "-h"]
    begins = "import sys\nimport torch\n\nkept = torch.zeros(1024)\n"
    script.write_text(f"{begins}sys.exit(int(sys.argv[1]))\n")
    with Command(tmp_path, *words) as command:
        ended = command.end()
    script.write_text(f"{begins}raise ValueError('no')\n")
    assert ended.code == 3
    with pytest.raises(ValueError, match="no"):
        app(words)
    for shown in (ended.stdout, capsys.readouterr().out):
        assert "kept = torch.zeros(1024)" in shown
        assert "4.00 KiB" in shown
