"""Intervals over plain numbers: known values, and what must hold whatever the numbers."""

import math

import pytest
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import chi

from loadtune.records.interval import ALLOWANCE, half_width_fraction, largest_t


def test_three_windows_by_hand() -> None:
    """Rates 90, 100, 110 in a second each: t(2) = 4.303, standard error 10 ÷ √3, a share of 100, and the allowance."""
    expected = 4.303 * 10 / math.sqrt(3) / 100 * (1 + ALLOWANCE / 3)
    assert half_width_fraction([90, 100, 110], [1, 1, 1]) == pytest.approx(expected, rel=1e-3)


def test_windows_count_by_their_length() -> None:
    """A long window and a short one of the same rate differ in nothing."""
    assert half_width_fraction([100, 10, 50], [1.0, 0.1, 0.5]) == pytest.approx(0.0, abs=1e-12)


def test_too_little_gives_no_interval() -> None:
    assert half_width_fraction([100], [1.0]) is None
    assert half_width_fraction([0, 0], [1.0, 1.0]) is None


def test_neighbours_that_share_their_luck_widen_the_interval() -> None:
    """The same numbers in another order: in pairs, and torn apart."""
    together = [90, 90, 110, 110, 90, 90, 110, 110]
    apart = [90, 110, 90, 110, 90, 110, 90, 110]
    wide, narrow = (half_width_fraction(order, [1.0] * 8) for order in (together, apart))
    assert wide is not None
    assert narrow is not None
    assert wide > 1.5 * narrow


@pytest.mark.parametrize("num_means", [2, 5])
@pytest.mark.parametrize("degrees", [2, 10])
def test_of_several_means_none_is_missed_in_95_percent(num_means: int, degrees: int) -> None:
    """The share that holds, integrated over the density of the estimated spread instead of over its quantiles."""
    width = largest_t(num_means, degrees)

    def held(spread: float) -> float:
        return float(chi(degrees).pdf(spread) * (2 * ndtr(width * spread / math.sqrt(degrees)) - 1) ** num_means)

    assert quad(held, 0, 20)[0] == pytest.approx(0.95, abs=1e-4)
