"""How busy the usable cores are, all processes together: as a whole, and one by one.

In: the kernel's counters of CPU time. Out: one fraction a call, of the time since the last. A module of its own because
which counter is right depends on what bounds us: under a quota the group's own accounting (the host's cores are busy
with others as well), else the cores this process may run on.
"""

import time
from collections.abc import Callable
from pathlib import Path

from loadtune.host.cgroup import read_cpu_quota
from loadtune.host.cgroup_cpu import group_counter
from loadtune.host.cpu import read_affinity
from loadtune.host.sensing import Look, Probe
from loadtune.host.timeline import BUSY_CORES, OWN_CORES


class CpuMeter:
    """Utilization of ``num_cores`` cores' worth of CPU time, from a counter of seconds that only grows."""

    def __init__(
        self, busy_s: Callable[[], float | None], num_cores: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.num_cores = num_cores
        self._busy_s = busy_s
        self._now = now
        self._last: tuple[float, float] | None = None

    def read(self) -> float | None:
        """0 to 1. None: the first call, or the counter cannot be read."""
        busy_s, now_s = self._busy_s(), self._now()
        last, self._last = self._last, None if busy_s is None else (now_s, busy_s)
        if last is None or busy_s is None or now_s <= last[0]:
            return None
        # Counters tick in 10 ms and a quota may be overdrawn for a moment: a little over 1 is no news.
        return min(1.0, max(0.0, (busy_s - last[1]) / (now_s - last[0]) / self.num_cores))


def cpu_meter(num_usable_cores: int, system: Path = Path("/")) -> CpuMeter:
    """The meter that fits this machine."""
    quota = read_cpu_quota(system)
    counter = None if quota is None else group_counter(quota.folder, system)
    if quota is None or counter is None:
        return CpuMeter(core_counter(read_affinity()), num_usable_cores)
    return CpuMeter(counter, min(quota.cores, num_usable_cores))


class CpuUse(Probe):
    """The whole, by the meter that fits this machine, and what this very process has part in it."""

    figures = ("cpu_utilization_fraction", BUSY_CORES, OWN_CORES)

    def __init__(self, meter: CpuMeter, own_s: Callable[[], float] = time.process_time) -> None:
        self._meter, self._own_s = meter, own_s
        self._last: tuple[float, float] | None = None

    def look(self, now_s: float) -> Look:
        busy, own_s = self._meter.read(), self._own_s()
        last, self._last = self._last, (now_s, own_s)
        own = None if last is None or now_s <= last[0] else (own_s - last[1]) / (now_s - last[0])
        cores = None if busy is None else busy * self._meter.num_cores
        return {"cpu_utilization_fraction": busy, BUSY_CORES: cores, OWN_CORES: own}


class CoreUse(Probe):
    """Each core this process may run on. The kernel takes longer to tell than for the whole: 1 ms on 200 cores."""

    figures = ("core_utilization_fractions",)

    def __init__(self, cores: tuple[int, ...]) -> None:
        self._cores = cores
        self._last: tuple[float, list[float]] | None = None

    def look(self, now_s: float) -> Look:
        import psutil

        every = psutil.cpu_times(percpu=True)
        busy_s = [_busy_s(every[core]) for core in self._cores if core < len(every)]
        last, self._last = self._last, (now_s, busy_s)
        if last is None or now_s <= last[0] or len(last[1]) != len(busy_s):
            return {}
        elapsed_s = now_s - last[0]
        shares = ((now - before) / elapsed_s for before, now in zip(last[1], busy_s, strict=True))
        return {"core_utilization_fractions": tuple(min(1.0, max(0.0, share)) for share in shares)}


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
