"""What was seen, figure by figure, each over the stretch of time that it speaks for.

In: stretches in order of time. Out: how they share a span. Each figure has a track of its own, because they are read at
different paces and some know more than the moment they were read at. Old stretches make room.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from loadtune.host.sensing import Stretch

KEPT_S = 600.0
"""Longer than any span that is asked for, which is one trial. About 25 MB, the driver's own samples included."""

_end_s = attrgetter("end_s")


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
    """All figures' stretches."""

    def __init__(self) -> None:
        self._tracks: dict[str, deque[Stretch]] = {}

    def add(self, figure: str, stretch: Stretch) -> None:
        track = self._tracks.setdefault(figure, deque())
        track.append(stretch)
        while track[0].end_s < stretch.end_s - KEPT_S:
            track.popleft()

    def stretches(self, figure: str, start_s: float, end_s: float) -> list[Stretch]:
        """Those that have a part in the span, in order of time."""
        found: list[Stretch] = []
        for stretch in reversed(self._tracks.get(figure, ())):
            if stretch.end_s < start_s:
                break
            if stretch.start_s <= end_s:
                found.append(stretch)
        return found[::-1]

    def within(self, figure: str, start_s: float, end_s: float) -> list[Share]:
        """Their parts in the span."""
        return shares(self.stretches(figure, start_s, end_s), start_s, end_s)


def shares(stretches: Sequence[Stretch], start_s: float, end_s: float) -> list[Share]:
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
