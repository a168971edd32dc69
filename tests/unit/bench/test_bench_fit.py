"""One tried batch on the CPU: what verification adds, and what of it may fail."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from workload_rig import workload_of

from loadtune.bench.memory import CpuMemory
from loadtune.bench.steps import try_steps
from loadtune.bench.training import ResidentModel, Trainer, resident_batch
from loadtune.records.config import Recipe
from loadtune.records.memory import BatchTry, FitReport
from loadtune.workload.batches import places_of

CPU = torch.device("cpu")
BATCH = 6


class Watched(nn.Module):
    """Keeps the size and the mode of each forward pass; a subclass says what evaluation does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)
        self.passes: list[tuple[int, str]] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.passes.append((len(inputs), "training" if self.training else "evaluation"))
        if not self.training:
            self.evaluating()
        return self.head(self.norm(inputs))

    def evaluating(self) -> None:
        assert not torch.is_grad_enabled()


class NoEvaluation(Watched):
    def evaluating(self) -> None:
        raise NotImplementedError("this model is for training only")


class FullEvaluation(Watched):
    def evaluating(self) -> None:
        torch.empty(1 << 60, dtype=torch.uint8)


class QuietLine:
    """A line with nobody at its other end."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    @property
    def phase(self) -> str:
        return self.phases[-1]

    def enter(self, phase: str) -> None:
        self.phases.append(phase)

    def pulse(self) -> None:
        pass


def task(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(inputs), targets)


def forward(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model(inputs)
    return output


def run(
    model: Watched,
    *,
    verify: bool = False,
    partial_batch_size: int | None = None,
    num_steps: int = 3,
    line: QuietLine | None = None,
) -> FitReport:
    dataset: Any = [(torch.zeros(4), 0)]
    workload = workload_of(dataset, model, task)
    trainer = Trainer(ResidentModel(workload, CPU), Recipe(), workload)
    samples = torch.rand(3, 4), torch.arange(3)
    quiet: Any = line or QuietLine()
    asked = BatchTry(
        recipe=Recipe(),
        batch_size=BATCH,
        num_steps=num_steps,
        verify=verify,
        partial_batch_size=partial_batch_size,
    )
    return try_steps(trainer, lambda size: resident_batch(samples, size, trainer), asked, CpuMemory(), quiet)


FULL, PARTIAL, EVALUATION = (BATCH, "training"), (2, "training"), (BATCH, "evaluation")


def test_unverified_there_are_training_steps_alone() -> None:
    model = Watched()
    report = run(model)
    assert model.passes == [FULL] * 3
    assert report.fits
    assert (report.batch_size, report.evaluation_peak_bytes, report.partial_batch_size) == (BATCH, None, None)
    assert (report.allocations, report.num_steady_retries) == (None, None)


def test_a_first_step_is_no_step_time() -> None:
    """It loads kernels and may compile: foretold from it, every larger size would take too long."""
    assert run(Watched(), num_steps=1).step_s is None
    assert run(Watched(), num_steps=2).step_s
    assert run(Watched(), verify=True, num_steps=1).step_s


def test_evaluation_and_partial_batch_come_before_the_last_full_step() -> None:
    model, line = Watched(), QuietLine()
    report = run(model, verify=True, partial_batch_size=2, line=line)
    assert model.passes == [FULL, FULL, EVALUATION, PARTIAL, FULL]
    assert line.phases == ["first step", "steady steps", "evaluation", "partial batch", "steady steps"]
    assert report.fits
    assert (report.batch_size, report.partial_batch_size) == (BATCH, 2)
    assert report.evaluation_peak_bytes
    assert report.steady_peak_bytes
    assert model.training


def test_a_partial_batch_of_joined_samples_is_made_anew() -> None:
    """Nodes of all samples lie one after another: a batch of fewer is not a part of a larger one."""

    def batch(size: int) -> Any:
        return {"nodes": torch.rand(3 * size, 4), "y": torch.rand(size)}

    def compute_loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch["nodes"]).view(len(batch["y"]), -1).mean(1) - batch["y"]).square().mean()

    dataset: Any = [torch.zeros(4)]
    model = Watched()
    workload = workload_of(dataset, model, compute_loss=compute_loss, own_batches=True)
    places = places_of(batch(2), batch(3), 2, 3)
    trainer = Trainer(ResidentModel(workload, CPU), Recipe(), workload, places=places)
    line: Any = QuietLine()
    asked = BatchTry(recipe=Recipe(), batch_size=BATCH, num_steps=2, verify=True, partial_batch_size=2)
    report = try_steps(trainer, batch, asked, CpuMemory(), line)
    assert report.fits
    assert model.passes == [(18, "training"), (18, "evaluation"), (6, "training"), (18, "training")]


@pytest.mark.parametrize("num_steps", [1, 2])
def test_few_steps_are_verified_too(num_steps: int) -> None:
    model = Watched()
    report = run(model, verify=True, num_steps=num_steps)
    assert model.passes == [FULL, EVALUATION, FULL]
    assert report.fits
    assert report.partial_batch_size is None


def test_a_model_without_an_evaluation_mode_fits_and_has_no_such_peak() -> None:
    model = NoEvaluation()
    report = run(model, verify=True, partial_batch_size=2)
    assert report.fits
    assert report.evaluation_peak_bytes is None
    assert model.passes == [FULL, FULL, EVALUATION, PARTIAL, FULL]
    assert model.training


def test_an_evaluation_that_runs_out_of_memory_is_a_failure() -> None:
    model, line = FullEvaluation(), QuietLine()
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        run(model, verify=True, line=line)
    assert line.phase == "evaluation"
    assert model.training
