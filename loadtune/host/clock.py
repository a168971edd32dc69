"""The real clock behind `seams.Clock`; tests use a fake one."""

import time


class MonotonicClock:
    """Seconds that never go back. They count alike in every process of the machine."""

    def now(self) -> float:
        return time.monotonic()
