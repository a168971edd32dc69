"""Each figure of the report page, as data."""

from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import pytest
from page_rig import config, cut_short, golden, measured, measurement, with_trials

from loadtune.records.result import Finalist, Trial, TrialOrigin
from loadtune.records.telemetry import Telemetry
from loadtune.report.page.figure import name_of
from loadtune.report.page.memory import memory_lines
from loadtune.report.page.runs import finalists, history, step_parts, step_time, timelines
from loadtune.report.page.table import trial_table
from loadtune.report.page.view import page_view


def traces(figure, panel=0):
    return {trace["name"]: trace for trace in figure.panels[panel].data}


def test_every_trial_is_in_the_history_once() -> None:
    result = with_trials(60)
    marks = [trace for trace in history(result).panels[0].data if trace["mode"] == "markers"]
    assert sorted(x for trace in marks for x in trace["x"]) == list(range(60))


def test_every_origin_of_a_trial_has_its_marks() -> None:
    trials = tuple(
        replace(measured(number, 100, config(64)), origin=origin) for number, origin in enumerate(get_args(TrialOrigin))
    )
    marks = [trace for trace in history(replace(golden(), trials=trials)).panels[0].data if trace["mode"] == "markers"]
    assert sorted(x for trace in marks for x in trace["x"]) == [trial.number for trial in trials]
    assert len({(trace["name"], trace["marker"]["symbol"]) for trace in marks}) == len(trials)


def test_the_best_so_far_never_falls_and_ends_at_the_fastest() -> None:
    result = with_trials(60)
    best = traces(history(result))["best so far"]["y"]
    assert best == sorted(best)
    assert best[-1] == max(t.measurement.samples_per_s for t in result.trials if t.measurement)


def test_what_failed_says_why() -> None:
    found = traces(history(with_trials(60)))
    assert "out of memory &lt;script&gt;" in found["failed"]["text"][0]


def test_the_memory_line_shows_sizes_ceilings_and_the_one_that_failed() -> None:
    figure = memory_lines(golden())
    found, layout = traces(figure), figure.panels[0].layout
    assert found["failed"]["x"] == [3310]
    assert found["allocated"]["x"] == [32, 900, 3131, 3296]
    assert {shape["x0"] for shape in layout["shapes"] if shape["x0"] == shape["x1"]} == {3131, 3296}
    assert {shape["label"]["text"] for shape in layout["shapes"]} == {"budget", "safe", "hard"}


def test_finalists_are_shown_run_by_run_fastest_first() -> None:
    figure = finalists(golden())
    found = traces(figure)
    assert found["mean"]["x"] == [4050, 2800, 1620]
    assert len(found["run"]["x"]) == 5
    assert "best" in figure.panels[0].layout["yaxis"]["ticktext"][0]
    assert figure.panels[0].layout["yaxis"]["autorange"] == "reversed"


def test_a_name_tells_all_settings() -> None:
    plain, other = config(precision="fp16"), config(precision="fp16", memory_format="channels_last")
    assert name_of(golden(), plain) != name_of(golden(), other)


def step(wait_s: float, **parts: float | None) -> SimpleNamespace:
    return SimpleNamespace(windows=[SimpleNamespace(seconds=1.0, num_steps=10, wait_s=wait_s, **parts)])


def test_idle_is_split_by_the_hosts_wait_and_never_counted_twice() -> None:
    for wait_s in (0.0, 0.2, 0.9):
        parts = step_parts([step(wait_s, copy_s=0.1, compute_s=0.5, idle_s=0.4)])
        assert parts["idle, waiting for data"] + parts["idle otherwise"] == pytest.approx(40)
        assert parts["idle, waiting for data"] <= parts["waiting for data"]


