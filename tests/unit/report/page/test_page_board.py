"""Many results: what compares with what, and what counts as a loss."""

from dataclasses import replace

import pytest
from page_rig import cut_short, golden

from loadtune.records.interval import Interval, around
from loadtune.report.page.board import board_view


def changes(runs):
    return [row.outcome for row in board_view(runs).table.rows]


def run(day: int, rate: float, half: float | None = 0.02, device: str = "NVIDIA H200"):
    result = golden()
    best = replace(result.best, samples_per_s=rate, half_width_fraction=half)
    device = replace(result.device, name=device)
    return replace(result, created=f"2026-11-{day:02}T08:00:00Z", best=best, device=device)


@pytest.mark.parametrize(
    ("rate", "half", "expected"),
    [(4000, 0.02, "same"), (4100, 0.02, "same"), (4400, 0.02, "rose"), (3600, 0.02, "fell"), (3600, None, "same")],
)
def test_a_difference_is_one_where_intervals_do_not_overlap(rate, half, expected) -> None:
    assert changes([run(1, 4000), run(2, rate, half)]) == ["first", expected]


def test_a_run_without_an_answer_is_passed_over() -> None:
    without = replace(cut_short(), created="2026-11-02T08:00:00Z")
    board = board_view([run(3, 3000), without, run(1, 4000)])
    assert len(board.regressions) == 1
    assert "-25.0%" in board.regressions[0]
    assert ["not confirmed" in [cell.text for cell in row.by_column.values()] for row in board.table.rows] == [
        False,
        True,
        False,
    ]


def test_another_device_is_another_line() -> None:
    board = board_view([run(1, 4000), run(2, 2000, device="A10"), run(3, 4010)])
    assert board.regressions == ()
    assert len(board.trend.panels) == 2
    assert board.trend.panels[1].data[0]["y"] == [4000, 4010]


def test_a_single_date_is_the_only_tick() -> None:
    once, twice = (board_view(runs).trend.panels[0] for runs in ([run(1, 4000)], [run(1, 4000), run(2, 4000)]))
    assert once.layout["xaxis"]["tickvals"] == once.data[0]["x"] == ["2026-11-01T08:00:00Z"]
    assert "tickvals" not in twice.layout["xaxis"]


def test_with_nothing_to_compare_the_board_says_so() -> None:
    assert "nothing to compare" in board_view([run(1, 4000), run(2, 4000, device="A10")]).headline
    assert "No newest run fell" in board_view([run(1, 4000), run(2, 4000)]).headline


def test_an_old_regression_that_was_mended_is_no_news() -> None:
    assert board_view([run(1, 4000), run(2, 3000), run(3, 4000)]).regressions == ()


def sparing(day: int, rate: float, samples_per_joule: float, half: float | None = 0.02):
    result = run(day, rate)
    best = replace(result.best, samples_per_joule=around(samples_per_joule, half), efficiency_gain=Interval(value=1.5))
    config = replace(result.config, objective="samples-per-joule")
    return replace(result, config=config, best=best)


def test_runs_for_samples_per_joule_compare_by_those() -> None:
    slower, hungrier = [sparing(1, 4000, 7.4), sparing(2, 3000, 7.4)], [sparing(1, 4000, 7.4), sparing(2, 4000, 5.0)]
    assert changes(slower) == ["first", "same"]
    assert changes(hungrier) == ["first", "fell"]
    assert board_view(slower).regressions == ()
    sentence = board_view(hungrier).regressions[0]
    assert "for samples per joule on NVIDIA H200" in sentence
    assert "5.00 samples/J" in sentence
    assert "(-32.4%, " in sentence


def test_the_board_draws_and_lists_what_each_run_looked_for() -> None:
    board = board_view([sparing(1, 4000, 7.4), sparing(2, 3000, 5.0), run(1, 4100)])
    axes = [panel.layout["yaxis"]["title"]["text"] for panel in board.trend.panels]
    drawn = dict(zip(axes, (panel.data[0] for panel in board.trend.panels), strict=True))
    assert drawn["samples/J"]["y"] == [7.4, 5.0]
    assert drawn["samples/J"]["error_y"]["array"] == pytest.approx([0.148, 0.1])
    assert drawn["samples/s"]["y"] == [4100]
    shown = [{name: cell.text for name, cell in row.by_column.items()} for row in board.table.rows]
    assert {one["samples/J"]: one["samples/s"] for one in shown} == {
        "7.40 samples/J": "4,000 samples/s",
        "5.00 samples/J": "3,000 samples/s",
        "–": "4,100 samples/s",
    }
    assert {one["over the baseline"] for one in shown} == {"1.50×", "2.50×"}
    assert "samples/J" not in board_view([run(1, 4000)]).table.columns
