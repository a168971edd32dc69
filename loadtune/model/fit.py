"""The model fitted to segments, with what it does not know. Pure, numpy and scipy.

The logarithm of a segment's throughput is modelled as ``m(setting, theta) + g(setting) + noise`` (Kennedy and
O'Hagan, JRSS B 63, 2001): `resources.demands` with log-normal parameters, a Gaussian process ``g`` for what its form
leaves out, and the spread between segments. Seconds of one worker, the device and the pinning thread, and CPU seconds
of the workers, which a segment measures directly, are fitted along with it. The parameters are the maximum a posteriori
(`scipy.optimize.least_squares`), their uncertainty is Laplace's. How large ``g`` is, is not known: `SCALES` are
weighted by their evidence.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from loadtune.model.resources import POINT, PRIORS, Array, Job, Points, demands, prior_of
from loadtune.model.workers import WAITS
from loadtune.records.config import TrialConfig
from loadtune.records.measurement import Measurement

SCALES = (0.04, 0.08, 0.16, 0.32)
"""Standard deviations of the logarithm that are considered for what the form leaves out."""

SCALE_PRIOR = (0.15, 0.35, 0.35, 0.15)

SEGMENT_SD = 0.06
"""Of the logarithm of a rate, between segments of one setting."""

PART_SD = {"make": 0.10, "device": 0.10, "pin": 0.10, "cpu": 0.25}
"""Of the logarithm of what a segment measures directly, by field of `Demands`, under the conditions of that segment.
CPU seconds of workers hold what their start and their waiting take, too."""

SEGMENT = np.dtype([*POINT.descr, ("rate", float), *((part, float) for part in PART_SD)])
"""A setting with what was measured there: samples/s, and seconds a sample of each part; NaN where a part was not."""

Segments = NDArray[np.void]
"""An array of `SEGMENT`."""

LENGTHS = (1.5, 1.2, 0.7, 1.0, 1.0)
"""Distances over which ``g`` changes: batch size in doublings, workers in doublings, pinned or not, another recipe,
other code."""

STEP = 1e-4
"""Of a parameter's logarithm, for slopes."""


def points_at(configs: Sequence[TrialConfig], job: Job) -> Points:
    recipes, codes = list(job.compute), [each.changes for each in job.codes]
    settings = [(c.batch_size, c.loader.num_workers, c.loader.pin_memory, recipes.index(c.precision)) for c in configs]
    rows = [(*each, codes.index(config.remedies)) for each, config in zip(settings, configs, strict=True)]
    return np.array(rows, POINT)


def segments_of(trials: Sequence[tuple[TrialConfig, Measurement]], job: Job) -> Segments:
    points = points_at([config for config, _ in trials], job).tolist()
    rows = [
        (*point, measured.samples_per_s, *_parts(config, measured, job))
        for point, (config, measured) in zip(points, trials, strict=True)
    ]
    return np.array(rows, SEGMENT)


def _parts(config: TrialConfig, measured: Measurement, job: Job) -> tuple[float, ...]:
    """Seconds a sample of each part of a segment, in the order of `PART_SD`; NaN where it was not seen.

    Without workers training waits for the loader as long as that takes, and, where it pins, for that too. A pinning
    thread is timed over the windows in which batches were always queued for it. Where samples hardly wait, their CPU
    seconds are as much as those of a worker's clock.
    """
    windows, loader, seen = measured.windows, config.loader, measured.telemetry
    make_s, device_s, pin_s, cpu_s = measured.refill_s / config.batch_size, math.nan, math.nan, math.nan
    num_samples = sum(window.num_samples for window in windows)
    if not loader.num_workers and not loader.pin_memory:
        make_s = sum(window.wait_s for window in windows) / num_samples
    busy_s = [w.copy_s + w.compute_s for w in windows if w.copy_s is not None and w.compute_s is not None]
    if len(busy_s) == len(windows):
        device_s = sum(busy_s) / num_samples
    busy = [(window.seconds, window.num_pinned) for window in windows if window.num_pinned and window.least_unpinned]
    if busy and loader.num_workers and loader.pin_memory:
        pin_s = sum(seconds for seconds, _ in busy) / sum(number for _, number in busy) / config.batch_size
    if loader.num_workers and seen is not None and job.sample_s >= WAITS * job.sample_cpu_s:
        cpu_s = (seen.workers_cpu_cores or 0.0) / measured.samples_per_s
    return tuple(part or math.nan for part in (make_s, device_s, pin_s, cpu_s))


