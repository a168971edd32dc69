"""The sampler: looks at the machine twelve times a second from outside the training, and tells what a span was like.

In: the device, whose process tree the bench is, how many cores there are. Out: `Reading` and `Telemetry`, as
`seams.Sensor` asks. One daemon thread takes the readings; whatever fails in one leaves a reason behind and no more.
"""

import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from loadtune.host.pace import Pace, Turn
from loadtune.host.probes import Scheduled, machine_probes
from loadtune.host.sensing import Look, Missing, Probe, Stretch
from loadtune.host.timeline import telemetry
from loadtune.host.tracks import KEPT_S, Tracks
from loadtune.records import Device, Reading, Telemetry

STOP_TIMEOUT_S = 5.0
"""A reading takes milliseconds; a driver that hangs must not keep the whole run from ending."""

INTERVAL_S = 0.08
"""Ten readings a second have to be reached, also where each is a little late: 12 are aimed at."""

_TRIED_S = 0.25
"""Between the two looks that tell what can be had: performance counters want 0.1 s between them."""


class Sampler:
    """`seams.Sensor` over this machine. Samples while open as a context; what it saw can be asked for after that."""

    def __init__(
        self,
        device: Device,
        pid: Callable[[], int | None],
        num_usable_cores: int,
        interval_s: float = INTERVAL_S,
        *,
        probes: Sequence[Scheduled] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pid`` is asked at each reading: the bench may be replaced, or be None, at any time."""
        self._probes = machine_probes(device, pid, num_usable_cores) if probes is None else tuple(probes)
        self._interval_s = interval_s
        self._now = now
        self._tracks = Tracks()
        self._newest: dict[str, Any] = {}
        self._missing: dict[str, str] = {}
        self._read_s: deque[float] = deque()
        self._looked_s: dict[Probe, float] = {}
        self._turns = {each.probe: Turn(each.every, interval_s) for each in self._probes}
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

    @property
    def read_s(self) -> tuple[float, ...]:
        """When the readings were taken that are still known."""
        with self._lock:
            return tuple(self._read_s)

    def sample(self, *, everything: bool = False) -> float:
        """Take one reading now and keep it; the thread does nothing else. With ``everything``, also what is not due.

        Returns what it cost others, in seconds: its CPU time, and how long it held a lock.
        """
        with self._looking:
            due = [each for each in self._probes if self._turns[each.probe].comes() or everything]
            cost_s = sum(self._look_timed(scheduled) for scheduled in due)
            with self._lock:
                self._read_s.append(self._now())
                while self._read_s[0] < self._read_s[-1] - KEPT_S:
                    self._read_s.popleft()
        return cost_s

    def _look_timed(self, scheduled: Scheduled) -> float:
        began_s, began_cpu_s = time.monotonic(), time.thread_time()
        self._look(scheduled.probe)
        cpu_s = time.thread_time() - began_cpu_s
        self._turns[scheduled.probe].looked(cpu_s)
        return time.monotonic() - began_s if scheduled.holds_a_lock else cpu_s

    def _look(self, probe: Probe) -> None:
        now_s = self._now()
        since_s, self._looked_s[probe] = self._looked_s.get(probe, now_s), now_s
        seen = _look(probe, now_s)
        with self._lock:
            for figure, value in seen.items():
                self._keep(figure, value, since_s, now_s)

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
        pace = Pace(self._interval_s)
        while True:
            began_s = time.monotonic()
            cost_s = self.sample()
            if stop.wait(pace.pause_s(time.monotonic() - began_s, cost_s)):
                return


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


def _look(probe: Probe, now_s: float) -> Look:
    """A probe that fails is figures not known; the sampler outlives whatever a driver or /proc comes up with."""
    try:
        return probe.look(now_s)
    except Exception as error:
        return probe.all_missing(str(error) or type(error).__name__)
