"""What a probe is, and what happened in a span of time that probes looked at.

A probe is something the sampler looks at again and again. Each of its figures is named as the field of `Telemetry` that
it ends up in, or as what that is made of. A `Track` holds one figure's readings; a value stands for the time since the
look before. So a mean is the difference of two integrals, and a sampler that was late bends nothing. Which figure is a
mean or a peak is said here and nowhere else.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from loadtune.records.telemetry import Telemetry, Timeline


class Count(NamedTuple):
    """A counter that only grows. Its figure is the growth per second."""

    total: float


class Missing(str):
    """Why a figure cannot be had."""

    __slots__ = ()


Look = Mapping[str, Any]
"""Figure → its value since the last look, a `Count`, `Missing`, or None: nothing to say now."""


class Probe(ABC):
    """Looks at one part of the machine. May raise: then its figures are missing, with the error as the reason."""

    figures: Sequence[str]

    @abstractmethod
    def look(self, now_s: float) -> Look:
        """What is to be seen at ``now_s`` on the monotonic clock."""

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Give back what the looks took. A look after that begins anew."""

    def all_missing(self, reason: str) -> Look:
        return dict.fromkeys(self.figures, Missing(reason))


BUSY_CORES, OWN_CORES = "busy_cpu_cores", "own_cpu_cores"
"""Cores that are busy with whatever it is, and with this process, which watches."""

READING = "reading"
"""A figure of the sampler's own: one value for each reading that it took."""

_PEAKS = ("training_rss_bytes", "ram_used_bytes")
"""All other figures are means."""

KEPT_S = 600.0
"""Longer than any span that is asked for, which is one trial. About 25 MB."""

MAX_SLICES = 240
"""Points of a timeline: three for each column of a terminal, and under 30 kB a measurement in an indented file."""

_DIGITS = 4
"""Of a timeline's value: no sensor knows more, and the stored result is a third as long."""


class Point(NamedTuple):
    """A reading."""

    at_s: float
    value: Any
    """Since the point before. None: not known."""
    integral: float
    """Of the value over time, until now."""
    known_s: float
    """For how long it was known, until now."""


_at_s = attrgetter("at_s")


class Track:
    """One figure's readings, of the last ten minutes."""

    def __init__(self, figure: str = "") -> None:
        self._most = 1.0 if figure.endswith("_fraction") else float("inf")
        """Counters tick in 10 ms, and a quota may be overdrawn for a moment: a little over 1 is no news."""
        self._points: list[Point] = []
        self._last_count: float | None = None

    @property
    def newest(self) -> Point:
        return self._points[-1]

    def add(self, at_s: float, value: Any) -> None:
        """``value`` stands for the time since the last reading; a `Count` has to be seen by both."""
        last = self._points[-1] if self._points else Point(at_s, None, 0.0, 0.0)
        seconds = at_s - last.at_s
        if isinstance(value, Count):
            grown = None if self._last_count is None else value.total - self._last_count
            self._last_count = value.total
            # One that starts again, such as a driver's that is loaded anew, tells nothing of the time between.
            value = None if grown is None or grown < 0 or seconds <= 0 else grown / seconds
        else:
            self._last_count = None
        known = value is not None
        value = min(self._most, value) if known else None
        self._points.append(
            Point(at_s, value, last.integral + (value * seconds if known else 0.0), last.known_s + known * seconds)
        )
        if self._points[0].at_s < at_s - 1.2 * KEPT_S:  # now and then, because it moves all that is kept
            del self._points[: bisect_left(self._points, at_s - KEPT_S, key=_at_s)]

    def mean(self, start_s: float, end_s: float) -> float | None:
        """Over the part of the span for which it is known. None: it never is."""
        (start, start_known_s), (end, end_known_s) = self._until(start_s), self._until(end_s)
        known_s = end_known_s - start_known_s
        return (end - start) / known_s if known_s > 1e-9 else None

    def _until(self, at_s: float) -> tuple[float, float]:
        """Integral and known time at a moment."""
        after = bisect_left(self._points, at_s, key=_at_s)
        if after in (0, len(self._points)):
            point = self._points[min(after, len(self._points) - 1)]
            return point.integral, point.known_s
        one, other = self._points[after - 1], self._points[after]
        share = (at_s - one.at_s) / (other.at_s - one.at_s)
        return (
            one.integral + share * (other.integral - one.integral),
            one.known_s + share * (other.known_s - one.known_s),
        )

    def within(self, start_s: float, end_s: float) -> list[Point]:
        """The readings that were taken in the span and know the value."""
        first, end = (cut(self._points, at, key=_at_s) for cut, at in ((bisect_left, start_s), (bisect_right, end_s)))
        return [point for point in self._points[first:end] if point.value is not None]

    def values(self, start_s: float, end_s: float) -> list[Any]:
        """What was read within the span; where it was shorter than a look, what was read just after."""
        found = self.within(start_s, end_s) or self.within(end_s, float("inf"))[:1]
        return [point.value for point in found]


def telemetry(
    tracks: Mapping[str, Track], missing: Mapping[str, str], start_s: float, end_s: float
) -> Telemetry | None:
    """What happened between two moments. None: no reading was taken.

    ``missing`` is why figures could not be had at any time; only those without a value in this span are kept.
    """
    num_readings = len(tracks[READING].within(start_s, end_s)) if READING in tracks else 0
    if num_readings == 0:
        return None
    fields = Telemetry.__dataclass_fields__
    found: dict[str, Any] = {}
    for figure in tracks.keys() & fields.keys():
        track = tracks[figure]
        peaks = figure in _PEAKS
        found[figure] = max(track.values(start_s, end_s), default=None) if peaks else track.mean(start_s, end_s)
    busy, own = (tracks[each].mean(start_s, end_s) if each in tracks else None for each in (BUSY_CORES, OWN_CORES))
    training = found.get("training_cpu_cores")
    if busy is not None and training is not None and own is not None:
        # Counters of processes and of cores tick apart, so the difference may be a little below 0.
        found["others_cpu_cores"] = max(0.0, busy - training - own)
    return Telemetry(
        seconds=end_s - start_s,
        timeline=_timeline(tracks, num_readings, start_s, end_s),
        missing={figure: why for figure, why in missing.items() if figure in fields and found.get(figure) is None},
        **found,
    )


def _timeline(tracks: Mapping[str, Track], num_readings: int, start_s: float, end_s: float) -> Timeline | None:
    """A slice for each reading, or as many as are kept. None: a span without length."""
    if end_s <= start_s:
        return None
    count = min(MAX_SLICES, num_readings)
    slice_s = (end_s - start_s) / count
    edges = [start_s + position * slice_s for position in range(count)] + [end_s]

    def series(figure: str) -> tuple[float | None, ...]:
        if figure not in tracks:
            return ()
        values = [tracks[figure].mean(begin_s, until_s) for begin_s, until_s in pairwise(edges)]
        rounded = tuple(None if value is None else float(f"{value:.{_DIGITS}g}") for value in values)
        return rounded if any(value is not None for value in values) else ()

    return Timeline(
        slice_s=slice_s,
        gpu_utilization_fraction=series("gpu_utilization_fraction"),
        cpu_utilization_fraction=series("cpu_utilization_fraction"),
    )
