"""The sampler: looks at the machine twelve times a second from outside the training, and tells what a span was like.

One daemon thread takes the readings; whatever fails in one leaves a reason behind and no more. A value stands for the
time since the look before. So a mean is the difference of two integrals, and a sampler that was late bends nothing.
"""

import math
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, Self

from loadtune.host.cpu import cpu_use
from loadtune.host.gpu import Gpm, GpuOthers, gpu_use
from loadtune.host.nvml import NVML, Nvml, NvmlDevice
from loadtune.host.processes import ProcessTree
from loadtune.host.sensing import Count, Look, Probe
from loadtune.records.facts import Device
from loadtune.records.telemetry import Telemetry, Timeline

_KEPT = 7500
"""Readings: ten minutes of them, longer than any span that is asked for, which is one trial."""

MAX_SLICES = 240
"""Points of a timeline: three for each column of a terminal, and under 30 kB a measurement in an indented file."""

_DIGITS = 4
"""Of a timeline's value: no sensor knows more, and the stored result is a third as long."""


class Track:
    """One figure's readings. Each value, None where it is not known, stands for the time since the reading before."""

    def __init__(self) -> None:
        self.at_s, self.values = deque[float](maxlen=_KEPT), deque[Any](maxlen=_KEPT)
        self._last: Count | None = None

    def add(self, at_s: float, value: Any, most: float = math.inf) -> None:
        """A `Count` has to be seen by two readings in a row."""
        before, self._last = self._last, value if isinstance(value, Count) else None
        if isinstance(value, Count):
            seconds = at_s - self.at_s[-1] if self.at_s else 0.0
            # One that starts again, such as a driver's that is loaded anew, tells nothing of the time between.
            grown = None if before is None or before.of != value.of else value.total - before.total
            value = None if grown is None or grown < 0 or seconds <= 0 else grown / seconds
        self.at_s.append(at_s)
        self.values.append(None if value is None else min(most, value))

    def means(self, edges: Sequence[float]) -> list[float | None]:
        """Between each two moments, over the time for which it is known. None: it never is."""
        import numpy as np

        at_s, values = np.array(self.at_s), np.array(self.values, dtype=float)
        seconds, is_known = np.diff(at_s, prepend=at_s[0]), ~np.isnan(values)
        integral, known_s = np.where(is_known, values * seconds, 0.0).cumsum(), (is_known * seconds).cumsum()
        grown, passed_s = (np.diff(np.interp(edges, at_s, each)).tolist() for each in (integral, known_s))
        return [more / time_s if time_s > 1e-9 else None for more, time_s in zip(grown, passed_s, strict=True)]

    def peak(self, start_s: float, end_s: float) -> Any:
        """The highest value read within the span; where it was shorter than a look, what was read just after."""
        readings = zip(self.at_s, self.values, strict=True)
        known = [(at_s, value) for at_s, value in readings if at_s >= start_s and value is not None]
        within = [value for at_s, value in known if at_s <= end_s]
        return max(within or [value for _, value in known[:1]], default=None)


class Record:
    """What probes saw, of the last ten minutes."""

    def __init__(self) -> None:
        self._tracks = defaultdict[str, Track](Track)
        self._missing: dict[str, str] = {}
        """Why a figure could not be had at some time."""

    def add(self, at_s: float, seen: Look, failure: str | None = None) -> None:
        """One probe's look. Where that failed all its figures are None, and not what they were last."""
        if failure is not None:
            self._missing |= dict.fromkeys(seen, failure)
        for figure, value in seen.items():
            # Counters tick in 10 ms, and a quota may be overdrawn for a moment: a little over 1 is no news.
            self._tracks[figure].add(at_s, value, 1.0 if figure.endswith("_fraction") else math.inf)

    def between(self, start_s: float, end_s: float) -> Telemetry | None:
        """What happened between two moments. None: no reading was taken."""
        counts = (sum(start_s <= at_s <= end_s for at_s in track.at_s) for track in self._tracks.values())
        num_readings = max(counts, default=0)
        if num_readings == 0:
            return None
        found: dict[str, Any] = {figure: track.means((start_s, end_s))[0] for figure, track in self._tracks.items()}
        if track := self._tracks.get("training_rss_bytes"):
            found["training_rss_bytes"] = track.peak(start_s, end_s)
        busy, own, training = (found.get(f"{each}_cpu_cores") for each in ("busy", "watching", "training"))
        if busy is not None and own is not None and training is not None:
            # Counters of processes and of cores tick apart, so the difference may be a little below 0.
            found["others_cpu_cores"] = max(0.0, busy - training - own)
        if track := self._tracks.get("workers_own_bytes"):
            quarter_s = (end_s - start_s) / 4
            held = track.means([start_s + number * quarter_s for number in range(5)])
            steps = [now - before for before, now in pairwise(held) if before is not None and now is not None]
            found["workers_growth_bytes_per_s"] = min(steps) / quarter_s if len(steps) == 3 else None
        fields, missing = Telemetry.__dataclass_fields__.keys(), self._missing.keys()
        return Telemetry(
            seconds=end_s - start_s,
            timeline=Timeline(**self._timeline(min(MAX_SLICES, num_readings), start_s, end_s)),
            missing={figure: self._missing[figure] for figure in fields & missing if found.get(figure) is None},
            **{figure: found[figure] for figure in fields & found.keys()},
        )

    def _timeline(self, num_slices: int, start_s: float, end_s: float) -> dict[str, Any]:
        slice_s = (end_s - start_s) / num_slices
        edges = [start_s + position * slice_s for position in range(num_slices)] + [end_s]
        series: dict[str, tuple[float | None, ...]] = {}
        for figure in self._tracks.keys() & {"gpu_utilization_fraction", "cpu_utilization_fraction"}:
            values = self._tracks[figure].means(edges)
            if any(value is not None for value in values):
                series[figure] = tuple(None if value is None else float(f"{value:.{_DIGITS}g}") for value in values)
        return {"slice_s": slice_s, **series}


