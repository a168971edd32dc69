"""How long to wait between two readings, so that looking takes a small share of the time. Pure.

In: how long the last reading took. Out: the pause after it. The share is of wall time, because NVML holds a lock of the
driver's while it answers slowly; and on average, because on a machine as busy as a training's every tenth reading is
slow only for being interrupted.
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

    def pause_s(self, took_s: float) -> float:
        """On time where readings are quick, later where they are slow. One hiccup counts for a moment only."""
        counted_s = min(took_s, MAX_PAUSE_S * MAX_SHARE)
        self._usual_s += MEMORY * (counted_s - self._usual_s)
        earned_s = min(MAX_PAUSE_S, self._usual_s * (1 / MAX_SHARE - 1))
        return max(self._interval_s - took_s, earned_s)
