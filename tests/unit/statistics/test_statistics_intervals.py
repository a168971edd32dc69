"""Intervals over plain numbers: known values, and what must hold whatever the numbers."""

import math
import statistics
import subprocess
import sys

import pytest
from scipy.special import stdtrit

from loadtune.records.statistics import ALLOWANCE, mean_of_series, t


def half_width_fraction(samples: list[float], seconds: list[float]) -> float | None:
    found = mean_of_series(samples, seconds)
    return found and found.half_width_fraction


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


@pytest.mark.parametrize("error", [0.32, 0.05, 0.05 / 3, 1e-3, 1e-5])
def test_students_quantile_is_scipys(error: float) -> None:
    for degrees in (*range(1, 40), 99, 1000):
        assert t(degrees, error) == pytest.approx(stdtrit(degrees, 1 - error / 2), rel=1e-9)
        assert t(degrees, error, 12) == t(degrees, error / 12)


def test_a_look_between_two_steps_of_a_training_imports_nothing() -> None:
    looks = (
        "import sys; from loadtune.decide.advice import is_missed; from loadtune.records.statistics import ratio\n"
        "before = {*sys.modules}; is_missed([0.9, 0.91, 0.92, 0.93]); ratio([1.0, 1.1, 1.0], [0.9, 0.8, 0.9])\n"
        "assert {*sys.modules} == before, {*sys.modules} - before"
    )
    subprocess.run([sys.executable, "-c", looks], check=True, timeout=60)
