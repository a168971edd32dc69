"""The rate of a configuration that a table does not hold, from those that it does. Pure.

In: a table's rows, what its workload's probes read. Out: samples/s. What compute curve and sample time foretell, times
a correction that is smooth over batch, workers, pinning and precision: radial basis functions through the rows' own.
How far that is off where it is known, each row left out in turn, is `leave_one_out`. Without the foretold rate it is
off by 39, 34, 26, 25, 15 and 14% (root mean square) on the six tables, with it by 14, 22, 24, 25, 12 and 14%.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.interpolate import RBFInterpolator

from loadtune.records import PRECISIONS, ComputePoint, Precision, TrialConfig

SMOOTHING = 0.01
"""Of the fit: runs of one configuration differ, so it is not to go through every point."""

FLAGS = 1.5
"""Weight of pinning, precision and having workers at all, beside steps of the ladders, which count 1 a doubling."""

SHARPNESS = 4
"""How abruptly the slower of compute and workers takes over; 2 would be a loader and a step that often wait in turn."""


class Foretold:
    """What a step takes by the compute curve and a sample by a worker."""

    def __init__(self, points: Sequence[ComputePoint], sample_s: float) -> None:
        self._points = sorted(points, key=lambda point: point.batch_size)
        self._sample_s = sample_s

    def __call__(self, config: TrialConfig) -> float:
        compute_per_s = self.compute_per_s(config.precision, config.batch_size)
        if config.loader.num_workers == 0:
            return 1 / (1 / compute_per_s + self._sample_s)
        loader_per_s = config.loader.num_workers / self._sample_s
        return float((compute_per_s**-SHARPNESS + loader_per_s**-SHARPNESS) ** (-1 / SHARPNESS))

    def compute_per_s(self, precision: Precision, batch_size: int) -> float:
        """Between the curve's sizes on a line of logarithms; below it a step takes as long as its smallest."""
        own = [point for point in self._points if point.recipe.precision == precision]
        sizes, rates = [math.log(point.batch_size) for point in own], [math.log(point.samples_per_s) for point in own]
        size = math.log(batch_size)
        return math.exp(float(np.interp(size, sizes, rates)) + min(0.0, size - sizes[0]))


class Fit:
    """Rates that are known, and smooth in between."""

    def __init__(self, rates: Sequence[tuple[TrialConfig, float]], foretold: Foretold) -> None:
        self._foretold = foretold
        places = np.array([place(config) for config, _ in rates])
        logs = np.array([math.log(rate / foretold(config)) for config, rate in rates])
        # A constant term alone: with few rows a slope in every direction would not be determined.
        self._correction: Any = RBFInterpolator(places, logs, kernel="linear", smoothing=SMOOTHING, degree=0)

    def __call__(self, config: TrialConfig) -> float:
        return self._foretold(config) * math.exp(float(self._correction(place(config)[None])[0]))


def place(config: TrialConfig) -> Any:
    """Where a configuration lies: doublings of the ladders, and switches."""
    loader = config.loader
    flags = [float(loader.num_workers > 0), float(loader.pin_memory)]
    precision = [float(config.precision == each) for each in PRECISIONS]
    return np.array(
        [math.log2(loader.batch_size), math.log2(1 + loader.num_workers), *(FLAGS * flag for flag in flags + precision)]
    )


def leave_one_out(rates: Sequence[tuple[TrialConfig, float]], foretold: Foretold) -> tuple[float, float]:
    """Median and largest relative error of the fit at rows it did not see."""
    errors = [
        abs(Fit([*rates[:at], *rates[at + 1 :]], foretold)(config) / rate - 1)
        for at, (config, rate) in enumerate(rates)
    ]
    return statistics.median(errors), max(errors)
