"""Cores: how many this process may really use, what they are called, and how busy they are, all processes together.

Which counter is right depends on what bounds us: under a quota the group's own account (the host's cores are busy with
others as well), else the cores this process may run on.
"""

import math
import os
import platform
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from loadtune.host.cgroup import CpuQuota, parse_counters, read_cpu_quota, read_group_folders, read_text
from loadtune.host.sensing import BUSY_CORES, OWN_CORES, Count, Look, Probe


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
        siblings = read_text(system / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        first = re.match(r"\d+", siblings)
        return int(first[0]) if first else core, core

    return tuple(sorted(read_affinity(), key=physical)[:num_cores])


def read_cpu_name(system: Path = Path("/")) -> str | None:
    """The model, for people: x86's, elsewhere the architecture. None: the platform does not say."""
    named = re.search(r"^model name\s*:(.*)$", read_text(system / "proc/cpuinfo"), flags=re.MULTILINE)
    return " ".join(named[1].split()) if named else platform.machine() or None


class CpuUse(Probe):
    """``num_cores`` cores' worth of CPU time, and what this very process has part in it."""

    figures = ("cpu_utilization_fraction", BUSY_CORES, OWN_CORES)

    def __init__(self, busy_s: Callable[[], float], num_cores: float) -> None:
        """``busy_s`` counts seconds, and only grows."""
        self._busy_s, self._num_cores = busy_s, num_cores

    def look(self, now_s: float) -> Look:
        busy_s = self._busy_s()
        return {
            "cpu_utilization_fraction": Count(busy_s / self._num_cores),
            BUSY_CORES: Count(busy_s),
            OWN_CORES: Count(time.process_time()),
        }


def cpu_use(num_usable_cores: int, cores: tuple[int, ...], system: Path = Path("/")) -> CpuUse:
    """The probe with the counter that fits this machine."""
    quota = read_cpu_quota(system)
    counter = None if quota is None else _group_counter(quota.folder, system)
    if quota is None or counter is None:
        return CpuUse(core_counter(cores), num_usable_cores)
    return CpuUse(counter, min(quota.cores, num_usable_cores))


def core_counter(cores: tuple[int, ...]) -> Callable[[], float]:
    """Busy seconds of these cores, whoever uses them."""
    import psutil

    num_online = psutil.cpu_count() or 1

    def busy_s() -> float:
        if len(cores) >= num_online:  # one line to parse instead of one a core
            return _busy_s(psutil.cpu_times())
        every = psutil.cpu_times(percpu=True)
        return sum(_busy_s(every[core]) for core in cores if core < len(every))

    return busy_s


def _busy_s(times: object) -> float:
    """All but idling and waiting for I/O. guest is left out: the kernel counts it under user already."""
    return sum(float(getattr(times, kind, 0.0)) for kind in ("user", "nice", "system", "irq", "softirq", "steal"))


def _group_counter(folder: Path, system: Path) -> Callable[[], float] | None:
    """CPU seconds used by the group of that folder. None: the kernel keeps no account for it."""
    # v1: mounted apart from cpu, the account is in the group of the same name.
    accounts = [each for each in read_group_folders("cpuacct", system) if each.name == folder.name] or [folder]

    def v1_usage_s() -> float:
        return int(read_text(accounts[0] / "cpuacct.usage")) / 1e9

    def v2_usage_s() -> float:
        return parse_counters(read_text(folder / "cpu.stat"))["usage_usec"] / 1e6

    for reader in (v2_usage_s, v1_usage_s):
        with suppress(KeyError, ValueError):
            reader()
            return reader
    return None
