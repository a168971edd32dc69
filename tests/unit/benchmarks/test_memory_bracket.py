"""The memory benchmark's search for the true ceiling, over judges with a known answer."""

import pytest
from memory_bracket import MAX_SIZES, find_bracket, is_narrow, vote


class Judge:
    """Sizes up to the ceiling fit; remembers what it was asked."""

    def __init__(self, ceiling):
        self.ceiling = ceiling
        self.asked = []

    def __call__(self, size):
        self.asked.append(size)
        return "fits" if size <= self.ceiling else "oom"


@pytest.mark.parametrize(
    ("runs", "verdict", "num_runs"),
    [
        (["fits", "fits"], "fits", 2),
        (["oom", "oom"], "oom", 2),
        (["fits", "oom", "oom"], "oom", 3),
        (["error", "fits", "fits"], "fits", 3),
        (["fits", "oom", "error"], "error", 3),
    ],
)
def test_two_of_up_to_three_runs_decide(runs, verdict, num_runs):
    left = iter(runs)
    assert vote(lambda: next(left)) == verdict
    assert len(runs) - len(list(left)) == num_runs


@pytest.mark.parametrize("ceiling", [7, 100, 523, 1705, 3300])
@pytest.mark.parametrize("share", [0.80, 0.97, 0.985, 1.0, 1.02, 1.3])
def test_the_bracket_holds_the_ceiling_and_is_one_per_cent_wide(ceiling, share):
    judge = Judge(ceiling)
    fits, fails = find_bracket(judge, round(share * ceiling))
    assert fits <= ceiling < fails
    assert is_narrow(fits, fails)
    assert fits in judge.asked
    assert fails in judge.asked
    assert len(judge.asked) == len(set(judge.asked))


def test_a_claim_within_one_per_cent_of_the_truth_costs_two_sizes():
    assert find_bracket(judge := Judge(1705), 1700) == (1700, 1717)
    assert judge.asked == [1700, 1717]


def test_a_claim_that_does_not_fit_is_searched_downwards():
    fits, fails = find_bracket(Judge(1705), 1715)
    assert fits <= 1705 < fails <= 1715


def test_what_never_fits_has_no_lower_side():
    assert find_bracket(Judge(0), 64)[0] is None


def test_what_never_fails_ends_after_so_many_sizes():
    judge = Judge(1 << 60)
    assert find_bracket(judge, 64)[1] is None
    assert len(judge.asked) == MAX_SIZES


def test_a_size_that_cannot_be_judged_ends_the_search_with_what_is_known():
    verdicts = iter(["fits", "error"])
    assert find_bracket(lambda size: next(verdicts), 100) == (100, None)
