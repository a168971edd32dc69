"""Cores: how many this process may really use, how many the machine lists, and what they are called.

In: the affinity mask, the cgroup quota, ``/proc`` and ``/sys``. Out: plain numbers for `HostFacts`. Apart from memory
because cores are what num_workers is bounded by, and everything that shows too many of them (lscpu, ``os.cpu_count()``,
psutil) shows the host from inside a container.
"""

import math
import os
import platform
import re
from pathlib import Path

from loadtune.host.cgroup import CpuQuota, read_cpu_quota, read_text


def read_num_usable_cores() -> int:
    """Least of affinity and cgroup quota, at least 1."""
    return usable_cores(len(read_affinity()), read_cpu_quota())


def usable_cores(num_allowed: int, quota: CpuQuota | None) -> int:
    """A quota is rounded up: with 1.5 cores' worth, one process would leave a third of it unused."""
    granted = num_allowed if quota is None else math.ceil(quota.cores)
    return max(1, min(num_allowed, granted))


def read_affinity() -> tuple[int, ...]:
    """Numbers of the cores this process may be scheduled on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def first_cores(num_cores: int, system: Path = Path("/")) -> tuple[int, ...]:
    """So many of the cores this process may run on. Both threads of a physical core come together: a rank that had one
    of them alone would be faster than beside a rank that has the other."""

    def physical(core: int) -> tuple[int, int]:
        siblings = read_text(system / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") or ""
        first = re.match(r"\d+", siblings)
        return int(first[0]) if first else core, core

    return tuple(sorted(read_affinity(), key=physical)[:num_cores])


def read_cpu_name(system: Path = Path("/")) -> str | None:
    """The model, for people. None: the platform does not say."""
    cpuinfo = read_text(system / "proc/cpuinfo")
    name = parse_cpu_name(cpuinfo) if cpuinfo is not None else None
    return name or platform.machine() or None


def parse_cpu_name(cpuinfo: str) -> str | None:
    """``/proc/cpuinfo`` → the first model named: x86 says ``model name``, POWER ``cpu``, most ARM nothing."""
    fields = (line.partition(":") for line in cpuinfo.splitlines())
    names = (" ".join(value.split()) for key, _, value in fields if key.strip() in ("model name", "cpu"))
    return next((name for name in names if name), None)
