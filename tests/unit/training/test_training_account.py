"""The measured account: blocks put down to their owners, by hand-made histories and by real steps on a CPU."""

import pytest
import torch
from account_rig import KEPT_BYTES, SLACK_BYTES, WORKSPACE_BYTES, FakeBooks, plan_of
from loop_rig import LINE
from torch import nn
from workload_rig import workload_of

from loadtune.errors import TrainingError
from loadtune.footprint.account import AllocatorLog
from loadtune.footprint.estimate import estimate_step
from loadtune.records.config import OptimizerName, Precision, Recipe, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.memory import StepAccount, block_bytes
from loadtune.training.memory import CpuMemory
from loadtune.training.process import Begin
from loadtune.training.session import Session
from loadtune.training.steps import ResidentModel, Trainer, measure_step

CPU = torch.device("cpu")
BATCH = 8


def test_a_session_measures_the_step_it_was_asked_for() -> None:
    spec = WorkloadSpec(dataset="training_workloads:Images", model="account_rig:Blocks", optimizer="adamw")
    session = Session(Begin(spec=spec, device=Device(kind="cpu", name="cpu")), LINE)
    module = session._model.module
    account = session._measure("bf16", 4, FakeBooks(module.parameters))
    assert (account.input_shape, account.optimizer, account.batch_size) == ((3, 8, 8), "adamw", 4)
    assert (account.estimated, account.precision) == (False, "bf16")
    assert account.step_s is not None
    assert account.largest.parameters_bytes == sum(block_bytes(p.numel() * 4) for p in module.parameters())
    assert session.recovers()
    assert all(parameter.grad is None for parameter in module.parameters())
    assert session._model.optimizer is None
    refused = session.account("bf16", 4)
    assert refused.kind == "unsupported"


def conv_net() -> nn.Module:
    blocks = (nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)) for _ in range(3))
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, nn.Flatten(), nn.Linear(8 * 16 * 16, 5))


def measured(precision: Precision = "fp32", optimizer: OptimizerName = "sgd") -> tuple[StepAccount, FakeBooks]:
    workload = workload_of(None, conv_net(), num_classes=5, optimizer=optimizer)
    model = ResidentModel(workload, CPU)
    trainer = Trainer(model, Recipe(precision=precision), workload)
    batch = trainer.places.repeated((torch.rand(4, 3, 16, 16), torch.arange(4)), BATCH)
    parameters, buffers = list(trainer.module.parameters()), trainer.module.buffers
    books = FakeBooks(
        lambda: [*parameters, *buffers(), *(p.grad for p in parameters), *trainer.state_tensors(), *batch]
    )
    return measure_step(trainer, batch, CpuMemory(), books, LINE), books


@pytest.mark.parametrize(("precision", "optimizer", "copies"), [("bf16", "sgd", 1), ("fp32", "adamw", 2)])
def test_a_real_step_is_accounted_for_as_shapes_say(
    precision: Precision, optimizer: OptimizerName, copies: int
) -> None:
    found, books = measured(precision, optimizer)
    plan = plan_of(conv_net, (3, 16, 16), precision=precision)
    expected, _ = estimate_step(plan, BATCH)
    largest, at_peak = found.largest, found.at_peak
    assert at_peak.total_bytes - SLACK_BYTES == books.peak_bytes  # nothing is left unexplained
    parameters = sum(block_bytes(p.numel() * 4) for p in plan.workload.model.parameters())
    assert at_peak.parameters_bytes == largest.gradients_bytes == parameters
    # Adam counts its steps in a scalar for each parameter, which lies on the CPU: here that is the device
    assert 0 <= largest.optimizer_state_bytes - copies * parameters <= 512 * 20 * (optimizer == "adamw")
    assert largest.buffers_bytes == expected.largest.buffers_bytes
    assert largest.input_bytes == expected.largest.input_bytes
    assert largest.activations_bytes == pytest.approx(expected.largest.activations_bytes, rel=0.02)


def test_workspace_of_a_moment_and_workspace_that_stays_are_found() -> None:
    largest = measured()[0].largest
    assert largest.workspace_bytes == WORKSPACE_BYTES + KEPT_BYTES
    assert largest.rounding_bytes == SLACK_BYTES


def test_requests_of_the_allocator_are_told_in_order_and_a_history_that_lacks_some_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Segments are no requests; a block from before may be given back."""
    history = [{"action": "alloc", "addr": 0x70, "size": 64}]
    count = {"allocated": 5, "freed": 2}
    stats = {name: {"all": {"current": 0}} for name in ("allocated_bytes", "requested_bytes")}
    stats["allocation"] = {"all": count}
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: stats)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **given: None)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda device: {"device_traces": [history]})
    log = AllocatorLog(torch.device("cuda", 0))
    with log.kept():
        for action, address in (("segment_alloc", 0x10), ("alloc", 0x10), ("free_requested", 0x10)):
            history.append({"action": action, "addr": address, "size": 512})
        history += [{"action": f"free_{end}", "addr": 0x70, "size": 64} for end in ("requested", "completed")]
        count |= {"allocated": 6, "freed": 4}
        assert log.events() == [(0x10, 512), (0x10, 0), (0x70, 0)]
        assert log.mark().position == 3
        count |= {"freed": 5}
        with pytest.raises(TrainingError, match="3 events where its counters say 4"):
            log.events()
