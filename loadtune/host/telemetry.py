"""The sampler: looks at the machine twelve times a second from outside the training, and tells what a span was like.

In: the device, whose process tree the bench is, how many cores there are. Out: `Reading` and `Telemetry`, as
`seams.Sensor` asks. One daemon thread takes the readings; whatever fails in one leaves a reason behind and no more.
What changes fast, and what is shown while it changes, is looked at in every reading; the rest rarely, so that all of it
together stays at a few per cent of one core.
"""

import math
import os
import statistics
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from loadtune.host.cpu import GroupCpu, cpu_use, read_affinity
from loadtune.host.gpu_probes import Gpm, GpuEnergy, GpuFigure, GpuOthers, GpuUtilization
from loadtune.host.memory import RamUse
from loadtune.host.nvml import NVML, Nvml, NvmlDevice
from loadtune.host.processes import AnonymousMemory, ProcessTree, Reads
from loadtune.host.sensing import KEPT_S, Missing, Probe, Stretch, Tracks, telemetry
from loadtune.records.facts import Device
from loadtune.records.telemetry import Reading, Telemetry

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
        Scheduled(RamUse(), SELDOM),
    )
    if device.uuid is None:
        return bench_and_cpu
    return (*bench_and_cpu, *_gpu_probes(NvmlDevice(device.uuid, nvml), tree))


def _gpu_probes(gpu: NvmlDevice, tree: ProcessTree) -> tuple[Scheduled, ...]:
    """After the tree was looked at: who is not known to be ours counts as somebody else."""
    paces: tuple[tuple[Probe, int], ...] = (
        (GpuUtilization(gpu), 1),
        (GpuFigure(gpu, "gpu_memory_used_bytes", _taken_bytes, "nvmlDeviceGetMemoryInfo"), 1),
        (GpuFigure(gpu, "gpu_power_w", lambda mw: mw / 1000, "nvmlDeviceGetPowerUsage"), 1),
        (GpuEnergy(gpu), 1),
        (Gpm(gpu), OFTEN),
        (GpuFigure(gpu, "gpu_sm_clock_hz", _hz, "nvmlDeviceGetClockInfo", _SM_CLOCK), OFTEN),
        (GpuFigure(gpu, "gpu_memory_clock_hz", _hz, "nvmlDeviceGetClockInfo", _MEMORY_CLOCK), OFTEN),
        (GpuOthers(gpu, lambda: {process.pid for process in tree.processes}), SELDOM),
    )
    # NVML holds a lock of the driver's while it answers.
    return tuple(Scheduled(probe, every, holds_a_lock=True) for probe, every in paces)


def _taken_bytes(memory: Any) -> int:
    """Total minus free, so the driver's own share is in it; the same difference as in `GpuFacts`."""
    return int(memory.total - memory.free)


def _hz(mhz: int) -> int:
    return mhz * 1_000_000


STOP_TIMEOUT_S = 5.0
"""A reading takes milliseconds; a driver that hangs must not keep the whole run from ending."""

INTERVAL_S = 0.08
"""Ten readings a second have to be reached, also where each is a little late: 12 are aimed at."""

_TRIED_S = 0.25
"""Between the two looks that tell what can be had: performance counters want 0.1 s between them."""


class MonotonicClock:
    """The real clock behind `seams.Clock`: seconds that never go back and count alike in every process."""

    def now(self) -> float:
        return time.monotonic()


