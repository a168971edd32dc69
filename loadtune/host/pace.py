"""How long to wait between two readings, and who looks in each, so that looking takes a small share of the time. Pure.

In: how long the last reading took, and how much of that it cost others. Out: the pause after it, and each probe's turn.
Being interrupted costs nobody anything: on a machine as busy as a training's, readings take several times as long as
they work, and must not become rare for it. The share is held on average, so that one slow reading does not stop the
next.
"""

import math
import statistics
from collections import deque

MAX_SHARE = 0.1
"""Share of the time that readings may take. Usual ones take 2 to 5%; where a driver answers in 50 ms or there are
thousands of processes, they become rarer instead of keeping a core, or the driver's lock, from the training."""

MAX_PAUSE_S = 2.0
"""Longest pause that slow readings earn: a trial lasts for seconds, and must not go unseen."""

MEMORY = 0.1
"""Weight of the newest reading in the average: one second's worth of readings."""

PROBE_SHARE = 0.006
"""Share of a core for one probe's looks. On an H200 in a virtual machine the duty cycle took 2.5 ms of CPU time a look
and memory, power and energy 3.9 ms together: twelve times a second that was 8% of a core. Elsewhere it is
microseconds."""

COSTS_KEPT = 5
"""Looks whose median says what one costs: a look may be interrupted, and be charged for it."""


class Pace:
    """Pauses after readings, one after the other."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._usual_s = 0.0

    def pause_s(self, took_s: float, cost_s: float) -> float:
        """On time where readings are cheap, later where they are not. One hiccup counts for a moment only."""
        counted_s = min(cost_s, MAX_PAUSE_S * MAX_SHARE)
        self._usual_s += MEMORY * (counted_s - self._usual_s)
        earned_s = min(MAX_PAUSE_S, self._usual_s * (1 / MAX_SHARE - 1))
        return max(self._interval_s - took_s, earned_s)


class Turn:
    """Whose looks are due: every ``every``-th reading, or fewer where looks cost more than their share of a core."""

    def __init__(self, every: int, interval_s: float) -> None:
        self._every, self._affordable_s = every, PROBE_SHARE * interval_s
        self._costs_s: deque[float] = deque(maxlen=COSTS_KEPT)
        self._is_first = True
        self._readings_left = 0

    def comes(self) -> bool:
        """Another reading is taken: is it one to look in?"""
        self._readings_left -= 1
        return self._readings_left <= 0

    def looked(self, cost_s: float) -> None:
        """After a look of so much CPU time. The first one's does not count: it opens what later ones find open."""
        if not self._is_first:
            self._costs_s.append(cost_s)
        self._is_first = False
        usual_s = statistics.median(self._costs_s) if self._costs_s else 0.0
        self._readings_left = max(self._every, math.ceil(usual_s / self._affordable_s))
