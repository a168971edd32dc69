"""What the first samples say of all others."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from loop_rig import LINE
from torch.utils.data import Dataset
from workload_rig import workload_of

from loadtune.training import describe
from loadtune.training.describe import Samples


def first_samples(dataset: Any) -> Samples:
    return Samples(workload_of(dataset, loss_takes="outputs"), LINE)


class Pausing(Dataset[Any]):
    """Fast, but for pauses of 20 ms at some of its reads."""

    def __init__(self, *at: int) -> None:
        self.at, self.num_read = at, 0

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        self.num_read += 1
        if self.num_read in self.at:
            time.sleep(0.02)
        return index, index


def test_a_sample_costs_what_reading_it_takes_and_waiting_is_no_cpu_time() -> None:
    samples = first_samples(Pausing(*range(100_000)))
    assert samples.sample_s >= 0.02
    assert samples.sample_cpu_s < 0.5 * samples.sample_s, "on a busy machine it waits for a core after each sleep"
    assert len(samples.samples) == 16


class Ticking(Pausing):
    """By a clock of its own, which nothing else takes time of."""

    now_s = 0.0

    def __getitem__(self, index: int) -> Any:
        self.num_read += 1
        self.now_s += 0.02 if self.num_read in self.at else 3e-7
        return index, index


def test_a_pause_is_not_what_every_sample_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 samples it would be 0.3 ms of each, of 4,096 still 5 µs."""
    dataset = Ticking(5, 700)
    clock = SimpleNamespace(monotonic=lambda: dataset.now_s, process_time=time.process_time)
    monkeypatch.setattr(describe, "time", clock)
    assert first_samples(dataset).sample_s == pytest.approx(3e-7)


def test_what_now_and_then_a_sample_takes_is_what_samples_take() -> None:
    """One in thirty: every other group has one and more of them than a tenth counts."""
    samples = first_samples(Pausing(*range(7, 4096, 30)))
    assert samples.sample_s > 0.5 * 0.02 / 30
