"""How a time budget is shared out. Figures are of 100 s from the moment 1000 on: a share is as many seconds."""

import pytest
from fakes import FakeClock

from loadtune.run.budget import Budget

FINAL_S, LAST_S = 23.0, 4.0


def at(spent_s: float) -> Budget:
    """After so many seconds."""
    return Budget(FakeClock(1000.0 + spent_s), 100.0, 1000.0)


def test_what_is_left_and_what_of_it_the_final_can_spare() -> None:
    assert at(30.0).left_s == 70.0
    assert at(30.0).spare_s == pytest.approx(70.0 - FINAL_S - LAST_S)
    assert at(110.0).left_s == -10.0
    assert at(30.0).until(0.5) == 1065.0
    assert at(110.0).until(0.5) == 1110.0, "nothing is left to share"


@pytest.mark.parametrize(
    ("share", "expected", "lasts_s"),
    [
        (0.2, 0.1, 20.0),
        (0.1, 0.1, 10.0),
        (0.2, 0.2, 90.0 - FINAL_S - LAST_S),  # a large gain takes all that the final can spare
        (0.1, 9.0, 90.0 - FINAL_S - LAST_S),
    ],
)
def test_a_search_has_its_share(share: float, expected: float, lasts_s: float) -> None:
    budget = at(40.0)  # counted from its beginning, whenever it is asked
    assert budget.search_until_s(1010.0, expected, share) == pytest.approx(1010.0 + lasts_s)


def test_a_late_search_has_half_of_what_was_left() -> None:
    assert at(70.0).search_until_s(1070.0, 0.1, 0.2) == 1085.0


def test_the_final_has_its_share_and_leaves_time_for_what_follows() -> None:
    assert at(50.0).confirm_until_s == 1050.0 + FINAL_S
    assert at(50.0).answer_until_s == pytest.approx(1100.0 - LAST_S / 100 * 50.0)
    assert at(90.0).confirm_until_s == at(90.0).answer_until_s == pytest.approx(1100.0 - LAST_S / 100 * 10.0)


@pytest.mark.parametrize(
    ("stage", "begun_s", "planned_s"),
    [
        ("calibrate", 0.0, None),
        ("study", 25.0, 15.0 + 10.0 + FINAL_S),
        ("study", 0.0, 10.0 + FINAL_S),  # its own share is used
        ("changes", 25.0, 5.0 + FINAL_S),
        ("verify", 25.0, FINAL_S),
        ("confirm", 25.0, FINAL_S - 5.0),
    ],
)
def test_what_is_planned_for_this_stage_and_those_after_it(stage: str, begun_s: float, planned_s: float | None) -> None:
    assert at(30.0).planned_s(stage, 1000.0 + begun_s) == (planned_s and pytest.approx(planned_s))
    assert at(95.0).planned_s("study", 1090.0) == 5.0, "no more than is left"
