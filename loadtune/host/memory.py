"""RAM and /dev/shm: what is there, what a limit leaves of it, what is free now, how often the kernel killed for it.

Nothing is kept between two reads: virtual machines were seen to show 31 GiB at first and grow to 256.
"""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from loadtune.host.cgroup import UNIFIED, parse_counters, read_group_folders, read_memory_limits, read_text

SHM_ADVICE = (
    "/dev/shm is full, read-only or missing: start the container with a larger --shm-size, or use fewer workers or "
    "smaller batches"
)


class Ram(NamedTuple):
    """The machine's memory as this process may use it."""

    total_bytes: int
    limit_bytes: int
    available_bytes: int


def read_ram(system: Path = Path("/")) -> Ram:
    """Physical memory, bounded by every cgroup limit in force. Each limit binds with what its own group holds: a
    parent's neighbours can leave less than our own limit does."""
    machine, limits = parse_counters(read_text(system / "proc/meminfo")), read_memory_limits(system)
    total, available = (machine.get(name, 0) for name in ("MemTotal", "MemAvailable"))
    return Ram(
        total_bytes=total,
        limit_bytes=min([total, *(limit.limit_bytes for limit in limits)]),
        available_bytes=min([available, *(limit.available_bytes for limit in limits)]),
    )


def read_shm(folder: Path = Path("/dev/shm")) -> tuple[int, int]:
    """Total and free bytes of /dev/shm, where torch's shared-memory tensors and Python's semaphores live. 0 of both
    where it is missing or read-only."""
    if not os.access(folder, os.W_OK):
        return 0, 0
    usage = shutil.disk_usage(folder)
    return usage.total, usage.free


def read_oom_kills(system: Path = Path("/")) -> int | None:
    """Processes that the kernel killed so far for lack of memory; the count rises before the signal is sent. None:
    nothing counts them. Of this process's own group where that is counted, else of the machine, with all containers.
    Not of the group's parent: in v1 that does not count what its children lost."""
    own = [
        folder / file
        for controller, file in ((UNIFIED, "memory.events"), ("memory", "memory.oom_control"))
        for folder in read_group_folders(controller, system)[:1]
    ]
    files = (*own, system / "proc/vmstat")
    counts = (parse_counters(read_text(file)).get("oom_kill") for file in files)
    return next((count for count in counts if count is not None), None)
