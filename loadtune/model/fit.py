"""The model fitted to segments, with what it does not know. Pure, numpy and scipy.

The logarithm of a segment's throughput is modelled as ``m(setting, theta) + g(setting) + noise`` (Kennedy and
O'Hagan, JRSS B 63, 2001): `resources.demands` with log-normal parameters, a Gaussian process ``g`` for what its form
leaves out, and the spread between segments. Seconds of one worker, the device and the pinning thread, and CPU seconds
of the workers, which a segment measures directly, are fitted along with it. The parameters are the maximum a posteriori
(`scipy.optimize.least_squares`), their uncertainty is Laplace's. How large ``g`` is, is not known: `SCALES` are
weighted by their evidence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.optimize import least_squares

from loadtune.model.resources import PRIORS, Array, Job, Points, demands, prior_of

SCALES = (0.04, 0.08, 0.16, 0.32)
"""Standard deviations of the logarithm that are considered for what the form leaves out."""

SCALE_PRIOR = (0.15, 0.35, 0.35, 0.15)

SEGMENT_SD = 0.06
"""Of the logarithm of a rate, between segments of one setting."""

PART_SD, CPU_SD = 0.10, 0.25
"""Of the logarithm of such seconds: measured directly, under the conditions of that segment. CPU seconds of workers
hold what their start and their waiting take, too."""

LENGTHS = (1.5, 1.2, 0.7)
"""Distances over which ``g`` changes: batch size in doublings, workers in doublings, pinned or not."""

OTHER = 1.0
"""The distance of another recipe, and of other code."""


@dataclass(frozen=True, slots=True)
class Segments:
    """What was measured, as arrays of one length; NaN where a part was not."""

    points: Points
    rates: Array
    make_s: Array
    """Wall seconds a sample of one worker, or of the training process with 0 workers."""
    device_s: Array
    """Seconds a sample in which the device copied and computed."""
    pin_s: Array
    """Seconds a sample of the pinning thread."""
    cpu_s: Array
    """CPU seconds a sample of the workers. Where samples wait, their number is bounded by this alone."""
    num: Array
    """Segments that a rate is the mean of."""

    def __len__(self) -> int:
        return len(self.rates)


@dataclass(frozen=True, slots=True)
class _Fitted:
    """At one scale of ``g``."""

    scale: float
    theta: Array
    covariance: Array
    log_evidence: float
    solved: Array
    """(K + N)⁻¹ (y − m)."""
    factor: object
    jacobian: Array
    """Of m at the segments."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of the logarithm of throughput at some settings."""

    mean: Array
    variance: Array
    covariance: Array
    """With each of the anchors: one row a setting, one column an anchor."""

    @property
    def sd(self) -> Array:
        return np.sqrt(np.maximum(1e-12, self.variance))