def test_a_step_whose_parts_were_not_timed_shows_the_wait_alone_and_says_so() -> None:
    figure = step_time(replace(golden(), finalists=(), trials=(measured(0, 100, config(64)),)))
    found = traces(figure)
    assert set(found) == {"waiting for data", "everything else"}
    whole = found["waiting for data"]["x"][0] + found["everything else"]["x"][0]
    assert whole == pytest.approx(1000 * 1000 * 0.1 / 64)  # a step of 0.1 s, for 1,000 samples
    assert "next(loader)" in figure.missing[0]


def sampled(values: tuple[float | None, ...], **missing: str) -> SimpleNamespace:
    timeline = SimpleNamespace(slice_s=0.5, gpu_utilization_fraction=values, cpu_utilization_fraction=())
    return SimpleNamespace(timeline=timeline, missing=missing)


def test_timelines_stand_one_under_the_other_on_one_scale() -> None:
    result = golden()
    yours = Finalist(config=result.yours, runs=(replace(measurement(100), telemetry=sampled((0.0, 1.0, None))),))
    best = Finalist(config=result.best.config, runs=(replace(measurement(400), telemetry=sampled((1.0, 0.9))),))
    figure = timelines(replace(result, finalists=(best, yours)))
    assert [panel.title.split(":")[0] for panel in figure.panels] == ["baseline", "best"]
    assert traces(figure)["GPU utilization"]["y"] == [0.0, 100.0, None, None]
    assert {panel.layout["xaxis"]["range"][1] for panel in figure.panels} == {1.5}


def test_what_could_not_be_sampled_says_why() -> None:
    run = replace(measurement(400), telemetry=sampled((1.0,), cpu_utilization_fraction="no /proc here"))
    result = golden()
    figure = timelines(replace(result, yours=None, finalists=(Finalist(config=result.best.config, runs=(run,)),)))
    assert figure.missing == ("CPU utilization: no /proc here.",)
    unsampled = Finalist(config=result.best.config, runs=(measurement(400),))
    assert "no timelines" in timelines(replace(result, finalists=(unsampled,), trials=())).missing[0]


def test_the_table_sorts_by_figures_and_leaves_out_what_is_missing() -> None:
    table = trial_table(golden())
    assert [row.outcome for row in table.rows] == ["measured", "measured", "failed"]
    assert [row.by_column["samples/s"].order for row in table.rows] == [1610, 4210, None]
    assert {tuple(row.by_column) for row in table.rows} == {table.columns}
    assert [row.is_best for row in table.rows] == [False, True, False]


def test_the_table_shows_how_busy_gpu_and_cpu_were_in_each_trial() -> None:
    busy = {
        "gpu_utilization_fraction": 0.93,
        "gpu_sm_activity_fraction": 0.81,
        "cpu_utilization_fraction": 0.4,
    }
    run = replace(measurement(400), telemetry=Telemetry(seconds=3.0, num_readings=9, **busy))
    table = trial_table(replace(golden(), trials=(Trial(number=0, config=config(), origin="search", measurement=run),)))
    shown = {name: cell.text for name, cell in table.rows[0].by_column.items()}
    columns = ("samples/s", "GPU utilization", "SM activity", "CPU utilization")
    assert [shown[column] for column in columns] == ["400", "93%", "81%", "40%"]


@pytest.mark.parametrize(
    "result", [golden(), cut_short(), with_trials(1), with_trials(200)], ids=["all", "none", "1", "200"]
)
def test_every_figure_is_drawn_or_says_why_not(result) -> None:
    page = page_view(result)
    shown = [figure for chapter in page.chapters for figure in chapter.figures]
    assert len({figure.key for figure in shown}) == len(shown) == 6
    assert all(figure.panels or figure.missing for figure in shown)
    assert bool(page.tiles) == (result.best is not None)
    assert shown[0].key == "roofline"


def test_a_trial_that_was_noisy_says_so() -> None:
    noisy = Trial(number=0, config=config(), origin="search", measurement=replace(measurement(10), noisy=True))
    row = trial_table(replace(golden(), trials=(noisy,))).rows[0]
    assert any(cell.text == "measured, noisy" for cell in row.by_column.values())
