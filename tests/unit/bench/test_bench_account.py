"""The measured account: blocks put down to their owners, by hand-made histories and by real steps on a CPU."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from account_rig import KEPT_BYTES, SLACK_BYTES, WORKSPACE_BYTES, FakeBooks, plan_of
from torch import nn
from torch.nn.functional import cross_entropy
from workload_rig import workload_of

from loadtune.bench.account import Measured, StepMeter
from loadtune.bench.allocator_log import AllocatorLog
from loadtune.bench.memory import CpuMemory
from loadtune.bench.protocol import Begin
from loadtune.bench.session import Session
from loadtune.bench.training import ResidentModel, Trainer, resident_batch, resized
from loadtune.errors import BenchError, WorkloadError
from loadtune.footprint.blocks import Event, Mark
from loadtune.footprint.estimate import estimate_step
from loadtune.footprint.watch import owned
from loadtune.records.config import Precision, Recipe, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.footprint import Checkpoint, Checkpointed, StepOptimizer, StepVariant, block_bytes
from loadtune.records.measurement import TrialFailure
from loadtune.stream.sample_table import SampleTable
from loadtune.workload import checkpointed

CPU = torch.device("cpu")
BATCH = 8


class FakeCuda:
    """What `AllocatorLog` asks of `torch.cuda`: an allocator that hands out 512 bytes for every request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.history: list[dict[str, Any]] = [{"action": "alloc", "addr": 0x10, "size": 100}]
        self.counted = [1, 0]
        self.alive = {0x10: 100}
        self.is_kept: list[Any] = []
        cuda = torch.cuda
        monkeypatch.setattr(cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(cuda, "memory_stats_as_nested_dict", self.stats)
        monkeypatch.setattr(cuda.memory, "_snapshot", self.snapshot)
        monkeypatch.setattr(cuda.memory, "_record_memory_history", lambda enabled, **more: self.is_kept.append(enabled))

    def stats(self, device: torch.device) -> dict[str, Any]:
        handed_out, asked_for = 512 * len(self.alive), sum(self.alive.values())
        found = {"allocated_bytes": {"current": handed_out}, "requested_bytes": {"current": asked_for}}
        found["allocation"] = {"allocated": self.counted[0], "freed": self.counted[1]}
        return {name: {"all": figures} for name, figures in found.items()}

    def snapshot(self, device: torch.device) -> dict[str, Any]:
        state = {"state": "active_allocated"}
        blocks = [state | {"address": at, "requested_size": count} for at, count in self.alive.items()]
        return {"segments": [{"device": 0, "blocks": blocks}], "device_traces": [list(self.history)]}

    def ask(self, address: int, count: int) -> None:
        self.history.append({"action": "alloc", "addr": address, "size": count})
        self.counted[0] += 1
        self.alive[address] = count

    def give_back(self, address: int) -> None:
        self.history += [{"action": a, "addr": address, "size": 1} for a in ("free_requested", "free_completed")]
        self.counted[1] += 1
        del self.alive[address]


def test_the_allocators_counters_say_where_in_its_history_a_mark_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, books = FakeCuda(monkeypatch), AllocatorLog(torch.device("cuda", 0))
    with books.kept():
        assert books.standing() == {0x10: 100}
        assert books.mark() == Mark(0, 412)
        cuda.ask(0x20, 500)
        assert books.mark() == Mark(1, 424)
        cuda.give_back(0x10)
        assert books.mark() == Mark(2, 12)
        assert books.events() == [Event(0x20, 500), Event(0x10, 0)]
        cuda.counted[0] += 1
        with pytest.raises(BenchError, match="holds 2 events where its counters say 3"):
            books.events()
    assert cuda.is_kept == ["all", None]


def test_a_session_measures_the_variant_it_was_asked_for_and_leaves_the_model_as_it_was() -> None:
    spec = WorkloadSpec(dataset="bench_workloads:Images", model="account_rig:Blocks")
    session = Session(Begin(spec=spec, device=Device(kind="cpu", name="cpu")), Pulse())  # type: ignore[arg-type]
    module = session._model.module
    asked = StepVariant(recipe=Recipe(), batch_size=4, optimizer="adamw", image_size=12, checkpoint=Checkpoint())
    account = session._measure(asked, FakeBooks(module.parameters))
    assert (account.input_shape, account.optimizer, account.batch_size) == ((3, 12, 12), "adamw", 4)
    assert (account.estimated, account.checkpointed) == (False, Checkpointed(num_modules=3))
    assert account.step_s is not None
    assert account.largest.parameters_bytes == sum(block_bytes(p.numel() * 4) for p in module.parameters())
    assert not any("forward" in vars(part) for part in module.modules())
    refused = session.run(asked)
    assert isinstance(refused, TrialFailure)
    assert refused.kind == "unsupported"


def test_a_session_measures_a_plain_sequential_in_segments() -> None:
    spec = WorkloadSpec(dataset="bench_workloads:Images", model="account_rig:Deep")
    session = Session(Begin(spec=spec, device=Device(kind="cpu", name="cpu")), Pulse())  # type: ignore[arg-type]
    module = session._model.module
    given = StepVariant(recipe=Recipe(), batch_size=64)
    plain, kept = (
        session._measure(replace(given, checkpoint=wanted), FakeBooks(module.parameters))
        for wanted in (None, Checkpoint(segments=4))
    )
    assert (plain.checkpointed, kept.checkpointed) == (None, Checkpointed(num_modules=16, num_segments=4))
    assert kept.largest.activations_bytes < 0.7 * plain.largest.activations_bytes
    assert "forward" not in vars(module)


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
    precision: Precision = "fp32", optimizer: StepOptimizer = "sgd", *, checkpoint: bool = False, **given: Any
) -> tuple[Measured, FakeBooks]:
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
    with checkpointed(model.module, meter.keep, Checkpoint()) if checkpoint else nullcontext():
        return meter.measure(), books


