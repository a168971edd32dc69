"""Cores: how many this process may really use, what they are called, and how busy they are, all processes together:
under a quota by the group's own account, else by that of the cores this process may run on.
"""

import math
import os
import platform
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from loadtune.host.cgroup import parse_counters, read_cpu_quota, read_group_folders, read_text
from loadtune.host.sensing import Count, Look, Probe


def read_num_usable_cores(system: Path = Path("/")) -> int:
    """Least of affinity and cgroup quota, at least 1. A quota is rounded up: with 1.5 cores' worth, one process would
    leave a third of it unused."""
    quota, num_allowed = read_cpu_quota(system), len(os.sched_getaffinity(0))
    return num_allowed if quota is None else max(1, min(num_allowed, math.ceil(quota.cores)))


def read_cpu_name(system: Path = Path("/")) -> str | None:
    """The model, for people: x86's, elsewhere the architecture. None: the platform does not say."""
    named = re.search(r"^model name\s*:(.*)$", read_text(system / "proc/cpuinfo"), flags=re.MULTILINE)
    return " ".join(named[1].split()) if named else platform.machine() or None


def cpu_use(system: Path = Path("/")) -> Probe:
    """CPU time of the usable cores, by the counter that fits this machine, and this process's own part in it."""
    quota, cores = read_cpu_quota(system), os.sched_getaffinity(0)
    busy_s, num_cores = partial(cores_used_s, cores, system), float(read_num_usable_cores(system))
    if quota is not None:
        # v1: mounted apart from cpu, the account is in the group of the same name.
        apart = [each for each in read_group_folders("cpuacct", system) if each.name == quota.folder.name]
        for folder in (quota.folder, *apart):
            with suppress(KeyError, ValueError):  # the kernel keeps no account there
                _group_used_s(folder)
                busy_s, num_cores = partial(_group_used_s, folder), min(quota.cores, len(cores))
                break
    figures = ("cpu_utilization_fraction", "busy_cpu_cores", "watching_cpu_cores")

    def look() -> Look:
        used_s = busy_s()
        return dict(zip(figures, map(Count, (used_s / num_cores, used_s, time.process_time())), strict=True))

    return Probe(figures, look)


def cores_used_s(cores: Iterable[int], system: Path = Path("/")) -> float:
    """Busy seconds of these cores, whoever uses them."""
    lines = [line.split() for line in read_text(system / "proc/stat").splitlines() if line.startswith("cpu")]
    # All but idling and waiting for I/O. guest is left out: the kernel counts it under user already.
    ticks = {name: sum(map(int, (*each[:3], *each[5:8]))) for name, *each in lines}
    own = [ticks[f"cpu{core}"] for core in cores if f"cpu{core}" in ticks]
    return sum(own or [ticks["cpu"]]) / os.sysconf("SC_CLK_TCK")  # a container may number its cores anew


def _group_used_s(folder: Path) -> float:
    """By the processes of a group. Raises KeyError or ValueError where there is no account of v1 or v2."""
    v1 = read_text(folder / "cpuacct.usage")
    return int(v1) / 1e9 if v1 else parse_counters(read_text(folder / "cpu.stat"))["usage_usec"] / 1e6
