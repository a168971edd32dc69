"""Many results: what compares with what, and what counts as slower."""

from dataclasses import replace

import pytest
from page_rig import cut_short, golden

from loadtune.report.page.board import board_view, changes


def run(day: int, rate: float, half: float | None = 0.02, device: str = "NVIDIA H200"):
    result = golden()
    best = replace(result.best, samples_per_s=rate, half_width_fraction=half)
    device = replace(result.device, name=device)
    return replace(result, created=f"2026-11-{day:02}T08:00:00Z", best=best, device=device)


@pytest.mark.parametrize(
    ("rate", "half", "expected"),
    [(4000, 0.02, "same"), (4100, 0.02, "same"), (4400, 0.02, "faster"), (3600, 0.02, "slower"), (3600, None, "same")],
)
def test_a_difference_is_one_where_intervals_do_not_overlap(rate, half, expected) -> None:
    assert changes([run(1, 4000), run(2, rate, half)]) == ["first", expected]


def test_a_run_without_an_answer_is_passed_over() -> None:
    without = replace(cut_short(), created="2026-11-02T08:00:00Z")
    board = board_view([run(3, 3000), without, run(1, 4000)])
    assert len(board.regressions) == 1
    assert "-25.0%" in board.regressions[0]
    assert [row.cells[8].text == "not confirmed" for row in board.table.rows] == [False, True, False]


def test_another_device_is_another_line() -> None:
    board = board_view([run(1, 4000), run(2, 2000, device="A10"), run(3, 4010)])
    assert board.regressions == ()
    assert len(board.trend.panels) == 2
    assert board.trend.panels[1].data[0]["y"] == [4000, 4010]


def test_an_old_regression_that_was_mended_is_no_news() -> None:
    assert board_view([run(1, 4000), run(2, 3000), run(3, 4000)]).regressions == ()
