"""How busy the usable cores are, all processes together.

In: the kernel's counters of CPU time. Out: one fraction a call, of the time since the last. A module of its own because
which counter is right depends on what bounds us: under a quota the group's own accounting (the host's cores are busy
with others as well), else the cores this process may run on.
"""

import time
from collections.abc import Callable
from pathlib import Path

from loadtune.host.cgroup import CpuQuota, read_cpu_quota, read_group_folders, read_text
from loadtune.host.cpu import read_affinity

NS_PER_S = 1e9
US_PER_S = 1e6


class CpuMeter:
    """Utilization of ``num_cores`` cores' worth of CPU time, from a counter of seconds that only grows."""

    def __init__(
        self, busy_s: Callable[[], float | None], num_cores: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._busy_s = busy_s
        self._num_cores = num_cores
        self._now = now
        self._last: tuple[float, float] | None = None

    def read(self) -> float | None:
        """0 to 1. None: the first call, or the counter cannot be read."""
        busy_s, now_s = self._busy_s(), self._now()
        last, self._last = self._last, None if busy_s is None else (now_s, busy_s)
        if last is None or busy_s is None or now_s <= last[0]:
            return None
        # Counters tick in 10 ms and a quota may be overdrawn for a moment: a little over 1 is no news.
        return min(1.0, max(0.0, (busy_s - last[1]) / (now_s - last[0]) / self._num_cores))


def cpu_meter(num_usable_cores: int, system: Path = Path("/")) -> CpuMeter:
    """The meter that fits this machine."""
    quota = read_cpu_quota(system)
    counter = None if quota is None else group_counter(quota, system)
    if quota is None or counter is None:
        return CpuMeter(core_counter(read_affinity()), num_usable_cores)
    return CpuMeter(counter, min(quota.cores, num_usable_cores))


def group_counter(quota: CpuQuota, system: Path = Path("/")) -> Callable[[], float | None] | None:
    """CPU seconds used by the group the quota is set on. None: the kernel keeps no account for it."""
    if (quota.folder / "cpu.cfs_quota_us").exists():
        folders = read_group_folders("cpuacct", system)
        # Mounted apart from cpu, the account is in the group of the same name; our own where there is none.
        same = (folder for folder in folders if folder == quota.folder or folder.name == quota.folder.name)
        usage = next(same, folders[0] if folders else quota.folder) / "cpuacct.usage"
        parse = parse_cpuacct_usage
    else:
        usage, parse = quota.folder / "cpu.stat", parse_cpu_stat
    return (lambda: parse(read_text(usage) or "")) if parse(read_text(usage) or "") is not None else None


def parse_cpuacct_usage(text: str) -> float | None:
    """v1's nanoseconds → seconds."""
    return int(text) / NS_PER_S if text.strip().isdigit() else None


def parse_cpu_stat(text: str) -> float | None:
    """v2 ``cpu.stat``'s ``usage_usec`` → seconds."""
    fields = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)
    value = fields.get("usage_usec", "")
    return int(value) / US_PER_S if value.isdigit() else None


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
    busy = ("user", "nice", "system", "irq", "softirq", "steal", "interrupt", "dpc")
    return sum(float(getattr(times, kind, 0.0)) for kind in busy)
