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
DEEP = (*BLOCKS[:3], "account_rig:Deep")
SMALL = (*BLOCKS, "--batch-size", "4", "--device", "cpu")


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["memory", *words], prog_name="loadtune")


def test_tables_fit_80_columns_and_lines_are_named() -> None:
    ended = invoke(*SMALL, "--per-layer", "--checkpoint", "--memory", "24GiB", "--precision", "bf16")
    assert ended.exit_code == 0, ended.output
    assert max(map(len, ended.stdout.splitlines())) <= 80
    for words in (
        "parameters",
        "optimizer state",
        "activations kept",
        "not attributed",
        "peak",
        "3 blocks checkpointed",
        "0.0.0",
    ):
        assert words in ended.stdout
    assert "Largest batch size in 24.0 GiB: " in ended.stdout
    assert "nothing was run" in ended.stdout


def test_a_plain_sequential_says_how_many_segments_were_used() -> None:
    words = (*DEEP, "--device", "cpu", "--checkpoint")
    for more, segments in (((), 4), (("--checkpoint-segments", "8"), 8)):
        ended = invoke(*words, *more)
        assert ended.exit_code == 0, ended.output
        told = " ".join(ended.stdout.split())
        assert f"the nn.Sequential of 16 modules in {segments} segments" in told
    report = json.loads(invoke(*words, "--what-if", "--json").stdout)
    remark = next(row["remark"] for row in report["what_if"] if row["name"] == "activation checkpointing")
    assert remark == "the nn.Sequential of 16 modules in 4 segments."


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


@pytest.mark.parametrize("dataset", ["training_workloads:Images", "account_rig:ImagePairs"])
def test_layers_of_a_model_without_class_scores_have_a_total(dataset: str) -> None:
    ended = invoke("--dataset", dataset, "--model", "account_rig:Autoencoder", "--per-layer", "--batch-size", "32")
    assert ended.exit_code == 0, ended.output
    (total,) = (line for line in ended.stdout.splitlines() if line.startswith("total "))
    maps = (4 * 4 * 6 * 2 + 8 * 8 * 3) * 32 * 4 / 1024
    assert total.split()[1:] == ["459", f"{maps:.1f}", "KiB", "12.0", "KiB"]
    assert "there was no loss" in ended.stdout


def test_parameters_that_no_call_brings_stand_in_a_row_of_their_own() -> None:
    words = ("--model", "account_rig:Uncalled", "--per-layer", "--device", "cpu")
    lines = invoke(*BLOCKS[:2], *words).stdout.splitlines()
    assert next(line for line in lines if line.startswith("(not called)")).split()[-1:] == ["12"]
    assert next(line for line in lines if line.startswith("total")).split()[1] == "591"


def test_what_if_fits_80_columns_and_says_what_is_an_estimate() -> None:
    ended = invoke(*BLOCKS, "--device", "cpu", "--what-if", "--memory", "2GiB")
    assert ended.exit_code == 0, ended.output
    assert max(map(len, ended.stdout.splitlines())) <= 80
    rows = [line for line in ended.stdout.splitlines() if "≈ " in line]
    assert [row.split("  ")[0] for row in rows[:3]] == [
        "as given: fp32, SGD with momentum 0.9",
        "fp16 (AMP)",
        "bf16 (AMP)",
    ]
    assert all("–" in row for row in rows[:8])  # no time of a step that was not run
    assert "largest batch" in ended.stdout


def test_what_if_without_a_memory_has_no_column_for_the_batch_that_it_holds() -> None:
    told = invoke(*BLOCKS, "--device", "cpu", "--what-if").stdout
    assert "largest batch\n" not in told
    assert "any memory" not in told
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
    ended = invoke(*BLOCKS, "--what-if", "--checkpoint")
    assert ended.exit_code == 0, ended.output
    assert [device.kind for _, device in benches] == ["cuda"]
    assert max(map(len, ended.stdout.splitlines())) <= 80
    for told in ("0.9: measured", "estimated", "library workspace", "0.0% of the peak is not", "20 ms", "no room."):
        assert told in ended.stdout
    assert "by -9.1%" in ended.stdout
    assert ended.stderr == ""
    report = json.loads(invoke(*BLOCKS, "--json").stdout)
    assert report["account"]["estimated"] is False
    assert report["account"]["outside_bytes"] == 1 << 29
    assert len(benches) == 2
    assert invoke(*BLOCKS, "--device", "cpu").stderr == ""
    assert len(benches) == 2


def test_json_holds_the_whole_report() -> None:
    ended = invoke(*SMALL, "--json", "--per-layer", "--memory", "2GiB")
    report = json.loads(ended.stdout)
    assert report["account"]["batch_size"] == 4
    assert report["account"]["estimated"] is True
    assert report["account"]["fragmentation_bytes"] is None
    assert report["checkpointed"] is None
    assert report["layers"][0]["name"] == "0.0.0"
    assert report["largest_batch"]["batch_size"] > 0


def test_without_a_gpu_it_says_why_it_estimates() -> None:
    ended = invoke(*SMALL[:-2])
    assert ended.exit_code == 0
    assert "estimating from tensor shapes" in ended.stderr
    assert "estimating from tensor shapes" not in invoke(*SMALL).stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--batch-size 0", "--batch-size is 0;"),
        ("--image-size 0", "--image-size is 0;"),
        ("--precision fp8", "--precision is 'fp8';"),
        ("--optimizer lion", "--optimizer is 'lion';"),
        ("--memory 24Gb/s", "--memory is '24Gb/s';"),
        ("--memory 0GiB", "--memory is '0GiB', which is 0 B"),
        ("--memory 24", "--memory is '24', which is 24 B; it must be 1 MiB or more"),
        ("resnet18", "write --model resnet18"),
        ("--only train.py", "--only is 'train.py'; it needs --trace SCRIPT."),
        ("--memory lots", "--memory is 'lots';"),
        ("--model resnet51", "Did you mean resnet"),
        (
            "--dataset training_workloads:Images --model account_rig:Deep --checkpoint --checkpoint-segments 99",
            "--checkpoint-segments is 99;",
        ),
        ("--checkpoint-segments 4", "--checkpoint-segments needs --checkpoint or --what-if."),
        ("--checkpoint --checkpoint-segments 1", "--checkpoint-segments is 1;"),
        ("--model resnet18 --batch-size 1 --image-size 32", "does not train on a batch of 1"),
        ("--dataset training_workloads:Images --model account_rig:Decides --batch-size 2", "cannot be estimated"),
        ("--model fasterrcnn_mobilenet_v3_large_fpn --batch-size 2", "has no loss for the model fasterrcnn"),
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
    done = subprocess.run(
        [sys.executable, "-m", "loadtune", "memory", *words],
        capture_output=True,
        text=True,
        check=False,
    )
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
