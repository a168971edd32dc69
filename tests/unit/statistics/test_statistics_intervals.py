"""Intervals over plain numbers: known values, and what must hold whatever the numbers."""

import math
import random
import statistics

import pytest

from loadtune.statistics.interval import ALLOWANCE, mean_of, mean_of_series, ratio_of


def half_width_fraction(samples: list[float], seconds: list[float]) -> float | None:
    found = mean_of_series(samples, seconds)
    return found and found.half_width_fraction()


def test_three_windows_by_hand() -> None:
    """Rates 90, 100, 110 in a second each: t(2) = 4.303, standard error 10 ÷ √3, a share of 100, and the allowance."""
    expected = 4.303 * 10 / math.sqrt(3) / 100 * (1 + ALLOWANCE / 3)
    assert half_width_fraction([90, 100, 110], [1, 1, 1]) == pytest.approx(expected, rel=1e-3)


def test_windows_count_by_their_length_and_too_few_give_no_interval() -> None:
    assert half_width_fraction([100, 10, 50], [1.0, 0.1, 0.5]) == pytest.approx(0.0, abs=1e-12)
    assert half_width_fraction([100], [1.0]) is half_width_fraction([0, 0], [1.0, 1.0]) is None


def test_neighbours_that_share_their_luck_widen_the_interval() -> None:
    """The same numbers in another order: in pairs, and torn apart."""
    together = [90, 90, 110, 110, 90, 90, 110, 110]
    apart = [90, 110, 90, 110, 90, 110, 90, 110]
    wide, narrow = (half_width_fraction(order, [1.0] * 8) for order in (together, apart))
    single = 2.365 * statistics.stdev(apart) / math.sqrt(8) / 100
    assert wide > 1.5 * narrow == pytest.approx(1.5 * single * (1 + ALLOWANCE / 8), rel=1e-3)


def test_one_figure_on_a_side_gives_no_interval_and_identical_ones_leave_no_doubt() -> None:
    ratio = ratio_of(mean_of([1000.0, 1010.0]), mean_of([500.0]))
    assert (round(ratio.value, 3), ratio.low, ratio.high) == (0.498, None, None)
    ratio = ratio_of(mean_of([100.0] * 2), mean_of([50.0] * 2))
    assert (ratio.low, ratio.value, ratio.high) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(("before", "after"), [(0.02, 0.02), (0.02, 0.06), (0.06, 0.02)])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(before: float, after: float) -> None:
    random_, held = random.Random(3), 0
    for _ in range(400):
        means = [
            mean_of([rate * math.exp(random_.gauss(0, spread)) for _ in range(4)])
            for rate, spread in ((1000.0, before), (800.0, after))
        ]
        held += ratio_of(*means).holds(0.8) is True
    assert 0.92 <= held / 400 <= 0.99
