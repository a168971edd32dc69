"""The account of a step on a real GPU: it adds up, arithmetic agrees, and the tracer names the lines."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import loadtune
from loadtune.footprint.estimate import estimate_step, plan_of_spec
from loadtune.footprint.trace_ledger import TracedLine
from loadtune.host.machine import choose_device, read_host
from loadtune.records.config import OptimizerName, Precision, WorkloadSpec
from loadtune.records.memory import StepAccount, block_bytes
from loadtune.training.client import TrainingClient

pytestmark = pytest.mark.gpu

TESTS = Path(__file__).resolve().parents[1]
MIB = 2**20
LINEAR = WorkloadSpec(dataset="training_workloads:Images", model="training_workloads:Linear")


@contextmanager
def bench_of(spec: WorkloadSpec, folder: Path) -> Iterator[TrainingClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{TESTS.parent}", prepend=os.pathsep)
        with TrainingClient(spec, choose_device(read_host(), "cuda"), log_path=folder / "training.log") as client:
            yield client


def measured(training: TrainingClient, precision: Precision, batch_size: int) -> StepAccount:
    found = training.account(precision, batch_size)
    assert isinstance(found, StepAccount), found
    return found


def test_a_linear_layer_is_what_arithmetic_says(tmp_path: Path) -> None:
    batch, inputs, outputs = 4096, 3 * 8 * 8, 3
    parameters = block_bytes(inputs * outputs * 4) + block_bytes(outputs * 4)
    copies: dict[OptimizerName, int] = {"sgd": 1, "adamw": 2}
    for optimizer, count in copies.items():
        with bench_of(replace(LINEAR, optimizer=optimizer), tmp_path) as training:
            account = measured(training, "fp32", batch)
            largest = account.largest
            assert largest.parameters_bytes == largest.gradients_bytes == parameters
            assert largest.optimizer_state_bytes == count * parameters
            assert largest.input_bytes == block_bytes(batch * inputs * 4) + block_bytes(batch * 8)
            # log-softmax's output, and the total weight of the negative log likelihood
            assert largest.activations_bytes == block_bytes(batch * outputs * 4) + block_bytes(4)
            assert abs(account.unexplained_bytes) <= 0.02 * account.peak_bytes, account


@pytest.mark.parametrize(("precision", "optimizer"), [("fp32", "sgd"), ("bf16", "adamw"), ("fp16", "sgd")])
def test_resnet18_is_explained_to_two_per_cent(tmp_path: Path, precision: Precision, optimizer: OptimizerName) -> None:
    spec = WorkloadSpec(model="resnet18", optimizer=optimizer)
    with bench_of(spec, tmp_path) as training:
        account = measured(training, precision, 64)
        again = measured(training, precision, 64)
    assert again.peak_bytes == pytest.approx(account.peak_bytes, rel=0.01)  # a session that was watched goes on
    assert abs(account.unexplained_bytes) <= 0.02 * account.peak_bytes, account
    assert account.at_peak.activations_bytes > 0.5 * account.peak_bytes
    assert account.fragmentation_bytes >= 0
    assert account.outside_bytes > 100 * MIB  # a context and cuDNN
    assert 0 < account.step_s < 10
    estimate, _ = estimate_step(plan_of_spec(spec, precision), 64)
    assert estimate.at_peak.parameters_bytes == account.at_peak.parameters_bytes
    assert estimate.largest.optimizer_state_bytes == pytest.approx(account.largest.optimizer_state_bytes, abs=4096)
    assert estimate.peak_bytes == pytest.approx(account.peak_bytes, rel=0.1)


def test_the_command_measures_beside_the_estimate_and_makes_no_context_of_its_own() -> None:
    code = (
        "import sys, torch\nfrom loadtune.cli.app import app\n"
        "try: app(['memory', '--model', 'resnet18', '--batch-size', '16', '--json'])\n"
        "finally: print(torch.cuda.is_initialized(), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.strip().endswith("False")
    report = json.loads(ended.stdout)
    assert report["account"]["estimated"] is False
    assert report["estimate"]["estimated"] is True
    assert report["account"]["step_s"] > 0


def line_of(lines: tuple[TracedLine, ...], source: str) -> TracedLine:
    (found,) = (line for line in lines if line.source.startswith(source))
    return found


def test_the_tracer_names_the_lines() -> None:
    torch.zeros(1, device="cuda")
    with loadtune.trace_memory() as trace:
        weight = torch.zeros(16 * MIB, device="cuda", requires_grad=True)
        (weight * weight).sum().backward()
        del weight
    made, stepped, freed = (line_of(trace.lines, source) for source in ("weight =", "(weight * weight)", "del weight"))
    assert made.cuda.change_bytes == 64 * MIB
    assert [tensor.kind for tensor in stepped.appeared] == ["gradient"]
    assert stepped.cuda.peak_bytes - stepped.cuda.in_use_bytes >= 63 * MIB
    assert freed.cuda.change_bytes == -128 * MIB
    assert trace.record.device == f"cuda:{torch.cuda.current_device()}"
    assert "weight = torch.zeros" in trace.text()
