"""What a probe is, and what happened in a span of time that probes looked at.

A probe is something the sampler looks at again and again. In: the moment of the look. Out: a `Look`, figure by figure.
A figure is named as the field of `Telemetry` it ends up in, or as what that is made of. Most speak for the time since
the last look; some bring stretches of their own.

`telemetry` makes the record that is kept out of each figure's stretches, in order of time. Which figure is a mean, a
peak or a total is said here and nowhere else. A value weighs as much as the time it stands for, so a sampler that was
late bends nothing.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from loadtune.records.telemetry import MemoryReading, Telemetry, Timeline

Key = TypeVar("Key", bound=Hashable)


class Stretch(NamedTuple):
    """A figure's value over a piece of the monotonic clock's time."""

    start_s: float
    end_s: float
    value: Any


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a figure cannot be had."""

    reason: str


Look = Mapping[str, Any]
"""Figure → `Missing`; or None, nothing to say yet; or a list of `Stretch`; or its value since the last look."""


class Probe(ABC):
    """Looks at one part of the machine. May raise: then its figures are missing, with the error as the reason."""

    figures: Sequence[str]

    @abstractmethod
    def look(self, now_s: float) -> Look:
        """What is to be seen at ``now_s`` on the monotonic clock. Differences are to the last look."""

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Give back what the looks took. A look after that begins anew."""

    def all_missing(self, reason: str) -> Look:
        return dict.fromkeys(self.figures, Missing(reason))


class Growth(Generic[Key]):
    """How much counters grew since the last look. Both looks have to see a counter."""

    def __init__(self) -> None:
        self._last: tuple[float, Mapping[Key, float]] | None = None

    def since(self, now_s: float, counts: Mapping[Key, float]) -> tuple[float, dict[Key, float]] | None:
        """Seconds since the last look, and each counter's growth. None: the first look."""
        last, self._last = self._last, (now_s, counts)
        if last is None or now_s <= last[0]:
            return None
        return now_s - last[0], {key: count - last[1][key] for key, count in counts.items() if key in last[1]}


KEPT_S = 600.0
"""Longer than any span that is asked for, which is one trial. About 25 MB, the driver's own samples included."""

MAX_SLICES = 240
"""Points of a timeline: three for each column of a terminal, and under 30 kB a measurement in an indented file."""

WELL_COVERED = 0.5
"""Of a span: less is too little to speak for the rest. A driver that tells its energy every half second covers 1.5
to 2 s of a trial of 2.4 s."""

BUSY_CORES, OWN_CORES = "busy_cpu_cores", "own_cpu_cores"
"""Cores that are busy with whatever it is, and with this process, which watches."""

ANONYMOUS = "anonymous_bytes"
"""(training process, all workers, number of workers), as `MemoryReading` has them."""

_DUTY = "gpu_utilization_fraction"
_SERIES = (_DUTY, "cpu_utilization_fraction")
_DIGITS = 4
"""Of a timeline's value: no sensor knows more, and the stored result is a third as long."""


class Share(NamedTuple):
    """A stretch's part in a span."""

    value: Any
    seconds: float
    """Of the span; 0 for a value that speaks for a moment only."""
    whole_s: float
    """Length of the stretch."""
    was_read_within: bool
    """The stretch ended in the span: a value that is of that moment alone is of the span."""


class Tracks:
    """All figures' stretches, a track for each figure: they are read at different paces. Old ones make room."""

    def __init__(self) -> None:
        self._tracks: dict[str, deque[Stretch]] = {}

    @property
    def figures(self) -> list[str]:
        return list(self._tracks)

    def add(self, figure: str, stretch: Stretch) -> None:
        track = self._tracks.setdefault(figure, deque())
        track.append(stretch)
        while track[0].end_s < stretch.end_s - KEPT_S:
            track.popleft()

    def stretches(self, figure: str, start_s: float, end_s: float) -> list[Stretch]:
        """Those that have a part in the span, in order of time."""
        newest_first = takewhile(lambda stretch: stretch.end_s >= start_s, reversed(self._tracks.get(figure, ())))
        return [stretch for stretch in newest_first if stretch.start_s <= end_s][::-1]

    def within(self, figure: str, start_s: float, end_s: float) -> list[Share]:
        """Their parts in the span."""
        return _shares(self.stretches(figure, start_s, end_s), start_s, end_s)


def telemetry(
    tracks: Tracks, missing: Mapping[str, str], num_readings: int, start_s: float, end_s: float
) -> Telemetry | None:
    """What happened between two moments, of which ``num_readings`` saw something; None: none did.

    ``missing`` is why figures could not be had at any time; only those without a value in this span are kept.
    """
    if num_readings == 0:
        return None
    fields = Telemetry.__dataclass_fields__
    shares = {figure: tracks.within(figure, start_s, end_s) for figure in tracks.figures}
    found = {figure: _what(figure, of, end_s - start_s) for figure, of in shares.items() if figure in fields}
    duty = shares.get(_DUTY, [])
    busy, own = (_mean(shares.get(figure, [])) for figure in (BUSY_CORES, OWN_CORES))
    found |= {
        "gpu_utilization_p5_fraction": _percentile(duty, 0.05),
        "gpu_utilization_p95_fraction": _percentile(duty, 0.95),
        "gpu_idle_fraction": _mean([share._replace(value=float(share.value == 0)) for share in duty]),
    }
    bench = found.get("bench_cpu_cores")
    if busy is not None and bench is not None and own is not None:
        # Counters of processes and of cores tick apart, so the difference may be a little below 0.
        found["others_cpu_cores"] = max(0.0, busy - bench - own)
    return Telemetry(
        seconds=end_s - start_s,
        num_readings=num_readings,
        memory=_memory(tracks, start_s, end_s),
        timeline=_timeline(tracks, num_readings, start_s, end_s),
        missing={figure: why for figure, why in missing.items() if figure in fields and found.get(figure) is None},
        **found,
    )


