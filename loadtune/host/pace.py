"""How long to wait between two readings, so that looking takes a small share of the time. Pure.

In: how long the last reading took, and what of that it cost others. Out: the pause after it. To be interrupted costs
nobody anything: on a machine as busy as a training's, readings take several times as long as they work, and must not
become rare for it. The share is held on average, so that one slow reading does not stop the next.
"""

MAX_SHARE = 0.1
"""Share of the time that readings may take. Usual ones take 2 to 5%; where a driver answers in 50 ms or there are
thousands of processes, they become rarer instead of keeping a core, or the driver's lock, from the training."""

MAX_PAUSE_S = 2.0
"""Longest pause that slow readings earn: a trial lasts for seconds, and must not go unseen."""

MEMORY = 0.1
"""Weight of the newest reading in the average: one second's worth of readings."""


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
