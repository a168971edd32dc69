"""What a probe is, and what a span of time was like, by what probes saw.

A probe's figures are named as the fields of `Telemetry` that they end up in, or as what those are made of. A value
stands for the time since the look before. So a mean is the difference of two integrals, and a sampler that was late
bends nothing.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from loadtune.records.telemetry import Telemetry


class Count(NamedTuple):
    """A counter that only grows. Its figure is the growth per second."""

    total: float


Look = Mapping[str, Any]
"""Figure → its value since the last look, a `Count`, or None: nothing to say now."""


@dataclass(slots=True)
class Probe:
    """Looks at one part of the machine. Looks that cost more than their share come less often."""

    figures: Sequence[str]
    look: Callable[[], Look]
    """What is to be seen right now. May raise: then its figures are missing, with the error as the reason."""
    every: int = 1
    """Readings from one look to the next."""
    due_s: float = 0.0
    costs_s: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    """CPU time of the last looks. Their median counts, because now and then one is disturbed."""


BUSY_CORES, OWN_CORES = "busy_cpu_cores", "own_cpu_cores"
"""Cores that are busy with whatever it is, and with this process, which watches."""

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
        self._total: float | None = None

    def add(self, at_s: float, value: Any, most: float = math.inf) -> None:
        """A `Count` has to be seen by two readings in a row."""
        before, self._total = self._total, None
        if isinstance(value, Count):
            self._total = value.total
            seconds = at_s - self.at_s[-1] if self.at_s else 0.0
            # One that starts again, such as a driver's that is loaded anew, tells nothing of the time between.
            grown = None if before is None else value.total - before
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
        self._read_s = deque[float](maxlen=_KEPT)
        self._missing: dict[str, str] = {}
        """Why a figure could not be had at some time."""

    def add(self, at_s: float, seen: Look, failure: str | None = None) -> None:
        """One probe's look. Where that failed all its figures are None, and not what they were last."""
        if failure is not None:
            self._missing |= dict.fromkeys(seen, failure)
        for figure, value in seen.items():
            # Counters tick in 10 ms, and a quota may be overdrawn for a moment: a little over 1 is no news.
            self._tracks[figure].add(at_s, value, 1.0 if figure.endswith("_fraction") else math.inf)

    def end_reading(self, at_s: float) -> None:
        """All probes that were due have looked."""
        self._read_s.append(at_s)

    def between(self, start_s: float, end_s: float) -> "Telemetry | None":
        """What happened between two moments. None: no reading was taken."""
        num_readings = sum(start_s <= at_s <= end_s for at_s in self._read_s)
        if num_readings == 0:
            return None
        found: dict[str, Any] = {figure: track.means((start_s, end_s))[0] for figure, track in self._tracks.items()}
        if track := self._tracks.get("training_rss_bytes"):
            found["training_rss_bytes"] = track.peak(start_s, end_s)
        busy, own, training = (found.get(each) for each in (BUSY_CORES, OWN_CORES, "training_cpu_cores"))
        if busy is not None and own is not None and training is not None:
            # Counters of processes and of cores tick apart, so the difference may be a little below 0.
            found["others_cpu_cores"] = max(0.0, busy - training - own)
        if track := self._tracks.get("workers_own_bytes"):
            quarter_s = (end_s - start_s) / 4
            held = track.means([start_s + number * quarter_s for number in range(5)])
            steps = [now - before for before, now in pairwise(held) if before is not None and now is not None]
            found["workers_growth_bytes_per_s"] = min(steps) / quarter_s if len(steps) == 3 else None
        from loadtune.records.telemetry import Telemetry, Timeline

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