def _memory(tracks: Tracks, start_s: float, end_s: float) -> tuple[MemoryReading, ...]:
    """Those taken within the span: a reading is of its moment."""
    return tuple(
        MemoryReading(after_s=read.end_s - start_s, main_bytes=main, workers_bytes=workers, num_workers=num_workers)
        for read in tracks.stretches(ANONYMOUS, start_s, end_s)
        if read.end_s <= end_s
        for main, workers, num_workers in [read.value]
    )


def _timeline(tracks: Tracks, num_readings: int, start_s: float, end_s: float) -> Timeline | None:
    """A slice for each reading, or as many as are kept. None: a span without length."""
    if end_s <= start_s:
        return None
    count = min(MAX_SLICES, num_readings)
    slice_s = (end_s - start_s) / count
    edges = [start_s + position * slice_s for position in range(count)] + [end_s]

    def series(figure: str) -> tuple[float | None, ...]:
        stretches = tracks.stretches(figure, start_s, end_s)
        values = [_mean(_shares(stretches, begin_s, until_s)) for begin_s, until_s in pairwise(edges)]
        rounded = tuple(None if value is None else float(f"{value:.{_DIGITS}g}") for value in values)
        return rounded if any(value is not None for value in values) else ()

    return Timeline(slice_s=slice_s, **{figure: series(figure) for figure in _SERIES})


_end_s = attrgetter("end_s")


def _shares(stretches: Sequence[Stretch], start_s: float, end_s: float) -> list[Share]:
    """In order of time, as the stretches are. One that only touches the span has no part in it."""
    found: list[Share] = []
    for position in range(bisect_left(stretches, start_s, key=_end_s), len(stretches)):
        stretch = stretches[position]
        seconds = min(end_s, stretch.end_s) - max(start_s, stretch.start_s)
        if seconds < 0:
            break
        read_within = stretch.end_s <= end_s
        if seconds > 0 or read_within:
            found.append(Share(stretch.value, seconds, stretch.end_s - stretch.start_s, read_within))
    return found


def _mean(shares: Sequence[Share]) -> float | None:
    """Over the time for which it is known."""
    known = [share for share in shares if share.value is not None]
    seconds = sum(share.seconds for share in known)
    if seconds > 0:
        return float(sum(share.value * share.seconds for share in known) / seconds)
    return float(known[0].value) if known else None  # a single reading at the very start: it is all there is


def _percentile(shares: Sequence[Share], fraction: float) -> float | None:
    """The least value at or below which it stood for ``fraction`` of the time."""
    ranked = sorted((share for share in shares if share.seconds > 0), key=lambda share: float(share.value))
    wanted_s, passed_s = fraction * sum(share.seconds for share in ranked), 0.0
    for share in ranked:
        passed_s += share.seconds
        if passed_s >= wanted_s:
            return float(share.value)
    return float(ranked[-1].value) if ranked else None


def _total(shares: Sequence[Share], seconds: float) -> float | None:
    """Of amounts that piled up over their stretches. What is not known of a span's ends counts like the rest.

    A stretch that begins before the span or ends after it says nothing of how its amount is spread: a GPU that waited
    for its first batch took less until the span began. It counts only where those within cover less than half.
    """
    known = [share for share in shares if share.seconds > 0]
    within = [share for share in known if share.seconds == share.whole_s]
    if sum(share.seconds for share in within) >= WELL_COVERED * seconds:
        known = within
    covered_s = sum(share.seconds for share in known)
    piled = sum(share.value * share.seconds / share.whole_s for share in known)
    return float(piled * seconds / covered_s) if covered_s > 0 else None


def _moments(shares: Sequence[Share]) -> list[Any]:
    """What was read within the span; where it was shorter than a look, what was read just after."""
    return [share.value for share in shares if share.was_read_within] or [share.value for share in shares]


def _what(figure: str, shares: Sequence[Share], seconds: float) -> Any:
    """This figure of the span, which has so many seconds."""
    if figure in _TOTALS:
        total = _total(shares, seconds)
        return round(total) if total is not None and figure == "num_cpu_throttles" else total
    if figure in _PEAKS:
        return max(_moments(shares), default=None)
    if figure in _LEAST:
        return min(_moments(shares), default=None)
    return _mean(shares)


_TOTALS = ("gpu_energy_j", "cpu_throttled_s", "num_cpu_throttles")
_PEAKS = (
    "gpu_memory_used_bytes",
    "gpu_others_memory_bytes",
    "bench_rss_bytes",
    "ram_used_bytes",
    "shm_used_bytes",
)
_LEAST = ("ram_available_bytes",)
"""All other figures are means."""
