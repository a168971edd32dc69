"""What a fitted model says: which setting to try next, which resource limits one, what a change would bring. Pure.

Resources that are near a tie slow each other down; by how much is the least certain part of the form. So the rate that
the resources explain is a span: from their soft maximum up to what the slowest allows by itself. Where the predicted
rate lies outside of it, what is missing (``g`` of `model.fit`) is taken to slow all resources alike, and a change keeps
it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import bdtrc, ndtr

from loadtune.model.fit import SCALES, SEGMENT_SD, Prediction, ThroughputModel, points_at, segments_of
from loadtune.model.resources import RESOURCES, Array, Job, Points, demands
from loadtune.records.config import TrialConfig
from loadtune.records.measurement import GAIN, Measurement
from loadtune.records.result import Bottleneck, ChangeKind, Finalist, Part, ResourceLimit, RooflinePoint, Trial
from loadtune.records.statistics import Interval, around_ratio

NUM_DRAWS = 400
"""Draws from the posterior: the ends of a 95% interval are its tenth draws from either end."""

CHANGED = 0.5
"""Share of the scale of what the form leaves out that a change of the job adds: it may change with the job."""

FAR = 0.3
"""Share of the logarithm of a job's gain that is a part of its standard deviation: what was measured says less of a job
that is far from it. Eight predicted gains of 1.2 to 2.4 missed by 0.27 of it (root mean square); samples in RAM, whose
gains are larger, by 0.3 to 0.7."""

ENOUGH = 0.003
"""Expected improvement, on the logarithm, below which nothing more is tried. Ending at 0.01 left 9 and 12% of two
tables' best, at 0.005 six of one, at 0.003 nothing, with 8 to 12 trials: the model is too sure of what it has not
seen."""

FAIR = 4
"""Trials that the time left is shared out among: one that takes less than its share costs no more than that. By
improvement a second alone, replays of two tables tried cheap settings only and ended 9% and 12% short."""

HELD = 2
"""Predictions in a row that must have held before the search ends."""

MISSED = 0.05
"""Predictions are said to miss where so many misses would be less likely than this, if each had its 5%."""

UNEXPLAINED = 1.25
"""Ratio between what the resources give and what was measured, either way, from which on no resource is named: a rate
that far from the measured one would contradict it."""


def propose(
    model: ThroughputModel,
    candidates: Points,
    tried: Sequence[int],
    took_s: Array | float = 1.0,
    left_s: float = math.inf,
    at_most: Array | float = math.inf,
) -> tuple[int, Interval, float]:
    """The setting to try next, by its place among the candidates; samples/s of one segment of it; its expected
    improvement over the best, on the logarithm, below 0 where nothing else can be tried.

    By expected improvement over the best setting that was tried, for each second beyond a fair share of the time.

    ``tried``: places among the candidates, not empty. ``took_s``: seconds that trying each takes; ``left_s``: the time
    for all. ``at_most``: the logarithm of a rate that none of them can exceed; what is expected beyond it is no
    improvement.

    Jones, Schonlau and Welch, Journal of Global Optimization 13, 1998, on the logarithm of throughput. The improvement
    is over the predicted mean of the best, not over the luckiest measurement; the two predictions are correlated. What
    was tried is not tried again: which of several that are close is the best is for the confirmation to tell.
    """
    best = tried[int(model.mean(candidates[list(tried)]).argmax())]
    found = model.predict(candidates, best)
    ahead = found.mean - found.mean[best]
    sd = np.sqrt(np.maximum(1e-9, found.variance + found.variance[best] - 2 * found.covariance))
    room = np.maximum(0.0, at_most - found.mean[best])
    improvement = sd * (_improvement(ahead / sd) - _improvement((ahead - room) / sd))
    improvement[list(tried)] = -1.0
    each_s = np.maximum(took_s, left_s / FAIR) if math.isfinite(left_s) else 1.0
    index = int((improvement / each_s).argmax())
    return index, of_segment(found, index), float(improvement[index])


def of_segment(found: Prediction, index: int) -> Interval:
    """Samples/s that one segment is expected to show at a setting, noise included."""
    return around_ratio(math.exp(found.mean[index]), 1.96 * np.hypot(found.sd[index], SEGMENT_SD))


def _improvement(standardized: Array) -> Array:
    """Expected, of a normal variable with its mean here, over 0."""
    standardized = np.maximum(-40.0, standardized)  # as good as never
    density = np.exp(-0.5 * standardized**2) / np.sqrt(2 * np.pi)
    return np.asarray(standardized * ndtr(standardized) + density)


def bottleneck(
    job: Job,
    measured: Sequence[tuple[TrialConfig, Measurement]],
    winner: Finalist,
    searched: Sequence[int],
    trials: Sequence[Trial] = (),
) -> Bottleneck:
    """Of the winner.

    ``measured``: trials, and runs of the confirmation; the winner is among them. ``searched``: numbers of workers, for
    the roofline beside the winner's own. ``trials``: whose predictions are judged.
    """
    model, here = ThroughputModel(job, segments_of(measured, job)), points_at([winner.config], job)
    others = _with_workers(here, sorted({*searched, winner.config.loader.num_workers}))
    share, limits, roofline = explain(model, here, winner.samples_per_s, others)
    held = [trial.held for trial in trials if trial.held is not None]
    so_many_by_chance = float(bdtrc(held.count(False) - 1, len(held), 0.05))  # or more
    return Bottleneck(
        config=winner.config,
        num_predicted=len(held),
        num_missed=held.count(False),
        explained=share,
        holds=so_many_by_chance >= MISSED and abs(math.log(share)) < math.log(UNEXPLAINED),
        limits=limits,
        predicted=_changes(model, here),
        roofline=roofline,
    )


def _changes(model: ThroughputModel, here: Points) -> dict[ChangeKind, Interval]:
    job, twice = model.job, _with_workers(here, 2 * here["num_workers"])
    halved = replace(job, sample_s=job.sample_s / 2, sample_cpu_s=job.sample_cpu_s / 2)
    cores = change(model, here, twice, replace(job, num_cores=2 * job.num_cores))
    loading = change(model, here, here, halved)
    found: dict[ChangeKind, Interval] = {"twice_the_cores": cores.gain, "half_the_loading": loading.gain}
    return {kind: gain for kind, gain in found.items() if gain.value >= 1 + GAIN}


def _with_workers(here: Points, num_workers: Sequence[int] | Array) -> Points:
    """The setting, once with each of these."""
    found = np.repeat(here, len(num_workers))
    found["num_workers"] = num_workers
    return found


def explain(
    model: ThroughputModel, here: Points, measured_per_s: float, others: Points
) -> tuple[float, tuple[ResourceLimit, ...], tuple[RooflinePoint, ...]]:
    """What resources make of the rates of one setting, and of others: of the measured rate, the share that the
    resources alone give, 1 between all of them together and the slowest by itself; what each resource allows here, the
    one that most probably limits first; samples/s at each other setting, and what each resource that is used allows
    there, in the median.

    ``here``: a single setting. What the form leaves out there is left out at all others, too.
    """
    points = np.concatenate([here, others])
    theta, _ = model.draws(NUM_DRAWS, points)
    found = demands(theta, model.job, points, with_parts=True)
    predicted = model.predict(points)
    spans = list(map(around_ratio, np.exp(predicted.mean).tolist(), (1.96 * predicted.sd).tolist()))
    needed = np.stack([found.by_resource[name] for name in RESOURCES])
    formed = (float(np.median(1 / found.seconds[:, 0])), float(np.median(1 / needed[..., 0].max(axis=0))))
    factor = spans[0].value / float(np.clip(spans[0].value, *formed))
    slowest, typical = needed[..., 0].argmax(axis=0), np.median(needed, axis=1)
    limits = [
        ResourceLimit(
            resource=name,
            samples_per_s=_estimate(factor / np.maximum(needed[at, :, 0], 1e-12)),
            probability=float(np.mean(slowest == at)),
            shares=_shares(found.parts[name]),
        )
        for at, name in enumerate(RESOURCES)
        if needed[at, :, 0].any()
    ]
    limits.sort(key=lambda limit: (-limit.probability, limit.samples_per_s.value))
    roofline = tuple(
        RooflinePoint(
            num_workers=int(number),
            samples_per_s=rate,
            limits={name: factor / float(each) for name, each in zip(RESOURCES, column, strict=True) if each > 0},
        )
        for number, rate, column in zip(others["num_workers"], spans[1:], typical.T[1:], strict=True)
    )
    return float(np.clip(measured_per_s, *formed)) / measured_per_s, tuple(limits), roofline


class Changed(NamedTuple):
    """What a change would bring."""

    gain: Interval
    expected_gain: float
    """Mean of the gain if a change that does not gain is given up, which counts as 1."""


def change(model: ThroughputModel, point: Points, to: Points, job: Job, base: Job | None = None) -> Changed:
    """At another setting (``to``), of another job (``job``: other samples, cores or computing), or of
    both. What the form leaves out at a setting is kept, and is less certain where the job changes; but nothing trains
    faster than its steps without a loader. ``base``: the job that the gain is over. None: that of the model.
    """
    base = base or model.job
    theta, rest = model.draws(NUM_DRAWS, np.concatenate([point, to]))
    before = rest[:, 0] - np.log(demands(theta, base, point).seconds[:, 0])
    then = demands(theta, job, to)
    after = rest[:, 1] - np.log(then.seconds[:, 0])
    if job is not base:
        far = np.log((demands(theta, base, to).seconds / then.seconds)[:, 0])
        sd = np.hypot(CHANGED * (model.weights @ SCALES), FAR * far)
        after = after + sd * np.random.default_rng(1).standard_normal(NUM_DRAWS)
    after = np.minimum(after, -np.log(then.compute[:, 0]))
    gains = np.exp(after - before)
    return Changed(_estimate(gains), float(np.maximum(1.0, gains).mean()))


def best_of(model: ThroughputModel, points: Points, job: Job) -> int:
    """Which of some settings is expected to be the fastest with another job."""
    theta = model.learned()
    ratio = demands(theta, job, points).seconds / demands(theta, model.job, points).seconds
    return int(np.argmax(model.mean(points) - np.log(ratio)))


def _shares(parts: Mapping[Part, Array]) -> dict[Part, float]:
    """At the first setting."""
    medians = {part: float(np.median(seconds[..., 0])) for part, seconds in parts.items()}
    total = sum(medians.values())
    return {part: seconds / total for part, seconds in medians.items() if seconds > 0}


def _estimate(draws: Array) -> Interval:
    low, middle, high = np.quantile(draws, (0.025, 0.5, 0.975))
    return Interval(value=float(middle), low=float(low), high=float(high))
