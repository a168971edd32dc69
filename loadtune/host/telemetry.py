"""Probes, and the sampler: it looks at the machine twelve times a second from outside the training, and tells what a
span was like.

One daemon thread takes the readings; whatever fails in one leaves a reason behind and no more. A value stands for the
time since the look before. So a mean is the difference of two integrals, and a sampler that was late bends nothing.
"""

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple, Self

from loadtune.records.measurement import Telemetry, Timeline


class Count(NamedTuple):
    """A counter that only grows. Its figure is the growth per second."""

    total: float
    of: Any = None
    """Who is counted: growth is known between two counts of the same."""


Look = Mapping[str, Any]
"""Figure → its value since the last look, a `Count`, or None: nothing to say now."""


@dataclass(slots=True)
class Probe:
    """Looks at one part of the machine. Looks that cost more than their share come less often."""

    figures: Sequence[str]
    """Named as the fields of `Telemetry` that they end up in, or as what makes those."""
    look: Callable[[], Look]
    """What is to be seen right now. May raise: then its figures are missing, with the error as the reason."""
    every: int = 1
    """Readings from one look to the next."""
    due_s: float = 0.0
    costs_s: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    """CPU time of the last looks. Their median counts, because now and then one is disturbed."""


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


STOP_TIMEOUT_S = 5.0
"""A reading takes milliseconds; a driver that hangs must not keep the whole run from ending."""

INTERVAL_S = 0.08
"""Ten readings a second have to be reached, also where each is a little late: 12 are aimed at."""


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
