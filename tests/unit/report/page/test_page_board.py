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


def sparing(day: int, rate: float, samples_per_joule: float):
    result = run(day, rate)
    best = replace(result.best, samples_per_joule=around(samples_per_joule, 0.02), efficiency_gain=Interval(value=1.5))
    return replace(result, config=replace(result.config, objective="samples-per-joule"), best=best)


@pytest.mark.parametrize(
    ("rate", "half", "expected"),
    [(4000, 0.02, "same"), (4100, 0.02, "same"), (4400, 0.02, "rose"), (3600, 0.02, "fell"), (3600, None, "same")],
)
def test_a_difference_is_one_where_intervals_do_not_overlap(rate, half, expected) -> None:
    assert changes([run(1, 4000), run(2, rate, half)]) == ["first", expected]


def test_a_run_without_an_answer_is_passed_over_and_only_the_newest_loss_is_news() -> None:
    without = replace(cut_short(), created="2026-11-02T08:00:00Z")
    board = board_view([run(3, 3000), without, run(1, 4000)])
    assert len(board.regressions) == 1
    assert "-25.0%" in board.regressions[0]
    assert [row.by_column["configuration"].text == "not confirmed" for row in board.table.rows] == [False, True, False]
    assert board_view([run(1, 4000), run(2, 3000), run(3, 4000)]).regressions == ()


def test_another_device_is_another_line_with_nothing_to_compare() -> None:
    board = board_view([run(1, 4000), run(2, 2000, device="A10"), run(3, 4010)])
    assert board.regressions == ()
    assert [panel.data[0]["y"] for panel in board.trend.panels] == [[2000], [4000, 4010]]
    assert board.trend.panels[0].layout["xaxis"]["tickvals"] == ["2026-11-02T08:00:00Z"]  # a single date
    assert "No newest run fell" in board.headline
    assert "nothing to compare" in board_view([run(1, 4000), run(2, 4000, device="A10")]).headline


def test_runs_for_samples_per_joule_compare_by_those() -> None:
    slower, hungrier = [sparing(1, 4000, 7.4), sparing(2, 3000, 7.4)], [sparing(1, 4000, 7.4), sparing(2, 4000, 5.0)]
    assert changes(slower) == ["first", "same"]
    assert changes(hungrier) == ["first", "fell"]
    assert "(-32.4%, " in board_view(hungrier).regressions[0]
    board = board_view([*hungrier, run(1, 4100)])
    axes = {panel.layout["yaxis"]["title"]["text"]: panel.data[0]["y"] for panel in board.trend.panels}
    assert axes == {"samples/J": [7.4, 5.0], "samples/s": [4100]}
    assert {row.by_column["samples/J"].text for row in board.table.rows} == {"7.40 ± 0.15", "5.00 ± 0.10", "–"}
    assert "samples/J" not in board_view([run(1, 4000)]).table.columns
