"""Step times of known mean: independent, serially correlated, and in rounds of the loader. Pure but for the generator.

Rows are runs, columns steps, values seconds (num_runs, num_steps), float64. Noise is lognormal: a step can take twice
as long, and cannot take less than nothing.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

AR_COEFFICIENT = 0.5
FAST_SHARE = 0.25
"""Of the mean step: what a batch that stood ready takes; the one slow batch of a round takes all the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """A process of step times."""

    kind: Literal["independent", "AR(1) 0.5", "stall"]
    mean_s: float
    variation: float
    """Standard deviation of a step's own noise, as a share of its mean."""
    num_workers: int = 0
    """Of ``stall``: batches to a round, 1 to 8."""

    def draw(self, num_runs: int, num_steps: int, generator: np.random.Generator) -> np.ndarray:
        normal = generator.standard_normal((num_runs, num_steps))
        if self.kind == "AR(1) 0.5":
            normal = _autoregressive(normal)
        sigma = math.sqrt(math.log1p(self.variation**2))
        noise = np.exp(sigma * normal - sigma**2 / 2)  # mean 1
        return noise * (self._round(num_steps) if self.kind == "stall" else self.mean_s)

    def _round(self, num_steps: int) -> np.ndarray:
        """One slow batch, then N - 1 fast ones. The slow one that starts the first round is the bench's first batch,
        which is not timed: so the timed steps begin with the fast ones."""
        n = self.num_workers
        round_s = np.full(n, FAST_SHARE * self.mean_s)
        round_s[-1] = n * self.mean_s - round_s[:-1].sum()
        return np.resize(round_s, num_steps)


def _autoregressive(normal: np.ndarray) -> np.ndarray:
    """AR(1) with standard normal margins, stationary from the first step on."""
    series = normal.copy()
    fresh = math.sqrt(1 - AR_COEFFICIENT**2)
    for at in range(1, series.shape[1]):
        series[:, at] = AR_COEFFICIENT * series[:, at - 1] + fresh * normal[:, at]
    return series
