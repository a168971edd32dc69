"""A few simulations of each promise on every change; `benchmarks/intervals.py` keeps it with thousands.

Seeds are fixed, so these cannot flake. A bound is what a promise that is just kept would break once in a thousand: the
0.1% quantile of the binomial for intervals that hold 93%, its 99.9% quantile for 5% called different.
"""

import pytest
from intervals import quick
from intervals_grid import QUICK
from intervals_note import LEAST_HELD, failures, upper_limit
from intervals_steps import AR_COEFFICIENT, StepTimes
from numpy import corrcoef, random
from scipy.stats import binom

NUM = 500
NOMINALLY_DIFFERENT = 0.05


@pytest.fixture(scope="module")
def simulated():
    return quick(NUM)


@pytest.mark.parametrize("at", range(len(QUICK)), ids=lambda at: QUICK[at].kind)
def test_intervals_hold_the_truth_with_the_stopping_rule_in_force(simulated, at):
    assert simulated.covered[at].num_held >= binom.ppf(0.001, NUM, LEAST_HELD)


def test_identical_configurations_are_rarely_called_different(simulated):
    most = binom.ppf(0.999, NUM, NOMINALLY_DIFFERENT)
    assert all(each.num_different <= most and each.num_told_apart <= most for each in simulated.alike)


def test_the_fastest_of_five_needs_its_allowance(simulated):
    """Without it more than one comparison in twenty is lost to the luck of the fastest."""
    of_five = simulated.alike[-1]
    assert of_five.num_finalists == 5
    assert of_five.num_different < NOMINALLY_DIFFERENT * NUM < of_five.num_different_unallowed


def test_a_broken_promise_is_named(simulated):
    assert failures(simulated.covered, ()) == []
    short = type(simulated.covered[0])
    broken = short(**{name: getattr(simulated.covered[0], name) for name in short.__slots__} | {"num_held": 375})
    assert "75.0% held" in failures([broken], ())[0]


def test_the_upper_limit_of_a_share():
    """Of none in a hundred it is the rule of three."""
    assert upper_limit(0, 100) == pytest.approx(0.03, abs=0.001)
    assert upper_limit(100, 100) == 1.0


@pytest.mark.parametrize("kind", ["independent", "AR(1) 0.5", "stall"])
def test_simulated_steps_have_the_mean_they_claim(kind):
    steps = StepTimes(kind=kind, mean_s=0.1, variation=0.2, num_workers=4)
    drawn = steps.draw(200, 400, random.default_rng(1))
    assert drawn.mean() == pytest.approx(0.1, rel=0.01)
    if kind == "stall":
        assert drawn[:, 3::4].mean() > 10 * drawn[:, 0::4].mean()
    else:
        neighbours = corrcoef(drawn[:, 1:].ravel(), drawn[:, :-1].ravel())[0, 1]
        assert neighbours == pytest.approx(AR_COEFFICIENT if kind == "AR(1) 0.5" else 0.0, abs=0.03)