class ThroughputModel:
    """Throughput at any setting, from the calibrations of a job and its segments so far."""

    def __init__(self, job: Job, segments: Segments | None = None) -> None:
        self.job, self.segments = job, segments
        self._mean, self._sd = prior_of(job)
        fits, start = list[_Fitted](), self._mean
        for scale, weight in zip(SCALES, SCALE_PRIOR, strict=True):
            fits.append(self._fit(scale, weight, start))
            start = fits[-1].theta
        logs = np.array([fit.log_evidence for fit in fits])
        weights = np.exp(logs - logs.max())
        self._fits, self.weights = fits, weights / weights.sum()

    def _model(self, theta: Array, points: Points) -> Array:
        return -np.log(demands(theta, self.job, points).seconds)

    def _fit(self, scale: float, weight: float, start: Array) -> _Fitted:
        seen = self.segments
        if seen is None or not len(seen):
            none, flat = np.zeros(0), np.zeros((0, len(start)))
            return _Fitted(scale, self._mean, np.diag(self._sd**2), math.log(weight), none, None, flat)
        total = scale**2 * kernel(seen.points, seen.points) + np.diag(SEGMENT_SD**2 / seen.num)
        lower, logs = cholesky(total, lower=True), np.log(seen.rates)
        parts = (seen.make_s, seen.device_s, seen.pin_s, seen.cpu_s)
        made, computed, pinned, loaded = (np.isfinite(part) for part in parts)

        def residuals(theta: Array) -> Array:
            found = demands(theta, self.job, seen.points)
            rate = solve_triangular(lower, logs + np.log(found.seconds), lower=True)
            make = (np.log(seen.make_s[made]) - np.log(found.make[made])) / PART_SD
            device = (np.log(seen.device_s[computed]) - np.log(found.device[computed])) / PART_SD
            pin = (np.log(seen.pin_s[pinned]) - np.log(found.pin[..., pinned])) / PART_SD
            cpu = (np.log(seen.cpu_s[loaded]) - np.log(found.cpu[..., loaded])) / CPU_SD
            return np.concatenate([rate, make, device, pin, cpu, (theta - self._mean) / self._sd])

        def slopes(theta: Array) -> Array:
            found = demands(_around(theta), self.job, seen.points)
            rate = solve_triangular(lower, _slope(np.log(found.seconds)), lower=True)
            make = -_slope(np.log(found.make))[made] / PART_SD
            device = -_slope(np.log(found.device))[computed] / PART_SD
            pin = -_slope(np.log(found.pin[..., pinned])) / PART_SD
            cpu = -_slope(np.log(found.cpu[..., loaded])) / CPU_SD
            return np.concatenate([rate, make, device, pin, cpu, np.diag(1 / self._sd)])

        solution = least_squares(residuals, start, slopes, max_nfev=30, x_scale=self._sd, ftol=1e-4, xtol=1e-4)
        covariance = np.linalg.inv(solution.jac.T @ solution.jac)
        evidence = -solution.cost - np.log(np.diag(lower)).sum() + np.linalg.slogdet(covariance)[1] / 2
        factor = cho_factor(total, lower=True)
        solved = cho_solve(factor, logs - self._model(solution.x, seen.points))
        slope = _slope(self._model(_around(solution.x), seen.points))
        return _Fitted(scale, solution.x, covariance, float(evidence) + math.log(weight), solved, factor, slope)

    def learned(self) -> Array:
        """Mean of the logarithm of each parameter."""
        return np.asarray(np.einsum("f,fp->p", self.weights, [fit.theta for fit in self._fits]))

    def draws(self, num: int, points: Points | None = None) -> tuple[Array, Array]:
        """(Parameters from the posterior, as logarithms, ``g`` at these settings given the parameters): a row each."""
        chance = np.random.default_rng(0)
        picked = chance.choice(len(self._fits), size=num, p=self.weights)
        theta, rest = np.empty((num, len(self._mean))), np.empty((num, 0 if points is None else len(points)))
        for at, fit in enumerate(self._fits):
            rows = picked == at
            count = int(rows.sum())
            theta[rows] = chance.multivariate_normal(fit.theta, fit.covariance, size=count, method="svd")
            if points is None:
                continue
            mean, covariance = np.zeros((count, len(points))), fit.scale**2 * kernel(points, points)
            if fit.factor is not None and self.segments is not None and count:
                cross = fit.scale**2 * kernel(points, self.segments.points)
                gain = cho_solve(fit.factor, cross.T).T
                left = np.log(self.segments.rates) - self._model(theta[rows], self.segments.points)
                mean, covariance = left @ gain.T, covariance - gain @ cross.T
            none = np.zeros(len(points))
            rest[rows] = mean + chance.multivariate_normal(none, covariance, size=count, method="svd")
        return theta, rest

    @property
    def scale(self) -> float:
        """Standard deviation of the logarithm of what the form leaves out, in the mean."""
        return float(sum(weight * fit.scale for weight, fit in zip(self.weights, self._fits, strict=True)))

    def predict(self, points: Points, anchors: Sequence[int] = ()) -> Prediction:
        """Mean and variance of the logarithm of throughput, ``g`` included; noise of a segment is not.

        ``anchors``: places among the points with which the covariance of all others is wanted.
        """
        parts = [self._predict(fit, points, list(anchors)) for fit in self._fits]
        mean = sum(weight * part.mean for weight, part in zip(self.weights, parts, strict=True))
        variance, covariance = np.zeros(len(points)), np.zeros((len(points), len(anchors)))
        for weight, part in zip(self.weights, parts, strict=True):
            off = part.mean - mean
            variance += weight * (part.variance + off**2)
            covariance += weight * (part.covariance + np.outer(off, off[list(anchors)]))
        return Prediction(np.asarray(mean), variance, covariance)

    def mean(self, points: Points) -> Array:
        """That of `predict` alone, in a twentieth of the time."""
        mean = np.zeros(len(points))
        for weight, fit in zip(self.weights, self._fits, strict=True):
            mean += weight * self._model(fit.theta, points)
            if self.segments is not None and len(self.segments):
                mean += weight * fit.scale**2 * kernel(points, self.segments.points) @ fit.solved
        return mean

    def most(self, points: Points) -> Array:
        """Logarithm of the rate of training steps without a loader, or of what trained faster, and `PART_SD`. Infinite
        above the sizes that were timed, and on a CPU, where other load slows a timing down many times."""
        if not self.job.on_gpu:
            return np.full(len(points), np.inf)
        theta = self.learned()
        slower = np.exp(theta[len(PRIORS) :])[points.recipe]
        timed = np.array([[curve[-1][0] for curve in each.compute.values()] for each in self.job.codes])
        most = PART_SD - np.log(demands(theta, self.job, points).compute * np.minimum(1.0, slower))
        return np.where(points.batch_size > timed[points.code, points.recipe], np.inf, most)

    def _predict(self, fit: _Fitted, points: Points, anchors: list[int]) -> Prediction:
        # One-sided slopes, which take half the time of those at two sides.
        at = self._model(np.vstack([fit.theta, fit.theta + STEP * np.eye(len(fit.theta))]), points)
        mean, left = at[0], (at[1:] - at[0]).T / STEP
        variance, covariance = np.full(len(points), fit.scale**2), fit.scale**2 * kernel(points, points.at(anchors))
        if fit.factor is not None and self.segments is not None:
            cross = fit.scale**2 * kernel(points, self.segments.points)
            gain = cho_solve(fit.factor, cross.T).T
            mean, left = mean + cross @ fit.solved, left - gain @ fit.jacobian
            variance, covariance = variance - (gain * cross).sum(axis=1), covariance - gain @ cross[anchors].T
        unsure = left @ fit.covariance
        return Prediction(mean, variance + (unsure * left).sum(axis=1), covariance + unsure @ left[anchors].T)


