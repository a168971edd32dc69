"""The interval of a ratio: as wide as both sides' noise makes it, and right as often as it says."""

import math
import random

import pytest

from loadtune.records import ComputePoint, Measurement, Recipe, Window
from loadtune.study.confirm import Spread
from loadtune.study.ratio import Runs, compute_ratio, ratio_of, repeated_runs


def run_at(rate: float) -> Measurement:
    window = Window(start_s=0.0, seconds=100.0, num_steps=100, num_samples=round(100 * rate))
    return Measurement(windows=(window,), first_batch_s=0.1, seconds=100.0)


def runs_of(random_: random.Random, mean: float, spread: float, num_runs: int) -> Runs:
    return repeated_runs([run_at(mean * math.exp(random_.gauss(0, spread))) for _ in range(num_runs)])


def test_one_run_on_a_side_gives_no_interval() -> None:
    several = repeated_runs([run_at(1000.0), run_at(1010.0)])
    ratio = ratio_of(several, repeated_runs([run_at(500.0)]))
    assert ratio.ratio == pytest.approx(0.4975, abs=1e-3)
    assert (ratio.low, ratio.high, ratio.different) == (None, None, None)


@pytest.mark.parametrize(("before", "after"), [(0.02, 0.02), (0.02, 0.06), (0.06, 0.02)])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(before: float, after: float) -> None:
    random_, held = random.Random(3), 0
    for _ in range(400):
        ratio = ratio_of(runs_of(random_, 1000.0, before, 4), runs_of(random_, 800.0, after, 4))
        assert ratio.low is not None
        assert ratio.high is not None
        held += ratio.low <= 0.8 <= ratio.high
    assert 0.92 <= held / 400 <= 0.99


def test_more_runs_and_less_noise_narrow_it() -> None:
    def width(num_runs: int, spread: float) -> float:
        ratio = ratio_of(Runs(1000.0, 3, Spread(0.02, 6)), Runs(900.0, num_runs, Spread(spread, num_runs - 1)))
        assert ratio.low is not None
        assert ratio.high is not None
        return ratio.high / ratio.low

    assert width(3, 0.06) > width(6, 0.06) > width(6, 0.02) > 1.0


def test_identical_runs_leave_no_doubt() -> None:
    ratio = ratio_of(repeated_runs([run_at(100.0)] * 2), repeated_runs([run_at(50.0)] * 2))
    assert (ratio.low, ratio.ratio, ratio.high) == (0.5, 0.5, 0.5)
    assert ratio.different is True


def test_compute_only_rates_are_compared_by_their_windows() -> None:
    def point(*rates: int) -> ComputePoint:
        windows = tuple(Window(start_s=0.0, seconds=1.0, num_steps=1, num_samples=rate) for rate in rates)
        return ComputePoint(recipe=Recipe(), batch_size=8, windows=windows)

    assert compute_ratio(point(100), point(50)).low is None
    assert compute_ratio(point(10, 1000), point(1000, 10)).low is None  # wider than the rate itself
    steady = compute_ratio(point(1000, 1001, 1000), point(500, 501, 500))
    assert steady.different is True
    assert compute_ratio(point(900, 1100, 1000), point(880, 1110, 980)).different is False
