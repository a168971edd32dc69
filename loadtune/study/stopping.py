"""When one timed run has seen enough. A tiny object over plain windows; no clock, no bench."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtune.records import Window, half_width_fraction, samples_per_s

HOPELESS = 0.8
"""A run whose interval lies wholly below this share of the best so far cannot win, whatever the next second brings:
fresh loaders of one configuration were seen 6 to 7% apart on an H200, and this is three times that."""

MIN_ROUNDS = 2
"""Times every worker should have delivered: within a round, batches come in bursts that say nothing of the rate (on an
H200, 16 workers with batches of 1024 read 1,077/s over three quarters of a round, and 3,000/s over several)."""

LATEST = 2.0
"""Times the allowed seconds at which a run ends whatever it still lacks."""


@dataclass(slots=True)
class StoppingRule:
    """Drop the warm-up, then collect windows until the rate is known well enough or the time is up.

    `add` is told each window and answers whether to go on.
    """

    num_workers: int
    max_s: float
    """Seconds of counted windows, unless whole rounds of the workers take longer; twice that at the most."""
    target: float = 0.02
    """Half width of the 95% interval at which a run is precise enough."""
    best: float | None = None
    """Samples/s of the incumbent, to end hopeless runs early. None: none yet, or every run counts."""
    min_windows: int = 3
    kept: list[Window] = field(default_factory=list)
    _warm_steps: int = 0

    def add(self, window: Window) -> bool:
        """Take one window; False once enough was seen."""
        if self._warm_steps < self.num_workers and not self._too_slow_to_warm(window):
            self._warm_steps += window.num_steps
            return True
        self.kept.append(window)
        return not self.done

    @property
    def done(self) -> bool:
        # A rate of 0 is no rate: until now only what had been prefetched was consumed.
        if len(self.kept) < 2 or samples_per_s(self.kept) <= 0:
            return False
        if self.hopeless or self._over(LATEST):
            return True
        if len(self.kept) < self.min_windows or self._num_steps < MIN_ROUNDS * self._round:
            return False
        if self._num_steps % self._round and not self._over(1.5):
            return False
        return self._over(1.0) or (self.precise and self._over(0.5))

    @property
    def precise(self) -> bool:
        width = half_width_fraction(self.kept)
        return width is not None and width <= self.target

    @property
    def hopeless(self) -> bool:
        width = half_width_fraction(self.kept)
        if self.best is None or width is None or len(self.kept) < 3:
            return False
        return samples_per_s(self.kept) * (1 + width) < HOPELESS * self.best

    @property
    def noisy(self) -> bool:
        return bool(self.kept) and not self.precise

    @property
    def _round(self) -> int:
        """Steps in which every worker delivers once: workers start together, so their first batches come in a burst."""
        return max(1, self.num_workers)

    @property
    def _num_steps(self) -> int:
        return sum(w.num_steps for w in self.kept)

    def _over(self, share: float) -> bool:
        return _seconds(self.kept) >= share * self.max_s

    def _too_slow_to_warm(self, window: Window) -> bool:
        """A round of steps that eats the whole time allowed is not worth waiting for; one window is, always."""
        left = self.num_workers - self._warm_steps
        return self._warm_steps > 0 and left * window.seconds / window.num_steps > self.max_s / 2


def _seconds(windows: Sequence[Window]) -> float:
    return math.fsum(w.seconds for w in windows)
