"""Which probes this machine gets, and how often each looks.

In: the device and the bench. Out: probes with their pace. What changes fast, and what is shown while it changes, is
looked at in every reading; the rest rarely, so that all of it together stays at a few per cent of one core.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable

from loadtune.host.cpu import read_affinity
from loadtune.host.cpu_use import CoreUse, GroupCpu, cpu_use
from loadtune.host.gpm import Gpm
from loadtune.host.gpu_probes import GpuEnergy, GpuFigure, GpuOthers, GpuUtilization
from loadtune.host.memory import RamUse
from loadtune.host.nvml import NVML, Nvml, NvmlDevice
from loadtune.host.processes import AnonymousMemory, ProcessTree, Reads
from loadtune.host.sensing import Probe
from loadtune.records import Device

EVERY_OTHER, OFTEN, SELDOM = 2, 5, 10
"""Five times a second, twice and once, at ten readings a second: every trial's span has several of each. NVIDIA asks
for 0.1 s between two samples of the performance counters."""

_SM_CLOCK, _MEMORY_CLOCK = 1, 2
"""NVML_CLOCK_SM and NVML_CLOCK_MEM."""


CPU_SHARE = 0.006
"""Share of a core for one probe's looks. On an H200 in a virtual machine the duty cycle took 2.5 ms of CPU time a look
and memory, power and energy 3.9 ms together: twelve times a second that was 8% of a core. Elsewhere it is
microseconds."""

LOCK_SHARE = 0.0125
"""Share of the time for which one probe may hold the driver's lock: the eight of a GPU together a tenth."""

LONGEST_PAUSE_S = 2.0
"""That dear looks earn: a trial lasts for seconds, and must not go unseen."""

COSTS_KEPT = 5
"""Looks whose median says what one costs: a look may be interrupted, and be charged for it."""


class Scheduled:
    """A probe and its turns: every ``every``-th reading, or fewer where its looks cost more than their share.

    Being interrupted costs nobody anything: on a machine as busy as a training's, looks take several times as long as
    they work, and must not become rare for it. While a probe that ``holds_a_lock`` waits, others wait too.
    """

    def __init__(self, probe: Probe, every: int = 1, *, holds_a_lock: bool = False) -> None:
        self.probe = probe
        self.looked_s: float | None = None
        """On the monotonic clock. None: never."""
        self._every, self._holds_a_lock = every, holds_a_lock
        self._pauses_s: deque[float] = deque(maxlen=COSTS_KEPT)
        """That the newest looks earned."""
        self._is_first = True
        self._readings_left = 0

    def comes(self) -> bool:
        """Another reading is taken: is it one to look in?"""
        self._readings_left -= 1
        return self._readings_left <= 0

    def cost(self, cpu_s: float, took_s: float, interval_s: float) -> None:
        """After a look. The first one's cost does not count: it opens what later ones find open."""
        if not self._is_first:
            locked_s = took_s if self._holds_a_lock else 0.0
            self._pauses_s.append(min(LONGEST_PAUSE_S, max(cpu_s / CPU_SHARE, locked_s / LOCK_SHARE)))
        self._is_first = False
        usual_s = statistics.median(self._pauses_s) if self._pauses_s else 0.0
        self._readings_left = max(self._every, math.ceil(usual_s / interval_s))


def machine_probes(
    device: Device,
    pid: Callable[[], int | None],
    num_usable_cores: int,
    nvml: Nvml = NVML,
    cores: tuple[int, ...] | None = None,
) -> tuple[Scheduled, ...]:
    """Without a GPU its figures have no probes, and NVML is never opened."""
    tree, watched = ProcessTree(pid), cores or read_affinity()
    bench_and_cpu = (
        Scheduled(cpu_use(num_usable_cores, watched)),
        Scheduled(tree),
        Scheduled(AnonymousMemory(tree), EVERY_OTHER),
        Scheduled(GroupCpu(), OFTEN),
        Scheduled(Reads(tree), OFTEN),
        Scheduled(CoreUse(watched), SELDOM),
        Scheduled(RamUse(), SELDOM),
    )
    if device.uuid is None:
        return bench_and_cpu
    return (*bench_and_cpu, *_gpu_probes(NvmlDevice(device.uuid, nvml), tree))


def _gpu_probes(gpu: NvmlDevice, tree: ProcessTree) -> tuple[Scheduled, ...]:
    """After the tree was looked at: who is not known to be ours counts as somebody else."""
    others = GpuOthers(gpu, lambda: {process.pid for process in tree.processes})
    paces: tuple[tuple[Probe, int], ...] = (
        (GpuUtilization(gpu), 1),
        # Total minus free, so the driver's own share is in it; the same difference as in `GpuFacts`.
        (
            GpuFigure(
                gpu, "gpu_memory_used_bytes", lambda read: int(read.total - read.free), "nvmlDeviceGetMemoryInfo"
            ),
            1,
        ),
        (GpuFigure(gpu, "gpu_power_w", lambda mw: mw / 1000, "nvmlDeviceGetPowerUsage"), 1),
        (GpuEnergy(gpu), 1),
        (Gpm(gpu), OFTEN),
        (GpuFigure(gpu, "gpu_sm_clock_hz", _hz, "nvmlDeviceGetClockInfo", _SM_CLOCK), OFTEN),
        (GpuFigure(gpu, "gpu_memory_clock_hz", _hz, "nvmlDeviceGetClockInfo", _MEMORY_CLOCK), OFTEN),
        (others, SELDOM),
    )
    # NVML holds a lock of the driver's while it answers.
    return tuple(Scheduled(probe, every, holds_a_lock=True) for probe, every in paces)


def _hz(mhz: int) -> int:
    return mhz * 1_000_000
