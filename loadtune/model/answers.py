"""What a fitted model says of one setting: which resource limits it, and what a change would bring. Pure."""

from dataclasses import dataclass

import numpy as np

from loadtune.model.fit import ThroughputModel
from loadtune.model.resources import RESOURCES, Array, Job, Points, demands

NUM_DRAWS = 400
"""Draws from the posterior: the ends of a 95% interval are its tenth draws from either end."""

QUANTILES = (0.025, 0.5, 0.975)

CHANGED = 0.5
"""Share of the scale of what the form leaves out that a change of the job adds: it may change with the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Median of the posterior with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What one resource allows."""

    resource: str
    samples_per_s: Estimate
    probability: float
    """That it is the one that limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a change is predicted to bring."""

    samples_per_s: Estimate
    gain: Estimate
    """Throughput after the change ÷ before it."""


def limits(model: ThroughputModel, point: Points) -> tuple[Limit, ...]:
    """What each resource allows at one setting, the one that most probably limits first."""
    each = [demands(theta, model.job, point).by_resource for theta in model.draws(NUM_DRAWS)]
    needed = np.array([[float(by_resource[name][0]) for name in RESOURCES] for by_resource in each])
    slowest = needed.argmax(axis=1)
    found = [
        Limit(
            resource=name,
            samples_per_s=_estimate(1 / np.maximum(needed[:, index], 1e-12)),
            probability=float(np.mean(slowest == index)),
        )
        for index, name in enumerate(RESOURCES)
        if needed[:, index].any()
    ]
    return tuple(sorted(found, key=lambda limit: (-limit.probability, limit.samples_per_s.value)))


def left_out(model: ThroughputModel, point: Points) -> float:
    """Predicted throughput at one setting ÷ what the resources alone would give, minus 1."""
    formed = np.median([_log_rate(theta, model.job, point) for theta in model.draws(NUM_DRAWS)])
    return float(np.expm1(model.predict(point).mean[0] - formed))


def what_if(model: ThroughputModel, point: Points, to: Points | None = None, job: Job | None = None) -> Change:
    """Throughput at another setting (``to``), of another job (``job``: other samples, cores or computing), or both.

    What the form leaves out at a setting is kept, and is less certain where the job changes.
    """
    to, job = to or point, job or model.job
    found = model.predict(Points.joined(point, to), (0, 1))
    chance = np.random.default_rng(1)
    before, after = chance.multivariate_normal(found.mean, found.covariance, size=NUM_DRAWS, method="svd").T
    if job is not model.job:
        after = after + [
            _log_rate(theta, job, to) - _log_rate(theta, model.job, to) for theta in model.draws(NUM_DRAWS)
        ]
        after = after + CHANGED * model.scale * chance.standard_normal(NUM_DRAWS)
    return Change(samples_per_s=_estimate(np.exp(after)), gain=_estimate(np.exp(after - before)))


def _estimate(draws: Array) -> Estimate:
    low, middle, high = np.quantile(draws, QUANTILES)
    return Estimate(value=float(middle), low=float(low), high=float(high))


def _log_rate(theta: Array, job: Job, point: Points) -> float:
    return -float(np.log(demands(theta, job, point).seconds[0]))