@dataclass(frozen=True, slots=True)
class _Fitted:
    """At one scale of ``g``."""

    scale: float
    theta: Array
    covariance: Array
    log_evidence: float
    precision: Array
    """(K + N)⁻¹."""
    left: Array
    """y − m."""
    jacobian: Array
    """Of m at the segments."""


class Prediction(NamedTuple):
    """Of the logarithm of throughput at some settings."""

    mean: Array
    variance: Array
    covariance: Array
    """With the anchor."""

    @property
    def sd(self) -> Array:
        return np.sqrt(np.maximum(1e-12, self.variance))


class ThroughputModel:
    """Throughput at any setting, from the calibrations of a job and its segments so far."""

    def __init__(self, job: Job, segments: Segments) -> None:
        self.job, self.segments = job, segments
        self._mean, self._sd = prior_of(job)
        fits, start = list[_Fitted](), self._mean
        for scale in SCALES:
            fits.append(self._fit(scale, start))
            start = fits[-1].theta
        logs = np.log(SCALE_PRIOR) + [fit.log_evidence for fit in fits]
        weights = np.exp(logs - logs.max())
        self._fits, self.weights = fits, weights / weights.sum()
        """Of the `SCALES` of what the form leaves out."""

    def _model(self, theta: Array, points: Points) -> Array:
        return -np.log(demands(theta, self.job, points).seconds)

    def _fit(self, scale: float, start: Array) -> _Fitted:
        seen = self.segments
        total = scale**2 * kernel(seen, seen) + SEGMENT_SD**2 * np.eye(len(seen))
        whiten = np.linalg.inv(np.linalg.cholesky(total))

        def residuals(theta: Array) -> Array:
            """Standardized, one row for each row of parameters."""
            found = demands(theta, self.job, seen)
            each = [(np.log(seen["rate"]) + np.log(found.seconds)) @ whiten.T, (theta - self._mean) / self._sd]
            for part, sd in PART_SD.items():
                at = np.isfinite(seen[part])
                each.append(np.log(seen[part][at] / getattr(found, part)[..., at]) / sd)
            return np.concatenate(each, axis=-1)

        solution = least_squares(
            residuals,
            start,
            partial(_slope, residuals),
            max_nfev=30,
            x_scale=self._sd,
            ftol=1e-4,
            xtol=1e-4,
        )
        covariance = np.linalg.inv(solution.jac.T @ solution.jac)
        evidence = -solution.cost + np.log(np.diag(whiten)).sum() + np.linalg.slogdet(covariance)[1] / 2
        left = np.log(seen["rate"]) - self._model(solution.x, seen)
        slope = _slope(partial(self._model, points=seen), solution.x)
        return _Fitted(scale, solution.x, covariance, float(evidence), whiten.T @ whiten, left, slope)

    def learned(self) -> Array:
        """Mean of the logarithm of each parameter."""
        return np.asarray(self.weights @ [fit.theta for fit in self._fits])

    def draws(self, num: int, points: Points) -> tuple[Array, Array]:
        """(Parameters from the posterior, as logarithms, ``g`` at these settings given the parameters): a row each."""
        chance = np.random.default_rng(0)
        picked = chance.choice(len(self._fits), size=num, p=self.weights)
        theta, rest = np.empty((num, len(self._mean))), np.empty((num, len(points)))
        for at, fit in enumerate(self._fits):
            rows = picked == at
            theta[rows] = chance.multivariate_normal(fit.theta, fit.covariance, size=rows.sum(), method="svd")
            cross, gain = self._known(fit, points)
            mean = (np.log(self.segments["rate"]) - self._model(theta[rows], self.segments)) @ gain.T
            covariance = fit.scale**2 * kernel(points, points) - gain @ cross.T
            none = np.zeros(len(points))
            rest[rows] = mean + chance.multivariate_normal(none, covariance, size=rows.sum(), method="svd")
        return theta, rest

    def predict(self, points: Points, anchor: int = 0) -> Prediction:
        """Mean and variance of the logarithm of throughput, ``g`` included; noise of a segment is not.

        ``anchor``: the place among the points with which the covariance of all others is wanted.
        """
        parts = [self._predict(fit, points, anchor) for fit in self._fits]
        means, variances, covariances = (np.array(column) for column in zip(*parts, strict=True))
        mean = self.weights @ means
        off = means - mean
        shared = off * off[:, [anchor]]
        return Prediction(mean, self.weights @ (variances + off**2), self.weights @ (covariances + shared))

    def mean(self, points: Points) -> Array:
        """That of `predict` alone, in a twentieth of the time."""
        means = [self._model(fit.theta, points) + self._known(fit, points)[1] @ fit.left for fit in self._fits]
        return np.asarray(self.weights @ means)

    def most(self, points: Points) -> Array:
        """Logarithm of the rate of training steps without a loader, or of what trained faster, and its ``PART_SD``.
        Infinite above the sizes that were timed, and on a CPU, where other load slows a timing down many times."""
        if not self.job.on_gpu:
            return np.full(len(points), np.inf)
        theta = self.learned()
        slower = np.exp(theta[len(PRIORS) + points["recipe"]])
        timed = np.array([[curve[-1][0] for curve in each.compute.values()] for each in self.job.codes])
        most = PART_SD["device"] - np.log(demands(theta, self.job, points).compute * np.minimum(1.0, slower))
        return np.where(points["batch_size"] > timed[points["code"], points["recipe"]], np.inf, most)

    def _known(self, fit: _Fitted, points: Points) -> tuple[Array, Array]:
        """(Covariance of ``g`` with the segments, its share that they tell)."""
        cross = fit.scale**2 * kernel(points, self.segments)
        return cross, cross @ fit.precision

    def _predict(self, fit: _Fitted, points: Points, anchor: int) -> Prediction:
        # One-sided slopes, which take half the time of those at two sides.
        at = self._model(np.vstack([fit.theta, fit.theta + STEP * np.eye(len(fit.theta))]), points)
        cross, gain = self._known(fit, points)
        slope = (at[1:] - at[0]).T / STEP - gain @ fit.jacobian
        unsure = slope @ fit.covariance
        variance = fit.scale**2 - (gain * cross).sum(axis=1) + (unsure * slope).sum(axis=1)
        alike = fit.scale**2 * kernel(points, points[[anchor]])[:, 0] - gain @ cross[anchor]
        return Prediction(at[0] + gain @ fit.left, variance, alike + unsure @ slope[anchor])


def _slope(function: Callable[[Array], Array], theta: Array) -> Array:
    """By parameter, of a function that takes rows of parameters: one row for each of its figures."""
    steps = STEP * np.eye(len(theta))
    higher, lower = np.split(function(np.concatenate([theta + steps, theta - steps])), 2)
    return np.asarray((higher - lower).T / (2 * STEP))


def kernel(one: Points, other: Points) -> Array:
    """Correlation of ``g`` between settings."""
    away = (
        np.subtract.outer(np.log2(one["batch_size"]), np.log2(other["batch_size"])),
        np.subtract.outer(np.log2(1 + one["num_workers"]), np.log2(1 + other["num_workers"])),
        *(np.not_equal.outer(one[name], other[name]) for name in ("pinned", "recipe", "code")),
    )
    return np.asarray(np.exp(-0.5 * sum((each / length) ** 2 for each, length in zip(away, LENGTHS, strict=True))))
