"""Steps on a resident batch: those that warm up, those that are timed, and what a tried batch size takes."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loop_rig import LINE, SleepingTrainer
from torch import nn
from workload_rig import workload_of

from loadtune.records.config import Recipe
from loadtune.records.measurement import Window
from loadtune.records.memory import BatchTry, FitReport
from loadtune.training import steps
from loadtune.training.memory import CpuMemory
from loadtune.training.steps import ResidentModel, Trainer, try_steps

CPU = torch.device("cpu")


class FakeTrainer(SleepingTrainer):
    """As a GPU: a step costs the host nothing, waiting for the device costs all steps that were given to it."""

    def __init__(self, step_s: float = 0.0, accumulate: int = 1, **given: Any) -> None:
        super().__init__(step_s=step_s, **given)
        self.accumulate, self.now, self.num_waits, self._pending = accumulate, 100.0, 0, 0

    def step(self, batch: Any) -> None:
        self._pending += 1
        self.num_steps += 1

    def synchronize(self) -> None:
        self.now += self._pending * self.step_s
        self._pending = 0
        self.num_waits += 1


@pytest.mark.parametrize(
    ("halvings", "num_steps"),
    [
        (lambda steps: 0.0, 1),
        (lambda steps: float(min(steps, 5)), 6),  # the sixth is the first that is not skipped
        (lambda steps: float(steps), 20),  # a model that goes on overflowing
    ],
)
def test_warming_up_goes_on_until_a_step_is_not_skipped(halvings: Callable[[int], float], num_steps: int) -> None:
    trainer: Any = FakeTrainer(halvings=halvings)
    steps.warm_up(trainer, (torch.zeros(2, 3), torch.zeros(2)), LINE)
    assert trainer.num_steps == num_steps


def windows_of(step_s: float, accumulate: int = 1) -> tuple[tuple[Window, ...], Any]:
    trainer: Any = FakeTrainer(step_s, accumulate)
    line = SimpleNamespace(**vars(LINE) | {"now": lambda: trainer.now})
    return steps.time_windows(trainer, (torch.zeros(32, 1), torch.zeros(32)), 1.0, line), trainer


@pytest.mark.parametrize("step_s", [0.0003, 0.01, 0.07, 0.25, 0.4])
def test_windows_abut_take_about_the_time_given_and_have_whole_rounds_of_accumulated_gradients(step_s: float) -> None:
    windows, trainer = windows_of(step_s)
    assert all(a.end_s == pytest.approx(b.start_s) for a, b in itertools.pairwise(windows))
    assert 0.85 <= sum(window.seconds for window in windows) <= 1.0 + 2 * step_s  # half a step a window
    assert all(window.num_samples / window.seconds == pytest.approx(32 / step_s) for window in windows)
    assert trainer.num_waits <= 3 * len(windows), "synchronised at edges, not at steps"
    windows, _ = windows_of(step_s, accumulate=3)
    assert all(window.num_steps % 3 == 0 for window in windows)
    assert len(windows) >= 2


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


def run(model: Watched, line: Any = LINE, **asked: Any) -> FitReport:
    dataset: Any = [(torch.zeros(4), 0)]
    workload = workload_of(dataset, model)
    trainer = Trainer(ResidentModel(workload, CPU), Recipe(), workload)
    samples = torch.rand(3, 4), torch.arange(3)
    wanted = BatchTry(recipe=Recipe(), batch_size=BATCH, **asked)
    return try_steps(trainer, lambda size: trainer.places.repeated(samples, size), wanted, CpuMemory(), line)


FULL, PARTIAL, EVALUATION = (BATCH, "training"), (2, "training"), (BATCH, "evaluation")


@pytest.mark.parametrize("kind", [Watched, NoEvaluation])
def test_evaluation_and_partial_batch_come_before_the_last_full_step(kind: type[Watched]) -> None:
    """Also of a model that has no evaluation mode."""
    model, phases = kind(), list[str]()
    line = SimpleNamespace(enter=phases.append, pulse=lambda: None, phase="")
    report = run(model, line, verify=True, partial_batch_size=2)
    assert model.passes == [FULL, FULL, EVALUATION, PARTIAL, FULL]
    assert phases == ["first step", "steady steps", "evaluation", "partial batch", "steady steps"]
    assert report.fits
    assert report.batch_size == BATCH
    assert 0 < report.steady_peak_bytes <= report.peak_bytes <= report.budget_bytes
    assert report.step_s > 0
    assert report.reserved_peak_bytes is None
    assert model.training
