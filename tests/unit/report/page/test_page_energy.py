"""The page of a run for samples per joule: what it was ranked by is what is drawn, and throughput is not lost."""

from dataclasses import replace

import pytest
from page_rig import config, golden, measurement

from loadtune.records.interval import Interval, around
from loadtune.records.measurement import Measurement
from loadtune.records.result import Finalist, Trial, TuningResult, Winner
from loadtune.records.telemetry import Telemetry
from loadtune.report.page.runs import finalists, history
from loadtune.report.page.table import trial_table

FAST, SPARING = config(256, 8, precision="fp16"), config(128, 4, precision="bf16")


def at_power(rate: float, power_w: float) -> Measurement:
    read = Telemetry(seconds=3.0, num_readings=9, gpu_power_w=power_w, gpu_energy_j=3.0 * power_w)
    return measurement(rate, telemetry=read)


FAST_RUN, SPARING_RUN = at_power(4000, 800.0), at_power(3000, 400.0)
"""5 and 7.5 samples/J."""


def by_energy() -> TuningResult:
    result = golden()
    return replace(
        result,
        config=replace(result.config, objective="samples-per-joule"),
        trials=(
            Trial(number=0, config=SPARING, origin="search", measurement=SPARING_RUN),
            Trial(number=1, config=FAST, origin="search", measurement=FAST_RUN),
        ),
        finalists=(
            Finalist(config=FAST, runs=(FAST_RUN,), half_width_fraction=0.05, efficiency_half_width_fraction=0.03),
            Finalist(
                config=SPARING, runs=(SPARING_RUN,), half_width_fraction=0.05, efficiency_half_width_fraction=0.02
            ),
        ),
        best=Winner(
            config=SPARING,
            samples_per_s=3000.0,
            half_width_fraction=0.05,
            speedup=Interval(value=0.75),
            samples_per_joule=around(7.5, 0.02),
            efficiency_gain=Interval(value=1.5),
        ),
        best_at_your_batch=None,
    )


def axis_title(figure, axis: str = "yaxis") -> str:
    return figure.panels[0].layout[axis]["title"]["text"]


def test_finalists_are_in_the_order_of_samples_per_joule_with_their_own_intervals() -> None:
    figure = finalists(by_energy())
    mean, runs = figure.panels[0].data
    assert mean["x"] == pytest.approx([7.5, 5.0])
    assert mean["error_x"]["array"] == pytest.approx([0.15, 0.15])
    assert mean["text"][0] == "mean of 1: 7.50 samples/J ± 0.15 samples/J"
    assert runs["x"] == pytest.approx([7.5, 5.0])
    assert "7.50 samples/J" in runs["text"][0]
    assert "3,000 samples/s" in runs["text"][0]
    assert axis_title(figure, "xaxis") == "samples/J"


def test_the_best_so_far_is_the_most_sparing_so_far() -> None:
    figure = history(by_energy())
    best, *drawn = figure.panels[0].data
    assert best["y"] == pytest.approx([7.5, 7.5])
    assert sorted(value for trace in drawn for value in trace["y"]) == pytest.approx([5.0, 7.5])
    assert {half for trace in drawn for half in trace["error_y"]["array"]} == {None}  # windows know nothing of energy
    assert axis_title(figure) == "samples/J"
    assert figure.panels[0].layout["yaxis"]["range"][1] < 10


def test_the_table_has_a_column_that_sorts_by_it() -> None:
    table = trial_table(by_energy())
    assert [row.by_column["samples/J"].order for row in table.rows] == pytest.approx([7.5, 5.0])
    assert [row.by_column["samples/s"].order for row in table.rows] == pytest.approx([3000, 4000])
    assert {tuple(row.by_column) for row in table.rows} == {table.columns}
    assert "samples/J" not in trial_table(golden()).columns
