"""One segment of training under one configuration: what of it counts, how long it may take, how long it is expected to.
Pure.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadtune.records.config import LoaderConfig, TrialConfig
from loadtune.records.measurement import Window, samples_per_s

START_S = 0.025
"""Of one worker: on two CPU cores 148 of them took 3.4 s to start."""

LEAST_S = 3.0
"""Of a segment whose batches take no time: switching, settling, measuring."""

WARM_STEPS = 2
"""Ahead of a batch size that is new to a recipe."""

ROUNDS = 15
"""Rounds of the workers that a segment spans where there is time: over fewer, eight workers read 9% apart (H200)."""

FEWEST_STEPS, FEWEST_WINDOWS = 2, 3
"""That are measured: fewer say next to nothing. Where steps are long two windows have to do."""

SETTLING = 2.0
"""Times the seconds that a segment is measured at most: locking the pages of a queue of 16 workers takes 2 to 5 s."""


class Segment:
    """Call `add` with each window; it returns whether to go on.

    **Settling** ends once every worker delivered and the last window locked no pages and skipped no step. After
    `SETTLING` times ``max_s`` seconds it ends once every worker delivered (`settled` is then False). Without workers
    the first window may count. A queue that grows or shrinks is corrected for.

    **Measuring** lasts until every worker delivered once more. It lasts half of ``max_s`` and until every worker
    delivered `ROUNDS` times, but no longer than ``max_s`` for that.
    """

    def __init__(self, loader: LoaderConfig, max_s: float, limit_s: float = math.inf) -> None:
        """``limit_s``: seconds after which a segment that has not seen enough ends all the same, as `gave_up`."""
        self.kept: list[Window] = []
        self.settled = True
        self.gave_up = False
        self._measuring = loader.num_workers == 0
        self._seen_s, self._num_steps = 0.0, 0
        self._loader, self._max_s, self._limit_s = loader, max_s, limit_s

    def add(self, window: Window) -> bool:
        """Take one window; False once enough was seen, or it takes too long."""
        may_settle = self._seen_s < SETTLING * self._max_s or self._num_steps < self._loader.num_workers
        self._seen_s, self._num_steps = self._seen_s + window.seconds, self._num_steps + window.num_steps
        if self._measuring and not (window.is_settling and may_settle):
            self.kept.append(window)
            if self._is_enough():
                return False
        else:  # where pages are locked later on, what was kept before is left out too: all that counts is one stretch
            self.kept.clear()
            self.settled = not window.is_settling and self._num_steps >= self._loader.num_workers
            self._measuring = self.settled or not may_settle
        self.gave_up = self._seen_s > self._limit_s
        return not self.gave_up

    def _is_enough(self) -> bool:
        seconds, num_steps = sum(w.seconds for w in self.kept), sum(w.num_steps for w in self.kept)
        if len(self.kept) < FEWEST_STEPS or num_steps < self._loader.num_workers or samples_per_s(self.kept) <= 0:
            return False
        is_long = seconds >= self._max_s / 2 and num_steps >= ROUNDS * max(1, self._loader.num_workers)
        return seconds >= self._max_s or (is_long and len(self.kept) >= FEWEST_WINDOWS)


def expected_seconds(
    configs: Sequence[TrialConfig], rates: NDArray[np.float64], sample_s: float
) -> NDArray[np.float64]:
    """What the shortest segment of each takes at these samples/s, a worker loading a sample in ``sample_s``: start and
    fill, a round of the workers that settles, and one that is measured."""
    loaders = [config.loader for config in configs]
    settings = [(each.batch_size, each.num_workers, max(FEWEST_STEPS, each.num_workers)) for each in loaders]
    batches, workers, measured = np.array(settings, float).reshape(-1, 3).T
    with np.errstate(divide="ignore"):  # a rate of 0 takes for ever
        step_s = (workers + measured + WARM_STEPS) / rates
    return np.asarray(LEAST_S + START_S * workers + batches * (sample_s * (workers > 0) + step_s))
