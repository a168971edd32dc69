"""No rate has compiling in it, and compiling is no hang."""

import contextlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loop_rig import LINE, SleepingTrainer
from workload_rig import workload_of

from loadtune.records.config import LoaderConfig, Recipe, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.measurement import ComputePoint, TrainingRun, TrialFailure
from loadtune.training import TrainingClient
from loadtune.training.loop import EndlessLoader, time_training
from loadtune.training.memory import CpuMemory
from loadtune.training.protocol import Answer


@pytest.mark.parametrize(("last_compiled", "expected"), [(1, TrainingRun), (4, TrialFailure)])
def test_a_rate_with_compiling_in_it_is_none(last_compiled: int, expected: type) -> None:
    """The first step on a batch of the loader is no part of a window; the fourth is."""
    trainer: Any = SleepingTrainer()
    trainer.num_compiled = lambda: min(trainer.num_steps, last_compiled)
    line: Any = SimpleNamespace(**(vars(LINE) | {"stop_asked": lambda: trainer.num_steps > 5}))
    with contextlib.closing(
        EndlessLoader(workload_of([(torch.zeros(2), 0)] * 64), LoaderConfig(batch_size=2))
    ) as loader:
        assert type(time_training(trainer, loader, 0.0, line, CpuMemory())) is expected


class Silent:
    """Stands for a `TrainingProcess` that says which phase it is in, nothing for a while, and then its answer."""

    pid = 0
    log = SimpleNamespace(size=lambda: 0, cut=lambda: None, tail=lambda num_lines=0: "")

    def __init__(self, phase: str, silent_s: float) -> None:
        self._phase, self._silent_s = phase, silent_s
        self._said_s: float | None = None

    def send(self, message: object) -> None: ...

    def receive(self, timeout_s: float) -> Any:
        if self._said_s is None:
            self._said_s = time.monotonic()
            return self._phase
        time.sleep(0.01)
        if time.monotonic() - self._said_s < self._silent_s:
            return None
        return Answer(value=ComputePoint(recipe=Recipe(compile=True), batch_size=2, windows=()))

    def has_exited(self) -> bool:
        return False

    def dump_stacks(self, workers: Any = ()) -> None: ...

    def loading(self) -> tuple[()]:
        return ()

    def close(self, goodbye: object = None) -> int:
        return 0


@pytest.mark.parametrize(
    ("compile", "phase", "expected"),
    [
        (True, "warm-up", ComputePoint),
        (False, "warm-up", TrialFailure),
        (True, "training", ComputePoint),
        (True, "first batch", TrialFailure),
    ],
)
def test_silence_while_compiling_is_no_hang(
    compile: bool, phase: str, expected: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtune.training.client.TrainingProcess", lambda *given: Silent(phase, silent_s=0.3))
    with TrainingClient(
        WorkloadSpec(), Device(kind="cpu", name="cpu"), log_path=tmp_path / "log", hang_s=0.05
    ) as training:
        assert type(training.time_compute(Recipe(compile=compile), 2, 0.1)) is expected
