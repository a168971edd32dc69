"""``loadtune memory``: what it prints, that it fits a terminal, and how it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from account_rig import FakeTraining
from cli_rig import Invoked
from cli_rig import invoke as command
from fakes import fake_host

from loadtune.footprint.estimate import estimate_step, plan_of_spec
from loadtune.host import machine as host
from loadtune.records.config import WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.measurement import TrialFailure
from loadtune.training import client

BLOCKS = ("--dataset", "training_workloads:Images", "--model", "account_rig:Blocks")
SMALL = (*BLOCKS, "--batch-size", "4", "--device", "cpu")


def invoke(*words: str) -> Invoked:
    return command("memory", *words)


def test_tables_fit_80_columns_and_lines_are_named() -> None:
    """With a loss that holds tensors of its own."""
    given = ("--memory", "24GiB", "--precision", "bf16", "--loss", "account_rig:WEIGHTED")
    ended = invoke(*SMALL, "--per-layer", *given)
    assert ended.exit_code == 0, ended.output
    assert max(map(len, ended.stdout.splitlines())) <= 80
    for words in ("parameters", "optimizer state", "activations kept", "not attributed", "peak", "0.0.0"):
        assert words in ended.stdout
    assert "Largest batch size in 24.0 GiB: " in ended.stdout
    assert "nothing was run" in ended.stdout


def test_parameters_that_no_call_brings_stand_in_a_row_of_their_own() -> None:
    words = ("--model", "account_rig:Uncalled", "--per-layer", "--device", "cpu")
    lines = invoke(*BLOCKS[:2], *words).stdout.splitlines()
    assert next(line for line in lines if line.startswith("(not called)")).split()[-1:] == ["12"]
    assert next(line for line in lines if line.startswith("total")).split()[1] == "591"


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[Device]:
    """A host with a GPU and a training on it that are fakes; the devices that trainings were made for."""
    monkeypatch.setattr(host, "read_host", fake_host)
    monkeypatch.setattr(client, "TrainingClient", FakeTraining)
    monkeypatch.setattr(FakeTraining, "made", [])
    return FakeTraining.made


def test_on_a_gpu_it_is_measured_beside_the_estimate(on_gpu: list[Device]) -> None:
    ended = invoke(*BLOCKS, "--batch-size", "4")
    assert ended.exit_code == 0, ended.output
    assert [device.kind for device in on_gpu] == ["cuda"]
    assert max(map(len, ended.stdout.splitlines())) <= 80
    for told in ("0.9:\nmeasured", "at the peak,", "estimated", "workspace", "20 ms", "0.0% of the peak", "by -9.1%"):
        assert told in ended.stdout
    assert ended.stderr == ""
    report = json.loads(invoke(*BLOCKS, "--json").stdout)
    assert (report["account"]["estimated"], report["estimate"]["estimated"]) == (False, True)
    assert report["account"]["outside_bytes"] == 1 << 29
    assert len(on_gpu) == 2
    assert invoke(*BLOCKS, "--device", "cpu").stderr == ""
    assert len(on_gpu) == 2


def test_a_step_that_does_not_fit_is_no_estimate_in_disguise(
    on_gpu: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = TrialFailure(kind="oom", phase="warm-up", message="out of memory.")
    monkeypatch.setattr(FakeTraining, "account", lambda *_: failure)
    ended = invoke(*BLOCKS)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "A batch of 32 does not fit into GPU memory: out of memory. Lower --batch-size" in ended.stderr


def test_where_shapes_are_not_enough_the_measured_account_stands_alone(
    on_gpu: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    account, _ = estimate_step(plan_of_spec(WorkloadSpec(dataset=BLOCKS[1], model=BLOCKS[3])), 4)
    monkeypatch.setattr(FakeTraining, "account", lambda *_: replace(account, estimated=False, step_s=0.02))
    decides = (*BLOCKS[:2], "--model", "account_rig:Decides", "--json")
    assert json.loads(invoke(*decides).stdout)["estimate"] is None
    assert invoke(*decides, "--per-layer").exit_code == 2


def test_without_a_gpu_it_says_why_it_estimates() -> None:
    ended = invoke(*SMALL[:-2])
    assert ended.exit_code == 0
    assert "estimating from tensor shapes" in ended.stderr
    as_wanted = invoke(*SMALL, "--json")
    assert as_wanted.stderr == invoke(*SMALL[:-1], "CPU").stderr == ""
    assert json.loads(as_wanted.stdout)["account"]["estimated"] is True


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--precision fp8", "--precision is 'fp8';"),
        ("--memory 24Gb/s", "--memory is '24Gb/s';"),
        ("--memory 0GiB", "--memory is '0GiB'; it must be a size of 1 MiB or more with its unit"),
        ("resnet18", "'resnet18' stands without an option"),
        ("--trace nothing.py", "no such script"),
        ("--model resnet18 --batch-size 1 --image-size 32", "does not train on a batch of 1"),
        ("--dataset training_workloads:Images --model account_rig:Decides --batch-size 2", "cannot be estimated"),
        ("--dataset training_workloads:Images --model account_rig:Autoencoder", "give a loss of your own: --loss"),
        ("--dataset account_rig:RATED --model account_rig:Blocks", "a target has to be a class index"),
        ("--dataset account_rig:Broken", "Reading the stream raised OSError: the shard is gone"),
    ],
)
def test_what_cannot_be_used_is_said_with_code_2(words: str, told: str) -> None:
    ended = invoke("--device", "cpu", *words.split())
    assert ended.exit_code == 2, ended.output
    assert told in " ".join(ended.stderr.split())
    assert ended.stdout == ""


def test_a_script_is_followed_without_the_options_of_a_step(tmp_path: Path) -> None:
    script = tmp_path / "prints.py"
    script.write_text("print('said')\n")
    for option in ("--per-layer", "--batch-size 32", "--model resnet18"):
        refused = invoke("--trace", str(script), *option.split())
        assert refused.exit_code == 2
        assert f"Leave {option.split()[0]} out" in refused.stderr
    ended = invoke("--trace", str(script), "--json")
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["lines"] is not None
    assert "said" in ended.stderr