CPU_SHARE, LONGEST_PAUSE_S = 0.015, 2.0
"""Share of a core for one probe's looks, and the longest pause that dear ones earn: one took 2.5 ms of CPU time."""


def machine_probes(device: Device, pid: Callable[[], int | None], nvml: Nvml = NVML) -> tuple[Probe, ...]:
    """Without a GPU its figures have no probes, and NVML is never opened.

    ``pid`` is asked at each reading: the training process may be replaced, or be None, at any time.
    """
    tree = ProcessTree(pid)
    looks, reads = Probe(tree.figures, tree.look), Probe(tree.read_figures, tree.look_at_reads, 5)
    probes = (cpu_use(), Probe((), tree.search, 6), looks, reads)
    if device.uuid is None:
        return probes
    gpu = NvmlDevice(device.uuid, nvml)
    # NVIDIA asks for 0.1 s between two samples of the performance counters. Others come after the tree was looked at:
    # who is not known to be ours counts as somebody else.
    gpm, others = Gpm(gpu), GpuOthers(gpu, lambda: {process.pid for process in tree.last})
    return (*probes, gpu_use(gpu), Probe(gpm.figures, gpm.look, 5), Probe(others.figures, others.look, 10))


STOP_TIMEOUT_S = 5.0
"""A reading takes milliseconds; a driver that hangs must not keep the whole run from ending."""

INTERVAL_S = 0.08
"""Ten readings a second have to be reached, also where each is a little late: 12 are aimed at."""

_TRIED_S = 0.25
"""Between the two looks that tell what can be had: performance counters want 0.1 s between them."""


class Sampler:
    """`seams.Sensor` over this machine. Samples while open as a context; what it saw can be asked for after that."""

    def __init__(
        self, probes: Sequence[Probe], *, interval_s: float = INTERVAL_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._probes, self._interval_s, self._now = probes, interval_s, now
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
        for probe in self._probes if everything else [each for each in self._probes if now_s >= each.due_s]:
            at_s, began_cpu_s = self._now(), time.thread_time()
            try:
                seen, failure = probe.look(), None
            except Exception as error:  # the sampler outlives whatever a driver or /proc comes up with
                seen, failure = dict.fromkeys(probe.figures), str(error) or type(error).__name__
            with self._lock:
                self._seen.add(at_s, seen, failure)
            probe.costs_s.append(time.thread_time() - began_cpu_s)
            # A little less than whole readings, so that one which is late by a moment does not cost another.
            pause_s = max((probe.every - 0.5) * self._interval_s, median(probe.costs_s) / CPU_SHARE)
            probe.due_s = now_s + min(LONGEST_PAUSE_S, pause_s)

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            began_s = time.monotonic()
            self.sample()
            pause_s = max(0.0, self._interval_s - (time.monotonic() - began_s))


def read_telemetry(device: Device) -> Telemetry:
    """What can be had on this machine, seen by looking twice: a quarter of a second of this very process."""
    sampler, start_s = Sampler(machine_probes(device, os.getpid)), time.monotonic()
    sampler.sample(everything=True)
    time.sleep(_TRIED_S)
    sampler.sample(everything=True)
    seen = sampler.between(start_s, time.monotonic())
    assert seen is not None
    return seen
