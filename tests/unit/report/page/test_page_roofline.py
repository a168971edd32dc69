"""The roofline: a line for each resource, the prediction with its interval, and what was measured under it."""

from dataclasses import replace

import pytest
from page_rig import config, cut_short, explained, golden, measured, measurement, with_code_changes

from loadtune.records.config import TrialConfig
from loadtune.records.result import Finalist, TuningResult
from loadtune.report.page.roofline import roofline

BEST = golden().best.config


def with_workers(number: int) -> TrialConfig:
    return replace(BEST, loader=replace(BEST.loader, num_workers=number))


def drawn(result: TuningResult):
    """Traces by name, and the layout."""
    panel = roofline(result).panels[0]
    return {trace["name"]: trace for trace in panel.data}, panel.layout


def at(trace, layout, num_workers: int) -> list[float]:
    """What a trace shows at a tick."""
    place = layout["xaxis"]["tickvals"][layout["xaxis"]["ticktext"].index(str(num_workers))]
    return [y for x, y in zip(trace["x"], trace["y"], strict=True) if x == place]


def test_each_resource_has_a_line_of_what_it_allows() -> None:
    found, layout = drawn(explained())
    assert at(found["worker processes"], layout, 4) == [1800]
    assert at(found["worker processes"], layout, 16) == [7200]
    assert set(found["pinning thread"]["y"]) == {4200}
    assert set(found["GPU"]["y"]) == {6000}
    assert at(found["CPU cores"], layout, 16) == [6080]
    assert at(found["training process"], layout, 1) == [16000]
    assert all(trace["text"] for trace in found.values() if "line" in trace and "text" in trace)


def test_zero_workers_have_a_place_and_no_worker_line() -> None:
    found, layout = drawn(explained())
    assert layout["xaxis"]["ticktext"].count("0") == 1
    assert layout["xaxis"]["range"][0] < min(layout["xaxis"]["tickvals"]) == 0
    assert at(found["predicted"], layout, 0) == [pytest.approx(0.96 * 430)]
    assert at(found["training process"], layout, 0) == [430]
    assert at(found["worker processes"], layout, 0) == []


def test_the_prediction_has_its_interval_as_a_band() -> None:
    result = explained()
    found, layout = drawn(result)
    estimate = next(one.samples_per_s for one in result.bottleneck.roofline if one.num_workers == 8)
    assert at(found["predicted"], layout, 8) == [estimate.value]
    assert at(found["95% interval"], layout, 8) == [estimate.low, estimate.high]
    assert found["95% interval"]["fill"] == "toself"


def test_winner_and_baseline_are_marked_and_others_only_under_this_roofline() -> None:
    finalist = Finalist(config=with_workers(12), runs=(measurement(3900), measurement(4100)), half_width_fraction=0.05)
    trials = (
        measured(0, 3400, with_workers(8)),
        measured(1, 3950, with_workers(12)),
        measured(2, 999, config(512, 8)),
        measured(3, 4010, BEST),
    )
    result = explained()
    found, layout = drawn(replace(result, trials=trials, finalists=(*result.finalists, finalist)))
    assert at(found["winner"], layout, 16) == [pytest.approx(4050)]
    assert found["winner"]["error_y"]["array"] == [pytest.approx(0.04 * 4050)]
    assert at(found["baseline"], layout, 4) == [pytest.approx(1620)]
    assert "batch 64" in found["baseline"]["text"][0]
    assert "other settings than this roofline" in found["baseline"]["text"][0]
    assert found["confirmed"]["y"] == [pytest.approx(4000)]
    assert found["trial"]["y"] == [pytest.approx(3400)]
    assert len({found[kind]["marker"]["symbol"] for kind in ("winner", "baseline", "confirmed", "trial")}) == 4


def test_a_change_is_shown_with_its_interval_and_named_beside() -> None:
    found, layout = drawn(explained({"half_the_loading": 5300.0}))
    mark = found["predicted with a change"]
    assert mark["y"] == [5300]
    assert mark["error_y"]["array"] == [pytest.approx(424)]
    assert "5,300 samples/s (4,876 to 5,724)" in mark["text"][0]
    assert [shape["label"]["text"] for shape in layout["shapes"]] == ["half the loading time: 5,300"]
    assert layout["shapes"][0]["x0"] == mark["x"][0] > max(layout["xaxis"]["tickvals"])


def test_the_winner_with_all_changes_that_gain_has_a_mark_of_its_own() -> None:
    found, layout = drawn(with_code_changes(explained({})))
    star = found["winner with code changes"]
    assert star["y"] == [5350]
    assert star["error_y"]["array"] == [pytest.approx(0.03 * 5350)]
    assert "with uint8 transfer and copy ahead" in star["text"][0]
    assert at(found["winner"], layout, 16) == [pytest.approx(4050)]


def test_measured_code_changes_are_apart_from_those_that_were_only_predicted() -> None:
    found, layout = drawn(with_code_changes(explained({})))
    uint8, forkserver = found["measured with a change"]["y"]
    assert (uint8, forkserver) == (pytest.approx(1.27 * 4050), pytest.approx(0.99 * 5350))
    assert found["measured with a change"]["error_y"]["array"][0] == pytest.approx(0.05 * 4050)
    assert found["predicted with a change"]["y"] == [pytest.approx(1.05 * 5350)]
    assert "no time was left" in found["predicted with a change"]["text"][0]
    symbols = {trace["marker"]["symbol"] for name, trace in found.items() if name.endswith(("change", "changes"))}
    assert symbols == {"star", "triangle-up", "triangle-up-open"}
    names = [shape["label"]["text"].partition(":")[0] for shape in layout["shapes"]]
    assert names == ["with code changes", "uint8 transfer", "+ forkserver", "+ torch.compile"]


def test_where_the_objective_is_energy_a_gain_is_no_mark_of_throughput() -> None:
    result = with_code_changes(explained({}))
    found, _ = drawn(replace(result, config=replace(result.config, objective="samples-per-joule")))
    assert "measured with a change" not in found


def test_the_picture_is_cut_above_what_was_reached_and_names_what_is_left_out() -> None:
    result = explained({"half_the_loading": 5300.0})
    high = tuple(
        replace(one, limits=one.limits | {"cores": 50_000.0}) if one.num_workers else one
        for one in result.bottleneck.roofline
    )
    result = replace(result, bottleneck=replace(result.bottleneck, roofline=high))
    found, layout = drawn(result)
    assert 5724 < layout["yaxis"]["range"][1] < 8000
    assert "CPU cores" not in found
    assert "CPU cores (from 50,000 samples/s)" in roofline(result).missing[0]


def test_where_the_model_does_not_hold_no_resource_is_drawn_or_named() -> None:
    result = explained(holds=False)
    found, layout = drawn(result)
    figure = roofline(result)
    assert set(found) == {"95% interval", "predicted", "winner", "baseline"}
    assert layout["shapes"] == []
    assert "does not describe this job" in figure.missing[0]
    assert "no resource is named" in figure.missing[0]
    assert "pinning" not in figure.panels[0].title + figure.reading


def test_without_a_model_it_says_why() -> None:
    old, unfinished = roofline(replace(golden(), bottleneck=None)), roofline(replace(cut_short(), bottleneck=None))
    assert not old.panels
    assert "no throughput model" in old.missing[0]
    assert not unfinished.panels
    assert "No configuration was confirmed" in unfinished.missing[0]
