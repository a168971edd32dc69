"""Planned looks at blocks of steps: what one look may say, and what a return to the old tells."""

import math
import random

import pytest

from loadtune.records.statistics import DRIFT, LOOKS, Interval, bracket, ratio


def test_looks_at_planned_numbers_of_blocks_share_one_error() -> None:
    old, new = [1.0, 1.1, 0.9, 1.0], [0.8, 0.9, 0.7, 0.8]
    one, shared = ratio(old, new, num_looks=1), ratio(old, new, num_looks=3)
    assert shared.low < one.low < one.value == shared.value < one.high < shared.high
    assert ratio(old, [0.8]) == Interval(value=0.8), "one block says nothing of its spread"
    assert ratio([1.0] * 4, [1.0 - DRIFT] * 4).holds(1.0), "a machine drifts although its blocks are steady"


@pytest.mark.parametrize(("before", "after"), [(0.02, 0.02), (0.02, 0.06), (0.06, 0.02)])
def test_one_look_holds_the_truth_as_often_as_it_says_where_one_side_is_noisier(before: float, after: float) -> None:
    chance, held = random.Random(3), 0
    for _ in range(400):
        old, new = ([s * math.exp(chance.gauss(0, sd)) for _ in range(4)] for s, sd in ((1.0, before), (0.8, after)))
        held += ratio(old, new, num_looks=1).holds(0.8) is True
    assert held >= 0.94 * 400


def test_blocks_that_differ_by_a_neighbour_alone_are_seldom_called_different() -> None:
    """One that comes and goes, so they are serially correlated."""
    chance, told = random.Random(5), 0
    for _ in range(400):
        load, series = 0.0, list[float]()
        for _ in range(LOOKS[0] + LOOKS[-1]):
            load = 0.4 * load + chance.gauss(0, 0.1)
            series.append(math.exp(load))
        told += any(ratio(series[:4], series[4 : 4 + num]).holds(1.0) is False for num in LOOKS)
    assert told <= 0.05 * 400


def test_where_the_load_changed_in_between_only_a_gain_over_both_phases_is_told() -> None:
    before, half, after = ([scale * each for each in (1.0, 1.02, 0.98, 1.0)] for scale in (1.0, 0.5, 1.5))
    gained = bracket(ratio(before, half), ratio(after, half))
    assert gained.low < 0.5 / 1.5 < gained.value < 0.5 < gained.high < 1
    assert bracket(ratio(after, before), ratio(before, before)).holds(1.0), "the load fell, nothing was gained"
    assert bracket(ratio(before, half), ratio([1.0], half)).low is None
