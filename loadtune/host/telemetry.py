"""The sampler: looks at the machine ten times a second from outside the training, and tells what a span was like.

In: the device, whose process tree the bench is, how many cores there are. Out: `Reading` and `Telemetry`, as
`seams.Sensor` asks. One daemon thread takes the readings; whatever fails in one leaves a None in it and no more.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from loadtune.host import gpu
from loadtune.host.cpu_time import cpu_meter
from loadtune.host.processes import ProcessTree, TreeUse
from loadtune.host.timeline import telemetry
from loadtune.records import Device, Reading, Telemetry

Figure = TypeVar("Figure")

NUM_KEPT = 20_000
"""Readings kept: half an hour at ten a second, about 4 MB. No span that is asked for lasts longer than one trial."""

STOP_TIMEOUT_S = 5.0
"""A reading takes milliseconds; a driver that hangs must not keep the whole run from ending."""

MAX_SHARE = 0.1
"""Share of the time that readings may take. Usual ones take 2%; where a driver answers in 50 ms or there are thousands
of processes, they become rarer instead of keeping a core, or the driver's lock, from the training."""

MAX_PAUSE_S = 2.0
"""Longest pause that a slow reading earns: one hiccup of seconds must not leave the next trial unseen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What is read each time. Each may raise or answer None; tests bring their own."""

    gpu_utilization_fraction: Callable[[], float | None]
    gpu_memory_used_bytes: Callable[[], int | None]
    gpu_power_w: Callable[[], float | None]
    cpu_utilization_fraction: Callable[[], float | None]
    bench: Callable[[], TreeUse | None]


def machine_probes(device: Device, pid: Callable[[], int | None], num_usable_cores: int) -> Probes:
    """The real ones. Without a GPU its figures are None and NVML is never opened."""
    uuid = device.uuid
    return Probes(
        gpu_utilization_fraction=lambda: None if uuid is None else gpu.read_utilization_fraction(uuid),
        gpu_memory_used_bytes=lambda: None if uuid is None else gpu.read_memory_used_bytes(uuid),
        gpu_power_w=lambda: None if uuid is None else gpu.read_power_w(uuid),
        cpu_utilization_fraction=cpu_meter(num_usable_cores).read,
        bench=ProcessTree(pid).read,
    )


class Sampler:
    """`seams.Sensor` over this machine. Samples while open as a context; what it saw can be asked for after that."""

    def __init__(
        self,
        device: Device,
        pid: Callable[[], int | None],
        num_usable_cores: int,
        interval_s: float = 0.1,
        *,
        probes: Probes | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pid`` is asked at each reading: the bench may be replaced, or be None, at any time.

        10 readings a second put several into a short window; with 16 workers they took 1.7% of one core, NVML aside.
        """
        self._probes = probes or machine_probes(device, pid, num_usable_cores)
        self._interval_s = interval_s
        self._now = now
        self._readings: deque[Reading] = deque(maxlen=NUM_KEPT)
        self._lock = threading.Lock()
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

    def latest(self) -> Reading | None:
        """The newest reading; None before the first."""
        with self._lock:
            return self._readings[-1] if self._readings else None

    def between(self, start_s: float, end_s: float) -> Telemetry | None:
        """What happened in that span of the monotonic clock; None: no reading falls into it."""
        with self._lock:
            readings = tuple(self._readings)
        return telemetry(readings, start_s, end_s)

    def sample(self) -> Reading:
        """Take one reading now and keep it; the thread does nothing else."""
        probes = self._probes
        tree = _answer(probes.bench) or TreeUse()
        reading = Reading(
            gpu_utilization_fraction=_answer(probes.gpu_utilization_fraction),
            gpu_memory_used_bytes=_answer(probes.gpu_memory_used_bytes),
            gpu_power_w=_answer(probes.gpu_power_w),
            cpu_utilization_fraction=_answer(probes.cpu_utilization_fraction),
            bench_cpu_cores=tree.cores,
            bench_rss_bytes=tree.rss_bytes,
            at_s=self._now(),
        )
        with self._lock:
            self._readings.append(reading)
        return reading

    def _run(self, stop: threading.Event) -> None:
        while True:
            began_s = time.monotonic()
            self.sample()
            if stop.wait(pause_s(time.monotonic() - began_s, self._interval_s)):
                return


def pause_s(took_s: float, interval_s: float) -> float:
    """Until the next reading, after one that took so long: on time where it was quick, rarer where it was slow."""
    return max(interval_s - took_s, min(MAX_PAUSE_S, took_s * (1 / MAX_SHARE - 1)))


def _answer(probe: Callable[[], Figure | None]) -> Figure | None:
    """A sensor that fails is a figure not known; the sampler outlives whatever a driver or /proc comes up with."""
    try:
        return probe()
    except Exception:
        return None
