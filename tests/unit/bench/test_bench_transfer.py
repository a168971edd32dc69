"""Copies to the device: how many are counted, over which time; and that a CPU has no way to go."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loadtune.bench import transfer
from loadtune.records import TransferPoint

LINE: Any = SimpleNamespace(enter=lambda phase: None, pulse=lambda: None)
SAMPLES = (torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize("pin", [False, True])
def test_on_a_cpu_nothing_is_copied_and_nothing_claimed(pin: bool) -> None:
    point = transfer.time_transfer(SAMPLES, 6, torch.device("cpu"), 10.0, pin, LINE)
    assert (point.num_copies, point.seconds, point.bytes_per_s, point.samples_per_s) == (0, None, None, None)
    assert point.batch_bytes == 6 * (3 * 8 * 8 * 4 + 8)


@pytest.mark.parametrize("copy_s", [0.001, 0.3, 5.0])
def test_every_copy_but_the_first_counts_over_all_the_time(monkeypatch: pytest.MonkeyPatch, copy_s: float) -> None:
    """On a clock that only copies and synchronisations move: these take 10 ms, which small copies must not pay for."""
    now, copies = [0.0], [0]

    def copy() -> None:
        now[0] += copy_s
        copies[0] += 1

    def synchronize() -> None:
        now[0] += 0.01

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    count, seconds = transfer._copies(copy, synchronize, 1.0, LINE)
    assert count == copies[0] - 1
    assert 1.0 <= seconds <= 1.2 + copy_s
    assert copy_s <= seconds / count <= 1.25 * copy_s


def test_rates_are_of_all_copies() -> None:
    point = TransferPoint(batch_size=64, batch_bytes=640, pinned=True, num_copies=5, seconds=2.0)
    assert (point.samples_per_s, point.bytes_per_s) == (160.0, 1600.0)