@pytest.mark.parametrize(
    ("precision", "optimizer", "copies"), [("fp32", "sgd_plain", 0), ("bf16", "sgd", 1), ("fp32", "adamw", 2)]
)
def test_a_real_step_is_accounted_for_as_shapes_say(
    precision: Precision, optimizer: StepOptimizer, copies: int
) -> None:
    found, books = measured(precision, optimizer)
    plan = plan_of(conv_net, (3, 16, 16), precision=precision)
    expected = estimate_step(plan, BATCH)
    largest, at_peak, _ = found.lines
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
    largest = measured()[0].lines.largest
    assert largest.workspace_bytes == WORKSPACE_BYTES + KEPT_BYTES
    assert largest.rounding_bytes == SLACK_BYTES


def test_inference_has_neither_gradients_nor_state_nor_activations() -> None:
    found, books = measured(optimizer="adamw")
    forward = found.forward_only
    assert forward.gradients_bytes == forward.optimizer_state_bytes == forward.activations_bytes == 0
    assert forward.parameters_bytes > 0
    assert forward.temporary_bytes > 0
    assert forward.total_bytes - SLACK_BYTES == books.peaks_bytes[-1]


def test_a_loss_of_training_mode_alone_has_no_inference_and_its_step_is_measured() -> None:
    def compute_loss(model: nn.Module, batch: Any) -> torch.Tensor:
        assert model.training
        return cross_entropy(model(batch[0]), batch[1])

    found = measured(compute_loss=compute_loss, own_batches=True)[0]
    assert (found.forward_only, found.forward_only_peak_bytes) == (None, None)
    assert found.lines == measured()[0].lines


def test_checkpointed_blocks_keep_their_inputs_alone() -> None:
    plain, kept = (measured(checkpoint=wanted)[0].lines.largest for wanted in (False, True))
    one_map = BATCH * 8 * 16 * 16 * 4
    assert plain.activations_bytes > 6 * one_map
    assert 3 * one_map <= kept.activations_bytes < 5 * one_map


def test_images_of_another_size_keep_their_labels_and_others_have_none() -> None:
    inputs, targets = resized((torch.rand(2, 3, 8, 8), torch.ones(2, 8, 8, dtype=torch.long)), 12)
    assert (inputs.shape, targets.shape, targets.dtype) == ((2, 3, 12, 12), (2, 12, 12), torch.long)
    with pytest.raises(WorkloadError, match="no images"):
        resized((torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 7)), 12)
