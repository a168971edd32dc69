"""Memory that grows with each sample is told from queues that fill, heaps that wander and workers that come and go."""

import random

import pytest
from training_rig import trial

from loadtune.records.measurement import Measurement, Window
from loadtune.records.telemetry import MemoryReading, Telemetry
from loadtune.trends import memory_growth

MIB, GIB = 1 << 20, 1 << 30
PER_S, SECONDS, READINGS_PER_S = 200, 2.4, 5
LENGTH, RAM = 100_000, 16 * GIB


def measured(held, num_workers=2, workers_at=lambda at_s: 2, start_s=0.0):
    """A run of six windows; `held` is the memory at a moment, of the workers where there are any."""
    windows = tuple(
        Window(start_s=start_s + at * 0.4, seconds=0.4, num_steps=10, num_samples=int(0.4 * PER_S)) for at in range(6)
    )
    moments = [at / READINGS_PER_S for at in range(int(SECONDS * READINGS_PER_S) + 1)]
    readings = tuple(
        MemoryReading(
            after_s=at,
            main_bytes=0 if num_workers else int(held(at)),
            workers_bytes=int(held(at)) if num_workers else 0,
            num_workers=workers_at(at) if num_workers else 0,
        )
        for at in moments
    )
    telemetry = Telemetry(seconds=SECONDS, memory=readings)
    return trial(num_workers=num_workers), Measurement(
        windows=windows, first_batch_s=0.1, seconds=3.0, telemetry=telemetry
    )


def told(*runs, of_workers=True):
    growth = memory_growth(runs, of_workers=of_workers)
    return growth is not None and growth.matters(LENGTH, RAM)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_growth_with_each_sample_is_told_with_its_size(num_workers):
    of_workers = num_workers > 0
    runs = [measured(lambda at_s: 200 * MIB + at_s * PER_S * 8 * MIB, num_workers, start_s=100.0) for _ in range(2)]
    growth = memory_growth(runs, of_workers=of_workers)
    assert growth.bytes_per_sample == pytest.approx(8 * MIB)
    assert growth.matters(LENGTH, RAM)
    assert memory_growth(runs, of_workers=not of_workers) is None


def test_what_fills_and_then_is_full_is_no_growth():
    assert not told(*[measured(lambda at_s: min(at_s, 1.0) * 500 * MIB) for _ in range(10)])


def test_memory_that_wanders_is_no_growth():
    dice = random.Random(0)

    def wanders():
        held = 200 * MIB

        def at(at_s):
            nonlocal held
            held += dice.gauss(0, MIB)
            return held

        return at

    assert sum(told(*[measured(wanders()) for _ in range(10)]) for _ in range(100)) <= 1


def test_workers_that_are_found_late_are_no_growth():
    def arrives(at_s):
        return 2 if at_s > 1.7 else 1

    assert not told(*[measured(lambda at_s: arrives(at_s) * 300 * MIB, workers_at=arrives) for _ in range(10)])
