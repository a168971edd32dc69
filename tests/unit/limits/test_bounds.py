"""Batches in flight against /dev/shm and RAM, and a batch that grows by what steps were seen to take."""

from dataclasses import replace

import pytest

from loadtune.limits.bounds import host_memory_refusal, largest_within, prefetch_bytes, ram_bytes
from loadtune.limits.memory import MemoryProbe
from loadtune.limits.recipe import STEP_S
from loadtune.records.config import LoaderConfig, Recipe
from loadtune.testing import GIB, FakeTraining, Surface, fake_host

MIB = 1024**2


def test_what_is_in_flight() -> None:
    loader = LoaderConfig(batch_size=10, num_workers=4, prefetch_factor=2)
    assert prefetch_bytes(loader, 100) == (4 * 2 + 4) * 10 * 100
    assert ram_bytes(loader, 100) == prefetch_bytes(loader, 100)
    # Blocks of 1,024 bytes for batches of 1,000; what the workers are making is not pinned.
    assert ram_bytes(replace(loader, pin_memory=True), 100) == (4 * 2 + 2) * 1024 + 4 * 1000
    assert prefetch_bytes(LoaderConfig(batch_size=10), 100) == 10 * 100


def test_ram_refuses_what_shm_would_take_and_no_shm_is_no_limit() -> None:
    host = replace(fake_host(), ram_available_bytes=2 * GIB)
    assert "of RAM" in (host_memory_refusal(LoaderConfig(batch_size=4096, num_workers=2), MIB, host) or "")
    host = replace(fake_host(), shm_free_bytes=None)
    assert host_memory_refusal(LoaderConfig(batch_size=64, num_workers=4), MIB, host) is None


@pytest.mark.parametrize(
    ("step_s", "largest"),
    [
        ({2: 0.102}, 11),  # by the rate alone
        ({2: 0.4}, 4),  # twice the batch takes twice the limit at most
        ({2: 0.7}, 1),
        ({2: 0.102, 11: 0.111}, 118),  # the line says 500, and is trusted to twice of what the rate allows
        ({2: 0.102, 11: 0.111, 118: 0.218}, 500),
        ({110: 0.34, 118: 0.44, 40: 0.3}, 207),  # a neighbour 7% smaller tells nothing of the slope
        ({10: 0.2, 20: 0.2}, 120),  # no slope: as if every sample after these were free, as far as that is trusted
    ],
)
def test_the_largest_batch_within_the_limit(step_s: dict[int, float], largest: int) -> None:
    assert largest_within(0.6, step_s) == pytest.approx(largest, abs=1)


def test_the_line_is_run_with_quick_steps_and_what_is_larger_is_predicted() -> None:
    training = FakeTraining(Surface(compute_per_s={"fp32": 100.0}))
    ceiling = MemoryProbe(training, Recipe(precision="fp32"), {"dataset": 10**6}, step_s={2: 0.18}).bound()
    assert all(probe.step_s is not None and probe.step_s <= STEP_S for probe in ceiling.probes)
    assert not ceiling.verified
    assert 0.95 * training.surface.largest_batch("fp32") < ceiling.batch_size
