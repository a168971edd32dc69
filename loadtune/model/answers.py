"""What a fitted model says: which setting to try next, which resource limits one, what a change would bring. Pure.

Resources that are near a tie slow each other down; by how much is the least certain part of the form. So the rate that
the resources explain is a span: from their soft maximum up to what the slowest allows by itself. Where the predicted
rate lies outside of it, what is missing (``g`` of `model.fit`) is taken to slow all resources alike, and a change keeps
it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from loadtune.model.fit import SEGMENT_SD, ThroughputModel
from loadtune.model.resources import RESOURCES, Array, Demands, Job, Points, demands
from loadtune.records.interval import Interval
from loadtune.records.result import Part, Resource, ResourceLimit

NUM_DRAWS = 400
"""Draws from the posterior: the ends of a 95% interval are its tenth draws from either end."""

QUANTILES = (0.025, 0.5, 0.975)

CHANGED = 0.5
"""Share of the scale of what the form leaves out that a change of the job adds: it may change with the job."""

FAR = 0.3
"""Share of the logarithm of a job's gain that is a part of its standard deviation: what was measured says less of a job
that is far from it. Eight predicted gains of 1.2 to 2.4 missed by 0.27 of it (root mean square); samples in RAM, whose
gains are larger, by 0.3 to 0.7."""

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


class Changed(NamedTuple):
    """What a change would bring."""

    rate: Interval
    """Samples/s."""
    gain: Interval
    expected_gain: float
    """Mean of the gain if a change that does not gain is given up, which counts as 1."""


def limits(model: ThroughputModel, point: Points) -> tuple[ResourceLimit, ...]:
    """What each resource allows at one setting, the one that most probably limits first."""
    found = _drawn(model, point)
    needed = np.stack([_row(found.by_resource[name]) for name in RESOURCES])
    slowest = needed.argmax(axis=0)
    factor = _factor(model, point, found)
    each = [
        ResourceLimit(
            resource=name,
            samples_per_s=_estimate(factor / np.maximum(needed[index], 1e-12)),
            probability=float(np.mean(slowest == index)),
            shares=_shares(found, name),
        )
        for index, name in enumerate(RESOURCES)
        if needed[index].any()
    ]
    return tuple(sorted(each, key=lambda limit: (-limit.probability, limit.samples_per_s.value)))


def formed(model: ThroughputModel, point: Points) -> tuple[float, float]:
    """Samples/s at one setting by the resources alone, in the median: (all together, the slowest by itself)."""
    return _span(_drawn(model, point))


def explained(span: tuple[float, float], rate: float) -> float:
    """Of a rate, the nearest of a span of rates ÷ that rate; 1 within the span."""
    return min(max(rate, span[0]), span[1]) / rate


def change(
    model: ThroughputModel,
    point: Points,
    to: Points | None = None,
    job: Job | None = None,
    base: Job | None = None,
) -> Changed:
    """At another setting (``to``), of another job (``job``: other samples, cores or computing), or of
    both. What the form leaves out at a setting is kept, and is less certain where the job changes; but nothing trains
    faster than its steps without a loader. ``base``: the job that the gain is over. None: that of the model.
    """
    to, job, base = to or point, job or model.job, base or model.job
    theta, rest = model.draws(NUM_DRAWS, Points.joined(point, to))
    before = rest[:, 0] - np.log(_row(demands(theta, base, point).seconds))
    then = demands(theta, job, to)
    after = rest[:, 1] - np.log(_row(then.seconds))
    if job is not base:
        sd = np.hypot(CHANGED * model.scale, FAR * np.log(_row(demands(theta, base, to).seconds / then.seconds)))
        after = after + sd * np.random.default_rng(1).standard_normal(NUM_DRAWS)
    after = np.minimum(after, -np.log(_row(then.compute)))
    gains = np.exp(after - before)
    return Changed(_estimate(np.exp(after)), _estimate(gains), float(np.maximum(1.0, gains).mean()))


def best_of(model: ThroughputModel, points: Points, job: Job) -> int:
    """Which of some settings is expected to be the fastest with another job."""
    theta = model.learned()
    ratio = demands(theta, job, points).seconds / demands(theta, model.job, points).seconds
    return int(np.argmax(model.mean(points) - np.log(ratio)))


def predicted(model: ThroughputModel, points: Points) -> list[Interval]:
    """Samples/s at each of some settings."""
    found = model.predict(points)
    spans = [np.exp(mean + np.array([-1.96, 0.0, 1.96]) * sd) for mean, sd in zip(found.mean, found.sd, strict=True)]
    return [Interval(value=float(middle), low=float(low), high=float(high)) for low, middle, high in spans]


def allowed(model: ThroughputModel, points: Points, at: Points) -> list[dict[Resource, float]]:
    """Samples/s that each resource allows at each of some settings, in the median, without those that are not used.

    What is left out is that of one setting, ``at``, for all of them.
    """
    factor = _factor(model, at, _drawn(model, at))
    found = _drawn(model, points).by_resource
    shape = (NUM_DRAWS, len(points))
    needed = {name: np.median(np.broadcast_to(found[name], shape), axis=0) for name in RESOURCES}
    return [
        {name: factor / float(needed[name][place]) for name in RESOURCES if needed[name][place] > 0}
        for place in range(len(points))
    ]


def _drawn(model: ThroughputModel, points: Points) -> Demands:
    return demands(model.draws(NUM_DRAWS)[0], model.job, points, with_parts=True)


def _factor(model: ThroughputModel, point: Points, found: Demands) -> float:
    """Predicted throughput ÷ the nearest that the resources explain."""
    return 1 / explained(_span(found), float(np.exp(model.predict(point).mean[0])))


def _span(found: Demands) -> tuple[float, float]:
    slowest = np.max([_row(needed) for needed in found.by_resource.values()], axis=0)
    return float(np.median(1 / _row(found.seconds))), float(np.median(1 / slowest))


def _shares(found: Demands, resource: Resource) -> dict[Part, float]:
    medians = {part: float(np.median(_row(seconds))) for part, seconds in found.parts[resource].items()}
    total = sum(medians.values())
    return {part: seconds / total for part, seconds in medians.items() if seconds > 0}


def _row(values: Array) -> Array:
    """Of a single setting: one value a draw."""
    return np.broadcast_to(values, (NUM_DRAWS, 1))[:, 0]


def _estimate(draws: Sequence[float] | Array) -> Interval:
    low, middle, high = np.quantile(draws, QUANTILES)
    return Interval(value=float(middle), low=float(low), high=float(high))
