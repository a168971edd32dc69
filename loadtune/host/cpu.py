"""Cores: how many this process may really use, what they are called, and how busy they are, all processes together.

In: the affinity mask, the cgroup quota, ``/proc`` and ``/sys``, the kernel's counters of CPU time. Out: plain numbers
for `HostFacts`, and three probes. Which counter is right depends on what bounds us: under a quota the group's own
account (the host's cores are busy with others as well), else the cores this process may run on.
"""

import math
import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path

from loadtune.host.cgroup import UNIFIED, CpuQuota, parse_counters, read_cpu_quota, read_group_folders, read_text
from loadtune.host.sensing import BUSY_CORES, OWN_CORES, Growth, Look, Missing, Probe


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
    """The model, for people. None: the platform does not say."""
    return parse_cpu_name(read_text(system / "proc/cpuinfo")) or platform.machine() or None


def parse_cpu_name(cpuinfo: str) -> str | None:
    """``/proc/cpuinfo`` → the first model named: x86 says ``model name``, POWER ``cpu``, most ARM nothing."""
    fields = (line.partition(":") for line in cpuinfo.splitlines())
    names = (" ".join(value.split()) for key, _, value in fields if key.strip() in ("model name", "cpu"))
    return next((name for name in names if name), None)


NS_PER_S = 1e9
US_PER_S = 1e6

_CPU_STAT = {
    "usage_usec": ("cgroup_cpu_cores", US_PER_S),
    "nr_throttled": ("num_cpu_throttles", 1),
    "throttled_time": ("cpu_throttled_s", NS_PER_S),  # v1's
    "throttled_usec": ("cpu_throttled_s", US_PER_S),
}


class CpuUse(Probe):
    """``num_cores`` cores' worth of CPU time, and what this very process has part in it."""

    figures = ("cpu_utilization_fraction", BUSY_CORES, OWN_CORES)

    def __init__(
        self, busy_s: Callable[[], float | None], num_cores: float, own_s: Callable[[], float] = time.process_time
    ) -> None:
        """``busy_s`` counts seconds, and only grows. None: it cannot be read now."""
        self._busy_s, self._num_cores, self._own_s = busy_s, num_cores, own_s
        self._growth = Growth[str]()

    def look(self, now_s: float) -> Look:
        busy_s, own_s = self._busy_s(), self._own_s()
        elapsed_s, more = self._growth.since(
            now_s, {OWN_CORES: own_s} | ({} if busy_s is None else {BUSY_CORES: busy_s})
        ) or (1.0, {})
        cores = {figure: seconds / elapsed_s for figure, seconds in more.items()}
        if BUSY_CORES in cores:
            # Counters tick in 10 ms and a quota may be overdrawn for a moment: a little over 1 is no news.
            share = min(1.0, max(0.0, cores[BUSY_CORES] / self._num_cores))
            cores |= {"cpu_utilization_fraction": share, BUSY_CORES: share * self._num_cores}
        return {figure: cores.get(figure) for figure in self.figures}


def cpu_use(num_usable_cores: int, cores: tuple[int, ...], system: Path = Path("/")) -> CpuUse:
    """The probe with the counter that fits this machine."""
    quota = read_cpu_quota(system)
    counter = None if quota is None else group_counter(quota.folder, system)
    if quota is None or counter is None:
        return CpuUse(core_counter(cores), num_usable_cores)
    return CpuUse(counter, min(quota.cores, num_usable_cores))


def core_counter(cores: tuple[int, ...]) -> Callable[[], float | None]:
    """Busy seconds of these cores, whoever uses them."""
    import psutil

    num_online = psutil.cpu_count() or 1

    def busy_s() -> float | None:
        if len(cores) >= num_online:  # one line to parse instead of one a core
            return _busy_s(psutil.cpu_times())
        every = psutil.cpu_times(percpu=True)
        return sum(_busy_s(every[core]) for core in cores if core < len(every))

    return busy_s


def _busy_s(times: object) -> float:
    """All but idling and waiting for I/O. guest is left out: the kernel counts it under user already."""
    return sum(float(getattr(times, kind, 0.0)) for kind in ("user", "nice", "system", "irq", "softirq", "steal"))


def parse_cpu_stat(text: str) -> dict[str, float]:
    """A group's account in ``cpu.stat`` of either version, by the figure made of it. What it lacks is left out."""
    counts = parse_counters(text)
    return {figure: counts[name] / unit for name, (figure, unit) in _CPU_STAT.items() if name in counts}


def group_counter(folder: Path, system: Path = Path("/")) -> Callable[[], float | None] | None:
    """CPU seconds used by the group of that folder. None: the kernel keeps no account for it."""

    def v1_usage_s() -> float | None:
        text = read_text(_v1_usage(folder, system))
        return int(text) / NS_PER_S if text.strip().isdigit() else None

    def v2_usage_s() -> float | None:
        return parse_cpu_stat(read_text(folder / "cpu.stat")).get("cgroup_cpu_cores")

    readers = (v2_usage_s, v1_usage_s)
    return next((reader for reader in readers if reader() is not None), None)


def _v1_usage(folder: Path, system: Path) -> Path:
    """Mounted apart from cpu, the account is in the group of the same name; our own where there is none."""
    folders = read_group_folders("cpuacct", system)
    same = (other for other in folders if other == folder or other.name == folder.name)
    return next(same, folders[0] if folders else folder) / "cpuacct.usage"


def accounting_folder(system: Path = Path("/")) -> Path | None:
    """The group whose quota binds; without a quota our own, or the nearest above it that keeps an account.

    One that counts throttling comes first: where both versions are mounted, v2's root does not.
    """
    quota = read_cpu_quota(system)
    if quota is not None:
        return quota.folder
    folders = (*read_group_folders(UNIFIED, system), *read_group_folders("cpu", system))
    accounts = [(folder, parse_cpu_stat(text)) for folder in folders if (text := read_text(folder / "cpu.stat"))]
    return min(accounts, key=lambda account: "num_cpu_throttles" not in account[1], default=(None, None))[0]


class GroupCpu(Probe):
    """CPU that the control group used, and how long its quota held it back, since the last look."""

    figures = ("cgroup_cpu_cores", "num_cpu_throttles", "cpu_throttled_s")

    def __init__(self, system: Path = Path("/")) -> None:
        self._folder = accounting_folder(system)
        self._usage_s = None if self._folder is None else group_counter(self._folder, system)
        self._growth = Growth[str]()

    def look(self, now_s: float) -> Look:
        if self._folder is None:
            return self.all_missing("no control group accounts for CPU time here")
        counted = parse_cpu_stat(read_text(self._folder / "cpu.stat"))
        usage_s = None if self._usage_s is None else self._usage_s()
        counted |= {} if usage_s is None else {"cgroup_cpu_cores": usage_s}
        unknown = {f: Missing("the control group does not count it") for f in self.figures if f not in counted}
        elapsed_s, more = self._growth.since(now_s, counted) or (1.0, {})
        seen = {figure: max(0, count) for figure, count in more.items()}
        if "cgroup_cpu_cores" in seen:
            seen["cgroup_cpu_cores"] /= elapsed_s
        return unknown | seen
