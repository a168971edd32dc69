"""Windows on a resident batch, with a trainer whose steps take what they are told to take."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from loadtune.training import steps


class FakeTrainer:
    """As a GPU: a step costs the host nothing, waiting for the device costs all steps that were given to it."""

    def __init__(self, step_s, accumulate=1):
        self.accumulate = accumulate
        self.now = 100.0
        self._step_s = step_s
        self._pending = 0
        self.num_waits = 0

    def step(self, batch):
        self._pending += 1

    def synchronize(self):
        self.now += self._pending * self._step_s
        self._pending = 0
        self.num_waits += 1

    def loss_is_finite(self):
        return None

    def num_samples(self, batch):
        return len(batch[0])


def windows_of(monkeypatch, step_s, seconds, accumulate=1):
    trainer = FakeTrainer(step_s, accumulate)
    monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=lambda: trainer.now))
    line = SimpleNamespace(enter=lambda phase: None, pulse=lambda: None)
    batch = (torch.zeros(32, 1), torch.zeros(32))
    return steps.time_windows(trainer, batch, seconds, line), trainer


@pytest.mark.parametrize("step_s", [0.0003, 0.01, 0.07, 0.25, 0.4])
def test_windows_abut_and_take_about_the_time_given(monkeypatch, step_s):
    windows, trainer = windows_of(monkeypatch, step_s, 1.0)
    assert all(a.end_s == pytest.approx(b.start_s) for a, b in itertools.pairwise(windows))
    assert 0.85 <= sum(window.seconds for window in windows) <= 1.0 + 2 * step_s  # half a step a window
    assert all(window.num_samples / window.seconds == pytest.approx(32 / step_s) for window in windows)
    assert trainer.num_waits <= 3 * len(windows), "synchronised at edges, not at steps"


@pytest.mark.parametrize("step_s", [0.0003, 0.01, 0.07, 0.4])
def test_each_window_has_whole_rounds_of_accumulated_gradients(monkeypatch, step_s):
    windows, _ = windows_of(monkeypatch, step_s, 1.0, accumulate=3)
    assert all(window.num_steps % 3 == 0 for window in windows)
    assert len(windows) >= 2
