"""What the pages claim, as data: only what was confirmed, and no more than the intervals allow."""

from dataclasses import replace
from typing import Any

import pytest
from page_rig import config, explained, golden, measured, measurement

from loadtune.records.facts import Device
from loadtune.records.measurement import Telemetry, Timeline
from loadtune.records.memory import FitReport
from loadtune.records.result import Finalist
from loadtune.records.statistics import Interval
from loadtune.report.page import (
    MOST_NOTES,
    Panel,
    board_view,
    gains,
    limits_table,
    loading,
    page_view,
    roofline,
    timelines,
)
from loadtune.report.tables import trial_table

BEST = golden().best.config


def row(view: dict[str, Any], name: str) -> tuple[str, ...]:
    return next(cells[1:] for cells in view["confirmed"].rows if cells[0] == name)


def words(view: dict[str, Any]) -> str:
    return "\n".join(view["lines"])


def traces(panels: list[Panel]) -> dict[str, Any]:
    """Those with points, by name; plotly.js leaves the others out."""
    return {trace["name"]: trace for trace in panels[0].data if trace["x"]}


def test_best_and_baseline_stand_side_by_side_with_what_is_known() -> None:
    view = page_view(replace(golden(), best_at_your_batch=None))
    assert view["confirmed"].columns == ("", "answer", "baseline")
    assert page_view(golden())["confirmed"].columns == ("", "answer", "best", "baseline")
    assert row(view, "samples/s (95% CI)") == ("4,050 ± 162", "1,620 ± 48.6")
    assert row(view, "gain (99% CI)") == ("2.50× (2.38–2.63)", "–")
    failed = page_view(replace(golden(), finalists=golden().finalists[:2], notes=tuple(map(str, range(9)))))
    assert row(failed, "samples/s (95% CI)")[-1] == "not measured"
    assert row(failed, "GPU utilization")[-1] == "–"
    notes = failed["sections"][0].lines
    assert (len(notes), notes[-1]) == (MOST_NOTES + 1, "4 more notes in result.json.")
    on_cpu = page_view(replace(golden(), device=Device(kind="cpu", name="Xeon")))
    assert not any("GPU" in cells[0] for cells in on_cpu["confirmed"].rows)
    assert row(on_cpu, "peak RAM, summed over processes")[0] == "8.38 GiB"


def test_a_changed_batch_size_comes_with_its_warning_and_code_that_differs_is_shown() -> None:
    view, same = page_view(golden()), page_view(replace(golden(), best_at_your_batch=golden().best))
    assert "Batch 256: 4,050 ± 162 samples/s" in words(view)
    titles = ["Loader", "Training step", "Loader at batch 256"]
    assert [block.title for block in view["code"]] == titles
    assert [block.title for block in same["code"]] == titles[:2]
    assert "check accuracy" in words(same)
    assert "check accuracy" not in words(page_view(replace(golden(), best=golden().best_at_your_batch)))


def test_a_run_cut_short_claims_nothing_and_says_what_stands() -> None:
    cut = replace(golden(), cut_short="interrupted", best=None, best_at_your_batch=None, finalists=())
    view = page_view(cut)
    assert (view["confirmed"], view["code"]) == (None, [])
    assert view["warning"] == "Cut short: interrupted. 2 measurements are kept. Nothing was confirmed."
    assert view["headline"] == "No answer"
    assert "4,210 samples/s (one measurement, not confirmed) with batch 256, 16 workers, pinned" in words(view)
    assert "×" not in words(view)
    assert "No trial was measured" in words(page_view(replace(cut, trials=())))
    for whole, scope in ((True, "confirmation was complete"), (False, "fewer runs than planned")):
        assert scope in (page_view(replace(golden(), cut_short="interrupted", confirmed_whole=whole))["warning"] or "")


def test_the_table_of_trials_sorts_by_figures_and_marks_the_best() -> None:
    table = trial_table(golden())
    assert [each.outcome for each in table] == ["measured", "measured", "failed"]
    assert [each.by_column["samples/s"].order for each in table] == [1610, 4210, None]
    assert [each.is_best for each in table] == [False, True, False]
    assert len({tuple(each.by_column) for each in table}) == 1
    changed = measured(3, 5052.0, golden().remedies.config)
    named = trial_table(replace(golden(), trials=(*golden().trials, changed)))[-1].by_column["settings"]
    assert named.text.endswith("with uint8 transfer and copy ahead")


def test_a_baseline_that_is_kept_for_want_of_proof_is_no_answer() -> None:
    result = golden()
    rival = Interval(value=0.9, low=0.3, high=2.5)
    kept = replace(result.best, config=result.yours, half_width_fraction=1.2, speedup=None, rival_gain=rival)
    finalists = tuple(replace(each, half_width_fraction=1.2) for each in result.finalists)
    changed = page_view(replace(result, best=kept, best_at_your_batch=kept, finalists=finalists))
    assert changed["headline"].startswith("A change of your code gains 1.32×"), "what is proven comes first"
    result = replace(result, best=kept, best_at_your_batch=kept, finalists=finalists, remedies=None)
    view, spent = page_view(result), page_view(replace(result, seconds=result.config.time_budget_s))
    told = "your settings may be best, or others up to 2.50× as fast; throughput is known to ±120%. Run again "
    told = f"Nothing is proven: {told}"
    assert view["headline"].startswith(f"{told}on a quieter machine. Baseline: "), "a third of the time was left"
    assert spent["headline"].startswith(f"{told}with a larger --time-budget. Baseline: ")
    assert (view["warning"], view["code"], view["confirmed"].title) == (None, [], "Not confirmed")
    assert row(view, "samples/s (95% CI)") == ("1,620 (0–3,564)",)
    assert not any(each.is_best for each in view["trials"])
    names = {trace["name"] for panel in view["figures"]["roofline"] for trace in panel.data}
    assert not {"answer", "best"} & names
    assert board_view([replace(result, best=kept)])["rows"][0].outcome == "no answer"


