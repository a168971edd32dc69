"""The measured account: blocks put down to their owners, by hand-made histories and by real steps on a CPU."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from account_rig import KEPT_BYTES, SLACK_BYTES, WORKSPACE_BYTES, FakeBooks, plan_of
from torch import nn
from torch.nn.functional import cross_entropy
from workload_rig import workload_of

from loadtune.footprint.account import owned
from loadtune.footprint.estimate import estimate_step
from loadtune.footprint.plan import checkpointed
from loadtune.records.config import OptimizerName, Precision, Recipe, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.footprint import StepAccount, StepVariant, block_bytes
from loadtune.records.measurement import TrialFailure
from loadtune.stream.sample_table import SampleTable
from loadtune.training.account import StepMeter
from loadtune.training.memory import CpuMemory
from loadtune.training.protocol import Begin
from loadtune.training.session import Session
from loadtune.training.trainer import ResidentModel, Trainer, resident_batch

CPU = torch.device("cpu")
BATCH = 8


def test_a_session_measures_the_variant_it_was_asked_for_and_leaves_the_model_as_it_was() -> None:
    spec = WorkloadSpec(dataset="training_workloads:Images", model="account_rig:Blocks")
    session = Session(Begin(spec=spec, device=Device(kind="cpu", name="cpu")), Pulse())  # type: ignore[arg-type]
    module = session._model.module
    asked = StepVariant(recipe=Recipe(), batch_size=4, optimizer="adamw", checkpoint=True)
    account = session._measure(asked, FakeBooks(module.parameters))
    assert (account.input_shape, account.optimizer, account.batch_size) == ((3, 8, 8), "adamw", 4)
    assert (account.estimated, account.num_checkpointed_blocks) == (False, 3)
    assert account.step_s is not None
    assert account.largest.parameters_bytes == sum(block_bytes(p.numel() * 4) for p in module.parameters())
    assert not any("forward" in vars(part) for part in module.modules())
    refused = session.run(asked)
    assert isinstance(refused, TrialFailure)
    assert refused.kind == "unsupported"


def conv_net() -> nn.Module:
    blocks = (nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)) for _ in range(3))
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, nn.Flatten(), nn.Linear(8 * 16 * 16, 5))


class Pulse:
    """A line to nobody."""

    def __init__(self) -> None:
        self.samples = SampleTable()

    def enter(self, phase: str) -> None: ...

    def pulse(self) -> None: ...


def measured(
    precision: Precision = "fp32", optimizer: OptimizerName = "sgd", *, checkpoint: bool = False, **given: Any
) -> tuple[StepAccount, FakeBooks]:
    workload = workload_of(
        None, conv_net(), lambda model, inputs, targets: cross_entropy(model(inputs), targets), num_classes=5, **given
    )
    model = ResidentModel(workload, CPU)
    trainer = Trainer(model, Recipe(precision=precision), workload, optimizer)
    batch = resident_batch((torch.rand(4, 3, 16, 16), torch.arange(4)), BATCH, trainer)
    books = FakeBooks(
        lambda: (tensor for _, found in owned(trainer.module, trainer.state_tensors(), batch) for tensor in found)
    )
    meter = StepMeter(trainer, batch, CpuMemory(), books, Pulse())  # type: ignore[arg-type]
    with checkpointed(model.module, meter.keep) if checkpoint else nullcontext():
        step = {"model": "conv_net", "precision": precision, "optimizer": optimizer, "batch_size": BATCH}
        return meter.measure(**step, input_shape=(3, 16, 16), num_parameters=0), books


@pytest.mark.parametrize(("precision", "optimizer", "copies"), [("bf16", "sgd", 1), ("fp32", "adamw", 2)])
def test_a_real_step_is_accounted_for_as_shapes_say(
    precision: Precision, optimizer: OptimizerName, copies: int
) -> None:
    found, books = measured(precision, optimizer)
    plan = plan_of(conv_net, (3, 16, 16), precision=precision)
    expected = estimate_step(plan, BATCH)
    largest, at_peak = found.largest, found.at_peak
    assert at_peak.total_bytes - SLACK_BYTES == books.peaks_bytes[0]  # nothing is left unexplained
    parameters = sum(block_bytes(p.numel() * 4) for p in plan.model.parameters())
    assert at_peak.parameters_bytes == largest.gradients_bytes == parameters
    state = sum(block_bytes(p.numel() * 4) for p in plan.model.parameters()) * copies
    # Adam counts its steps in a scalar for each parameter, which lies on the CPU: here that is the device
    assert 0 <= largest.optimizer_state_bytes - state <= 512 * 20 * (optimizer == "adamw")
    assert largest.buffers_bytes == expected.largest.buffers_bytes
    assert largest.input_bytes == expected.largest.input_bytes
    assert largest.activations_bytes == pytest.approx(expected.largest.activations_bytes, rel=0.02)


def test_workspace_of_a_moment_and_workspace_that_stays_are_found() -> None:
    largest = measured()[0].largest
    assert largest.workspace_bytes == WORKSPACE_BYTES + KEPT_BYTES
    assert largest.rounding_bytes == SLACK_BYTES