class Sampler:
    """`seams.Sensor` over this machine. Samples while open as a context; what it saw can be asked for after that."""

    def __init__(
        self,
        device: Device,
        pid: Callable[[], int | None],
        num_usable_cores: int,
        interval_s: float = INTERVAL_S,
        *,
        cores: tuple[int, ...] | None = None,
        probes: Sequence[Scheduled] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pid`` is asked at each reading: the bench may be replaced, or be None, at any time. ``cores``: those that
        it is bound to. None: it is not."""
        found = machine_probes(device, pid, num_usable_cores, cores=cores) if probes is None else probes
        self._probes = tuple(found)
        self._interval_s = interval_s
        self._now = now
        self._tracks = Tracks()
        self._newest: dict[str, Any] = {}
        self._missing: dict[str, str] = {}
        self._read_s: deque[float] = deque()
        self._lock = threading.Lock()
        """Of what was seen."""
        self._looking = threading.Lock()
        """Of the probes: a thread that hung in a driver when it was closed must not look beside the next one."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        # An event for each thread: one that hung in a driver when it was closed must not go on with the next.
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name="loadtune-sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)
            self._thread = None
        self.close()

    def close(self) -> None:
        """Give back what the probes hold of the driver; to look again takes it anew."""
        if self._looking.acquire(blocking=False):  # else a look hangs, and nothing can be taken from under it
            try:
                for scheduled in self._probes:
                    scheduled.probe.close()
            finally:
                self._looking.release()

    def latest(self) -> Reading | None:
        """The newest reading; None before the first."""
        with self._lock:
            if not self._read_s:
                return None
            figures = (figure for figure in Reading.__dataclass_fields__ if figure != "at_s")
            return Reading(at_s=self._read_s[-1], **{figure: self._newest.get(figure) for figure in figures})

    def between(self, start_s: float, end_s: float) -> Telemetry | None:
        """What happened in that span of the monotonic clock; None: no reading falls into it."""
        with self._lock:
            num_readings = bisect_right(self._read_s, end_s) - bisect_left(self._read_s, start_s)
            return telemetry(self._tracks, self._missing, num_readings, start_s, end_s)

    def sample(self, *, everything: bool = False) -> None:
        """Take one reading now and keep it; the thread does nothing else. With ``everything``, also what is not due."""
        with self._looking:
            for scheduled in self._probes:
                if scheduled.comes() or everything:
                    self._look(scheduled)
            with self._lock:
                self._read_s.append(self._now())
                while self._read_s[0] < self._read_s[-1] - KEPT_S:
                    self._read_s.popleft()

    def _look(self, scheduled: Scheduled) -> None:
        """A probe that fails is figures not known; the sampler outlives whatever a driver or /proc comes up with."""
        now_s, began_s, began_cpu_s = self._now(), time.monotonic(), time.thread_time()
        since_s = now_s if scheduled.looked_s is None else scheduled.looked_s
        scheduled.looked_s = now_s
        try:
            seen = scheduled.probe.look(now_s)
        except Exception as error:
            seen = scheduled.probe.all_missing(str(error) or type(error).__name__)
        with self._lock:
            for figure, value in seen.items():
                self._keep(figure, value, since_s, now_s)
        scheduled.cost(time.thread_time() - began_cpu_s, time.monotonic() - began_s, self._interval_s)

    def _keep(self, figure: str, value: Any, since_s: float, now_s: float) -> None:
        """A figure that cannot be read any more is not what it was last."""
        if isinstance(value, Missing):
            self._missing[figure], self._newest[figure] = value.reason, None
            return
        stretches = value if isinstance(value, list) else [Stretch(since_s, now_s, value)]
        for stretch in stretches:
            self._newest[figure] = stretch.value
            if stretch.value is not None:
                self._tracks.add(figure, stretch)

    def _run(self, stop: threading.Event) -> None:
        pause_s = 0.0
        while not stop.wait(pause_s):
            began_s = time.monotonic()
            self.sample()
            pause_s = max(0.0, self._interval_s - (time.monotonic() - began_s))


def read_telemetry(device: Device, num_usable_cores: int) -> Telemetry:
    """What can be had on this machine, seen by looking twice: a quarter of a second of this very process."""
    sampler, start_s = Sampler(device, os.getpid, num_usable_cores), time.monotonic()
    try:
        sampler.sample(everything=True)
        time.sleep(_TRIED_S)
        sampler.sample(everything=True)
    finally:
        sampler.close()
    seen = sampler.between(start_s, time.monotonic())
    assert seen is not None
    return seen
