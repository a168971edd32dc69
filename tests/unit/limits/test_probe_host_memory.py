"""Batches in flight against /dev/shm and RAM."""

from dataclasses import replace

from loadtune.limits.host_memory import host_memory_refusal, prefetch_bytes, ram_bytes
from loadtune.records.config import LoaderConfig
from loadtune.testing import GIB, fake_host

MIB = 1024**2


def test_what_is_in_flight() -> None:
    loader = LoaderConfig(batch_size=10, num_workers=4, prefetch_factor=2)
    assert prefetch_bytes(loader, 100) == (4 * 2 + 4) * 10 * 100
    assert ram_bytes(loader, 100) == prefetch_bytes(loader, 100)
    # Blocks of 1,024 bytes for batches of 1,000; what the workers are making is not pinned.
    assert ram_bytes(replace(loader, pin_memory=True), 100) == (4 * 2 + 2) * 1024 + 4 * 1000
    assert prefetch_bytes(LoaderConfig(batch_size=10), 100) == 10 * 100


def test_ram_refuses_what_shm_would_take() -> None:
    host = replace(fake_host(), ram_available_bytes=2 * GIB)
    assert "of RAM" in (host_memory_refusal(LoaderConfig(batch_size=4096, num_workers=2), MIB, host) or "")


def test_no_shm_is_no_limit() -> None:
    host = replace(fake_host(), shm_free_bytes=None)
    assert host_memory_refusal(LoaderConfig(batch_size=64, num_workers=4), MIB, host) is None
