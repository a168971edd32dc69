"""The sampler: looks at the machine twelve times a second from outside the training, and tells what a span was like.

In: the device, whose process tree the training process is. Out: `Telemetry`, as `seams.Sensor` asks.
One daemon thread takes the readings; whatever fails in one leaves a reason behind and no more.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Self

from loadtune.host.cpu import cpu_use
from loadtune.host.gpu import Gpm, GpuOthers, gpu_use
from loadtune.host.nvml import NVML, Nvml, NvmlDevice
from loadtune.host.processes import ProcessTree, Reads
from loadtune.host.sensing import Probe, Record
from loadtune.records.facts import Device
from loadtune.records.telemetry import Telemetry

CPU_SHARE = 0.015
"""Share of a core for one probe's looks. On an H200 in a virtual machine the duty cycle took 2.5 ms of CPU time a look:
twelve times a second that was 3% of a core. Elsewhere it is microseconds."""

LONGEST_PAUSE_S = 2.0
"""That dear looks earn: a trial lasts for seconds, and must not go unseen."""


def machine_probes(device: Device, pid: Callable[[], int | None], nvml: Nvml = NVML) -> tuple[Probe, ...]:
    """Without a GPU its figures have no probes, and NVML is never opened."""
    tree = ProcessTree(pid)
    reads = Reads(tree)
    looks = Probe(tree.figures, tree.look)
    probes = (cpu_use(), Probe((), tree.search, 6), looks, Probe(reads.figures, reads.look, 5))
    if device.uuid is None:
        return probes
    gpu = NvmlDevice(device.uuid, nvml)
    # NVIDIA asks for 0.1 s between two samples of the performance counters. Others come after the tree was looked at:
    # who is not known to be ours counts as somebody else.
    gpm, others = Gpm(gpu), GpuOthers(gpu, lambda: {process.pid for process in tree.processes})
    return (*probes, gpu_use(gpu), Probe(gpm.figures, gpm.look, 5), Probe(others.figures, others.look, 10))


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
        *,
        interval_s: float = INTERVAL_S,
        probes: Sequence[Probe] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pid`` is asked at each reading: the training process may be replaced, or be None, at any time."""
        self._probes = machine_probes(device, pid) if probes is None else probes
        self._interval_s, self._now = interval_s, now
        self._seen = Record()
        self._lock = threading.Lock()
        """Of what was seen."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loadtune-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join(STOP_TIMEOUT_S)

    def between(self, start_s: float, end_s: float) -> Telemetry | None:
        """What happened in that span of the monotonic clock; None: no reading falls into it."""
        with self._lock:
            return self._seen.between(start_s, end_s)

    def sample(self, *, everything: bool = False) -> None:
        """Take one reading now and keep it; the thread does nothing else. With ``everything``, also what is not due."""
        now_s = self._now()
        for probe in self._probes:
            if everything or now_s >= probe.due_s:
                self._look(probe)
                # A little less than whole readings, so that one which is late by a moment does not cost another.
                pause_s = max((probe.every - 0.5) * self._interval_s, median(probe.costs_s) / CPU_SHARE)
                probe.due_s = now_s + min(LONGEST_PAUSE_S, pause_s)
        with self._lock:
            self._seen.end_reading(self._now())

    def _look(self, probe: Probe) -> None:
        """A probe that fails is figures not known; the sampler outlives whatever a driver or /proc comes up with."""
        now_s, began_cpu_s = self._now(), time.thread_time()
        try:
            seen, failure = probe.look(), None
        except Exception as error:
            seen, failure = dict.fromkeys(probe.figures), str(error) or type(error).__name__
        with self._lock:
            self._seen.add(now_s, seen, failure)
        probe.costs_s.append(time.thread_time() - began_cpu_s)

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            began_s = time.monotonic()
            self.sample()
            pause_s = max(0.0, self._interval_s - (time.monotonic() - began_s))


def read_telemetry(device: Device) -> Telemetry:
    """What can be had on this machine, seen by looking twice: a quarter of a second of this very process."""
    sampler, start_s = Sampler(device, os.getpid), time.monotonic()
    sampler.sample(everything=True)
    time.sleep(_TRIED_S)
    sampler.sample(everything=True)
    seen = sampler.between(start_s, time.monotonic())
    assert seen is not None
    return seen
