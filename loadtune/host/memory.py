"""RAM and /dev/shm: what is there, what a limit leaves of it, what is free now.

In: psutil's view of the machine and the cgroup limits. Out: plain numbers for `HostFacts`. Nothing is kept between two
reads: virtual machines have been seen to show 31 GiB at first and grow to 256.
"""

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from loadtune.host.cgroup import MemoryLimit, read_memory_limits

SHM = Path("/dev/shm")
"""Where torch's shared-memory tensors and Python's semaphores live on Linux; no other platform has it."""

SHM_ADVICE = (
    "/dev/shm is full, read-only or missing: start the container with a larger --shm-size, or use fewer workers or "
    "smaller batches"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ram:
    """The machine's memory as this process may use it."""

    total_bytes: int
    limit_bytes: int
    available_bytes: int


def read_ram() -> Ram:
    """Physical memory, bounded by every cgroup limit in force."""
    import psutil

    machine = psutil.virtual_memory()
    return bounded_ram(int(machine.total), int(machine.available), read_memory_limits())


def bounded_ram(total_bytes: int, available_bytes: int, limits: Iterable[MemoryLimit]) -> Ram:
    """Each limit binds with what its own group holds: a parent's neighbours can leave less than our own limit does."""
    limits = tuple(limits)
    return Ram(
        total_bytes=total_bytes,
        limit_bytes=min([total_bytes, *(limit.limit_bytes for limit in limits)]),
        available_bytes=min([available_bytes, *(limit.available_bytes for limit in limits)]),
    )


def read_shm(folder: Path = SHM) -> tuple[int, int] | None:
    """Total and free bytes of /dev/shm; 0 of both where it is missing or read-only. None: the platform has none."""
    if sys.platform != "linux":
        return None
    if not os.access(folder, os.W_OK):
        return 0, 0
    usage = shutil.disk_usage(folder)
    return usage.total, usage.free
