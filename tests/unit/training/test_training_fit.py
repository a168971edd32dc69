"""One tried batch on the CPU: what verification adds, and what of it may fail."""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from workload_rig import workload_of

from loadtune.records.config import Recipe
from loadtune.records.memory import BatchTry, FitReport
from loadtune.training.memory import CpuMemory
from loadtune.training.steps import try_steps
from loadtune.training.trainer import ResidentModel, Trainer, resident_batch

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
    assert report.steady_peak_bytes
    assert model.training


def test_a_model_without_an_evaluation_mode_fits() -> None:
    model = NoEvaluation()
    report = run(model, verify=True, partial_batch_size=2)
    assert report.fits
    assert model.passes == [FULL, FULL, EVALUATION, PARTIAL, FULL]
    assert model.training