STEP = 1e-4
"""Of a parameter's logarithm, for slopes."""


def _around(theta: Array) -> Array:
    """Rows with one parameter a little higher each, then a little lower."""
    steps = STEP * np.eye(len(theta))
    return np.concatenate([theta + steps, theta - steps])


def _slope(around: Array) -> Array:
    """By parameter, of what was computed at `_around`: one row a setting."""
    higher, lower = np.split(around, 2)
    return np.asarray((higher - lower).T / (2 * STEP))


def kernel(one: Points, other: Points) -> Array:
    """Correlation of ``g`` between settings."""
    squares = np.zeros((len(one), len(other)))
    for here, there, length in zip(_features(one), _features(other), LENGTHS, strict=True):
        squares += ((here[:, None] - there[None, :]) / length) ** 2
    for own, others in ((one.recipe, other.recipe), (one.code, other.code)):
        squares += np.where(own[:, None] != others[None, :], 1 / OTHER**2, 0.0)
    return np.exp(-0.5 * squares)


def _features(points: Points) -> list[Array]:
    return [
        np.log2(points.batch_size),
        np.log2(1 + points.num_workers),
        points.pinned.astype(float),
    ]


def points_of(settings: Sequence[tuple[int, int, bool, int]], codes: Sequence[int] | None = None) -> Points:
    """(Batch size, workers, pinned, recipe) of each, and the code, which is that without changes by default."""
    columns = list(zip(*settings, strict=True))
    code = np.zeros(len(settings), int) if codes is None else np.array(codes, int)
    return Points(
        np.array(columns[0], float),
        np.array(columns[1], float),
        np.array(columns[2], bool),
        np.array(columns[3], int),
        code,
    )
