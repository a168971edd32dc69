"""``loadtune memory``: what it prints, that it fits a terminal, and how it refuses."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from account_rig import FakeMeter
from typer.testing import CliRunner, Result

from loadtune import cli_memory, host
from loadtune.cli import app
from loadtune.records.config import WorkloadSpec
from loadtune.records.facts import Device
from loadtune.testing import fake_host

BLOCKS = ("--dataset", "training_workloads:Images", "--model", "account_rig:Blocks")
SMALL = (*BLOCKS, "--batch-size", "4", "--device", "cpu")


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["memory", *words], prog_name="loadtune")


def test_tables_fit_80_columns_and_lines_are_named() -> None:
    ended = invoke(*SMALL, "--per-layer", "--what-if", "--memory", "24GiB", "--precision", "bf16")
    assert ended.exit_code == 0, ended.output
    assert max(map(len, ended.stdout.splitlines())) <= 80
    for words in (
        "parameters",
        "optimizer state",
        "activations kept",
        "not attributed",
        "peak",
        "3 blocks checkpointed.",
        "0.0.0",
    ):
        assert words in ended.stdout
    assert "Largest batch size in 24.0 GiB: " in ended.stdout
    assert "nothing was run" in ended.stdout


JOB = """
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))

def make_loader():
    return DataLoader([(torch.zeros(4), at % 3) for at in range(8)], 2)

class Broken(IterableDataset):
    def __iter__(self):
        raise OSError("the shard is gone")
        yield

def make_stream():
    return DataLoader(Broken(), 2)

def make_model():
    return nn.Linear(4, 3)

def make_other():
    return nn.Linear(5, 3)
"""


def test_a_loss_may_hold_tensors_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "weighted_job.py").write_text(JOB)
    job = tmp_path / "weighted_job.py"
    ended = invoke(
        "--loader", f"{job}:make_loader", "--model", f"{job}:make_model", "--loss", f"{job}:loss", "--device", "cpu"
    )
    assert ended.exit_code == 0, ended.output


def test_a_stream_that_raises_is_said_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "broken_job.py").write_text(JOB)
    job = tmp_path / "broken_job.py"
    ended = invoke("--loader", f"{job}:make_stream", "--model", f"{job}:make_model", "--device", "cpu")
    assert ended.exit_code == 2
    assert "Reading the stream raised OSError: the shard is gone" in " ".join(ended.output.split())


def test_a_model_without_class_scores_needs_a_loss() -> None:
    ended = invoke("--dataset", "training_workloads:Images", "--model", "account_rig:Autoencoder", "--device", "cpu")
    assert ended.exit_code == 2, ended.output
    assert "give a loss of your own: --loss FILE.py:fn" in " ".join(ended.stderr.split())


def test_parameters_that_no_call_brings_stand_in_a_row_of_their_own() -> None:
    words = ("--model", "account_rig:Uncalled", "--per-layer", "--device", "cpu")
    lines = invoke(*BLOCKS[:2], *words).stdout.splitlines()
    assert next(line for line in lines if line.startswith("(not called)")).split()[-1:] == ["12"]
    assert next(line for line in lines if line.startswith("total")).split()[1] == "591"


def test_what_if_says_what_is_an_estimate() -> None:
    told = invoke(*BLOCKS, "--device", "cpu", "--what-if").stdout
    rows = [line for line in told.splitlines() if "≈ " in line]
    assert [row.split("  ")[0] for row in rows[:2]] == ["as given: fp32, SGD with momentum 0.9", "fp16 (AMP)"]
    assert all("–" in row for row in rows)  # no time of a step that was not run
    assert "Add --memory 24GiB, the memory of your GPU, for the largest batch" in told


def test_on_a_gpu_it_is_measured_beside_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of a measured account, from a training that is a fake on a host that is one."""
    benches: list[tuple[WorkloadSpec, Device]] = []

    @contextmanager
    def training(spec: WorkloadSpec, device: Device) -> Iterator[FakeMeter]:
        benches.append((spec, device))
        yield FakeMeter(spec)

    monkeypatch.setattr(host, "read_host", fake_host)
    monkeypatch.setattr(cli_memory, "_training", training)
    ended = invoke(*BLOCKS, "--what-if")
    assert ended.exit_code == 0, ended.output
    assert [device.kind for _, device in benches] == ["cuda"]
    assert max(map(len, ended.stdout.splitlines())) <= 80
    for told in ("0.9: measured", "estimated", "library workspace", "20 ms", "no room."):
        assert told in ended.stdout
    assert ended.stderr == ""
    report = json.loads(invoke(*BLOCKS, "--json").stdout)
    assert report["account"]["estimated"] is False
    assert report["account"]["outside_bytes"] == 1 << 29
    assert len(benches) == 2
    assert invoke(*BLOCKS, "--device", "cpu").stderr == ""
    assert len(benches) == 2


def test_without_a_gpu_it_says_why_it_estimates() -> None:
    ended = invoke(*SMALL[:-2])
    assert ended.exit_code == 0
    assert "estimating from tensor shapes" in ended.stderr
    as_wanted = invoke(*SMALL, "--json")
    assert as_wanted.stderr == ""
    assert json.loads(as_wanted.stdout)["account"]["estimated"] is True


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--batch-size 0", "--batch-size is 0;"),
        ("--precision fp8", "--precision is 'fp8';"),
        ("--memory 24Gb/s", "--memory is '24Gb/s';"),
        ("--memory 0GiB", "--memory is '0GiB'; it must be a size of 1 MiB or more"),
        ("--memory 24", "--memory is '24'; it must be a size of 1 MiB or more with its unit"),
        ("resnet18", "'resnet18' stands without an option"),
        ("--model resnet18 --batch-size 1 --image-size 32", "does not train on a batch of 1"),
        ("--dataset training_workloads:Images --model account_rig:Decides --batch-size 2", "cannot be estimated"),
    ],
)
def test_what_cannot_be_used_is_said_with_code_2(words: str, told: str) -> None:
    ended = invoke("--device", "cpu", *words.split())
    assert ended.exit_code == 2, ended.output
    assert told in ended.stderr
    assert ended.stdout == ""


def test_a_script_is_followed_without_the_options_of_a_step(tmp_path: Path) -> None:
    script = tmp_path / "prints.py"
    script.write_text("print('said')\n")
    assert invoke("--trace", str(script), "--what-if").exit_code == 2
    ended = invoke("--trace", str(script), "--json")
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["lines"] is not None
    assert "said" in ended.stderr


def test_a_model_that_refuses_the_sample_is_told_without_pytorchs_log(tmp_path: Path) -> None:
    job = tmp_path / "other_job.py"
    job.write_text(JOB)
    words = ["--loader", f"{job}:make_loader", "--model", f"{job}:make_other", "--device", "cpu"]
    command = [sys.executable, "-m", "loadtune", "memory", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "does not train on a batch" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_loads_no_torch() -> None:
    code = (
        "import sys; from loadtune.cli import app\n"
        "try: app(['memory', '--help'])\n"
        "except SystemExit: print('torch' in sys.modules, 'rich' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.endswith("False False\n")
