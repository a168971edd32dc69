"""A training process that says nothing hangs."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtune.records.config import Recipe, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.measurement import ComputePoint, TrialFailure
from loadtune.training.client import TrainingClient
from loadtune.training.process import Answer


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
        return Answer(value=ComputePoint(recipe=Recipe(), batch_size=2, windows=()))

    def has_exited(self) -> bool:
        return False

    def dump_stacks(self, workers: Any = ()) -> None: ...

    def loading(self) -> tuple[()]:
        return ()

    def close(self, goodbye: object = None) -> int:
        return 0


@pytest.mark.parametrize("phase", ["warm-up", "first batch"])
def test_silence_is_a_hang(phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtune.training.client.TrainingProcess", lambda *given: Silent(phase, silent_s=0.3))
    with TrainingClient(
        WorkloadSpec(), Device(kind="cpu", name="cpu"), log_path=tmp_path / "log", hang_s=0.05
    ) as training:
        assert type(training.time_compute(Recipe(), 2, 0.1)) is TrialFailure
