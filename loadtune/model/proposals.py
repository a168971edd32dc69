"""Which setting is tried next, and when enough were tried. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from loadtune.model.fit import SEGMENT_SD, ThroughputModel
from loadtune.model.resources import Array, Points

WORTH, ENOUGH = 0.01, 0.003
"""Gain that counts; and the expected improvement, on the logarithm, below which nothing more is tried. Ending at 0.01
left 9 and 12% of two tables' best, at 0.005 six of one, at 0.003 nothing, with 8 to 12 trials: the model is too sure of
what it has not seen."""

FAIR = 6
"""Trials that the time left is shared out among: one that takes less than its share costs no more than that. By
improvement a second alone, replays of two tables tried cheap settings only and ended 9% and 12% short."""

HELD = 2
"""Predictions in a row that must have held before the search ends."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The setting to try next, by its place among the candidates."""

    index: int
    log_rate: float
    """Predicted, before it is tried."""
    sd: float
    """Of that, with the noise of one segment."""
    expected: float
    """Its expected improvement over the best, on the logarithm; below 0: nothing else can be tried."""
    best: int
    """The tried setting with the highest predicted throughput."""


def propose(
    model: ThroughputModel,
    candidates: Points,
    tried: Sequence[int],
    seconds: Callable[[Array], Array] = np.ones_like,
    left_s: float = math.inf,
    at_most: Array | float = math.inf,
) -> Proposal:
    """By expected improvement over the best setting that was tried, for each second beyond a fair share of the time.

    ``tried``: places among the candidates, not empty. ``seconds``: of the candidates' samples/s, what trying each
    takes; ``left_s``: the time for all. ``at_most``: the logarithm of a rate that none of them
    can exceed; what is expected beyond it is no improvement.

    Jones, Schonlau and Welch, Journal of Global Optimization 13, 1998, on the logarithm of throughput. The improvement
    is over the predicted mean of the best, not over the luckiest measurement; the two predictions are correlated. What
    was tried is not tried again: which of several that are close is the best is for the confirmation to tell.
    """
    found = model.predict(candidates, tried)
    column = int(found.mean[list(tried)].argmax())
    best = tried[column]
    ahead = found.mean - found.mean[best]
    variance = found.variance + found.variance[best] - 2 * found.covariance[:, column]
    sd = np.sqrt(np.maximum(1e-9, variance))
    room = at_most - found.mean[best]
    improvement = sd * (_improvement(ahead / sd) - _improvement((ahead - np.maximum(0.0, room)) / sd))
    took_s = seconds(np.exp(found.mean))
    improvement[list(tried)] = -1.0
    each_s = np.maximum(took_s, left_s / FAIR) if math.isfinite(left_s) else np.ones_like(took_s)
    index = int((improvement / each_s).argmax())
    noise = float(np.hypot(found.sd[index], SEGMENT_SD))
    expected = float(improvement[index])
    return Proposal(index, float(found.mean[index]), noise, expected, best)


def is_enough(proposal: Proposal, held: Sequence[bool]) -> bool:
    """Whether the proposed setting is not worth its time, and the last predictions held."""
    return proposal.expected < ENOUGH and len(held) >= HELD and all(held[-HELD:])


def _improvement(standardized: Array) -> Array:
    """Expected, of a normal variable with its mean here, over 0."""
    standardized = np.maximum(-40.0, standardized)  # as good as never
    density = np.exp(-0.5 * standardized**2) / np.sqrt(2 * np.pi)
    return np.asarray(standardized * ndtr(standardized) + density)
