"""What was seen, figure by figure, each over the stretch of time that it speaks for.

In: stretches in order of time. Out: how they share a span. Each figure has a track of its own, because they are read at
different paces and some know more than the moment they were read at. Old stretches make room.
"""

from collections import deque
from typing import Any, NamedTuple

from loadtune.host.sensing import Stretch

KEPT_S = 1200.0
"""Longer than any span that is asked for, which is one trial. About 15 MB at ten readings a second."""


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

    def within(self, figure: str, start_s: float, end_s: float) -> list[Share]:
        """In order of time. A stretch that only touches the span has no part in it."""
        shares: list[Share] = []
        for stretch in reversed(self._tracks.get(figure, ())):
            if stretch.end_s < start_s:
                break
            seconds = min(end_s, stretch.end_s) - max(start_s, stretch.start_s)
            read_within = stretch.end_s <= end_s
            if seconds > 0 or (seconds == 0 and read_within):
                whole_s = stretch.end_s - stretch.start_s
                shares.append(Share(stretch.value, seconds, whole_s, read_within))
        return shares[::-1]