def test_gains_are_the_steps_to_the_answer_then_changes_of_the_code() -> None:
    found = traces(gains(replace(explained(), remedies=golden().remedies)))
    assert found["measured"]["x"] == pytest.approx([2800 / 1620, 1.32, 0.99])
    assert found["measured"]["error_x"]["array"][1] == pytest.approx(0.06)
    assert found["predicted"]["x"] == pytest.approx([1.05, 5250 / 4050])


def test_the_steps_of_loading_are_bars_hatched_where_they_wait() -> None:
    found = {bar.name: bar for bar in loading(golden())}
    others = ["ToTensor", "collate_fn: default_collate", "RandomHorizontalFlip", "other steps"]
    assert list(found) == ["RandomResizedCrop", "train.py:31 Image.open(path)", *others]
    assert sum(bar.share for bar in found.values()) == pytest.approx(1.0)
    waiting = found["train.py:31 Image.open(path)"]
    assert (waiting.share, waiting.waits) == (pytest.approx(0.24), pytest.approx(0.75))
    unseen = replace(golden(), best=golden().best_at_your_batch)
    assert (unseen.steps, loading(unseen)) == ((), [])
    assert replace(golden(), best=None).steps == ()


def test_the_roofline_has_a_named_line_for_each_resource_up_to_the_workers_that_were_tried() -> None:
    found = traces(roofline(explained()))
    workers = found["worker processes"]
    at = dict(zip(workers["x"], workers["y"], strict=True))
    assert (at[4], at[16], max(at)) == (1800, 7200, 16)
    assert set(found["pinning thread, 86%"]["y"]) == {4200}
    assert found["predicted"]["y"][0] == pytest.approx(0.96 * 430)
    assert found["95% interval"]["fill"] == "toself"
    lines = {"pinning thread, 86%", "GPU, 14%", "CPU cores", "worker processes"}  # main is far above
    assert set(found) == {*lines, "95% interval", "predicted", "best"}
    assert roofline(explained(holds=False)) == []


def test_only_what_was_measured_with_the_winners_recipe_is_marked() -> None:
    twelve = replace(BEST, loader=replace(BEST.loader, num_workers=12))
    finalist = Finalist(config=twelve, runs=(measurement(3900), measurement(4100)), half_width_fraction=0.05)
    ten, two = (replace(BEST, loader=replace(BEST.loader, num_workers=number)) for number in (10, 2))
    also, result = replace(finalist, config=ten), explained()
    trials = (measured(0, 999, config(512, 8)), measured(1, 800, two))
    result = replace(result, trials=trials, finalists=(*result.finalists, finalist, also), yours=twelve)
    found = traces(roofline(result))
    assert (found["baseline"]["x"], found["baseline"]["y"]) == ([12], [pytest.approx(4000)])
    assert found["best"]["error_y"]["array"] == [pytest.approx(0.04 * 4050)]
    assert dict(zip(found["measured"]["x"], found["measured"]["error_y"]["array"], strict=True)) == {
        10: pytest.approx(200),
        2: None,
    }
    assert "baseline" not in traces(roofline(explained()))


def test_the_limits_of_a_precision_name_its_ceilings_and_each_size_that_was_run() -> None:
    table = limits_table(golden())
    assert (table.columns[1], [cells[1] for cells in table.rows[:2]]) == ("fp16", ["3,131", "3,296"])
    assert table.rows[-2][1:] == ("6,121 samples/s at batch 256", "–")
    assert table.rows[-1][1] == "32, 900, 3,296, 3,310 failed, 3,131"
    predicted = replace(golden().ceilings[0], verified=False, probes=(FitReport(precision="fp16", batch_size=32),))
    table = limits_table(replace(golden(), ceilings=(predicted,)))
    assert [cells[1] for cells in table.rows[:2]] == ["3,131 (predicted)", "3,296 (predicted)"]


def test_timelines_stand_one_under_the_other() -> None:
    def sampled(*values: float | None):
        timeline = Timeline(slice_s=0.5, gpu_utilization_fraction=values)
        return measurement(400, telemetry=Telemetry(seconds=1.5, timeline=timeline))

    yours = Finalist(config=golden().yours, runs=(sampled(0.0, 1.0, None),))
    panels = timelines(replace(golden(), finalists=(Finalist(config=BEST, runs=(sampled(1.0, 0.9),)), yours)))
    assert [panel.title.split(":")[0] for panel in panels] == ["baseline", "best"]
    assert traces(panels)["GPU"]["y"] == [0.0, 1.0, None, None]
    unsampled = measurement(400, telemetry=Telemetry(seconds=3.0))
    assert timelines(replace(golden(), yours=None, finalists=(Finalist(config=BEST, runs=(unsampled,)),))) == []


def test_a_board_has_the_newest_of_each_workload_and_machine_first() -> None:
    result = golden()
    new, old = (replace(result, created=f"2026-11-{day:02}T08:00:00Z") for day in (3, 1))
    other = replace(new, device=replace(result.device, name="A10"), best=None)
    board = board_view([old, other, new])
    assert [row.by_column["when (UTC)"].text[:10] for row in board["rows"]] == ["2026-11-03"] * 2 + ["2026-11-01"]
    assert [row.outcome for row in board["rows"]] == ["no answer", "answer", "answer"]
    assert [row.by_column["samples/s"].text for row in board["rows"]] == ["–", "4,050 ± 162", "4,050 ± 162"]
    assert board["subtitle"] == "3 results, 2 with an answer"
