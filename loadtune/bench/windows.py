"""When does a window end? Pure: told the time, it never reads a clock."""

import math

# A window may grow to this many times its length to span whole rounds of the workers; beyond, it costs more than it
# gives.
_MAX_STRETCH = 4.0


class WindowRule:
    """Ends a window once it is long enough and spans whole rounds of the workers, where that is affordable.

    The loader hands out one slow batch, then N - 1 fast ones; a window that cuts a round is too fast or too slow.
    """

    def __init__(self, window_s: float, num_workers: int) -> None:
        self._window_s = window_s
        self._round = max(1, num_workers)

    def ends(self, elapsed_s: float, num_steps: int) -> bool:
        """Whether the window that took ``num_steps`` steps in ``elapsed_s`` ends here."""
        if num_steps < 1 or elapsed_s < self._window_s:
            return False
        if num_steps % self._round == 0:
            return True
        whole_rounds = math.ceil(num_steps / self._round) * self._round
        return elapsed_s / num_steps * whole_rounds > _MAX_STRETCH * self._window_s
