"""The forecast against what really happened: traces and outcomes of six models, recorded on an H200 with torch 2.11."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from loadtune.probe.forecast import Forecast, forecast_from
from loadtune.probe.proposals import predicted_ceilings
from loadtune.probe.tries import Tries
from loadtune.records.config import Recipe
from loadtune.records.memory import AllocationTrace, FitReport
from loadtune.testing import FakeBench

RECORDED: dict[str, Any] = json.loads(
    gzip.decompress((Path(__file__).parents[2] / "data" / "allocations-h200.json.gz").read_bytes())
)
GIB = 1 << 30
ALL = sorted(RECORDED)


def traces(name: str) -> list[AllocationTrace]:
    return [
        AllocationTrace(
            batch_size=int(size),
            idle_bytes=trace["idle_bytes"],
            events=tuple(trace["events"]),
            step_starts=tuple(trace["step_starts"]),
        )
        for size, trace in RECORDED[name]["traces"].items()
    ]


def forecast(name: str) -> Forecast:
    return Forecast(*traces(name), int(RECORDED[name]["budget_gib"] * GIB))


@pytest.mark.parametrize("name", ALL)
def test_a_replay_of_the_run_itself_reserves_what_it_reserved(name: str) -> None:
    outcome = forecast(name).outcome(160)
    assert outcome is not None
    measured = RECORDED[name]["traces"]["160"]["reserved_peak_bytes"]
    assert outcome.reserved_peak_bytes == pytest.approx(measured, rel=0.015)


OFF_BY = {"mobilenet_v3_large-bf16-sgd": 0.1}
"""Some of its requests are convolutions' workspaces, which do not grow as the batch does."""


@pytest.mark.parametrize("name", ALL)
def test_sizes_ten_times_as_large_end_as_they_did(name: str) -> None:
    told = forecast(name)
    for size, reserved_gib, _ in RECORDED[name]["measured"]:
        outcome = told.outcome(size, one_more_step=False)
        assert (outcome is None) == (reserved_gib is None), size
        if outcome is not None:
            assert outcome.reserved_peak_bytes == pytest.approx(reserved_gib * GIB, rel=OFF_BY.get(name, 0.025))


@pytest.mark.parametrize(("size", "steady"), [(1372, 0), (1458, 0), (1544, 0), (1596, 1), (1690, 2)])
def test_retries_of_every_steady_step_are_foretold(size: int, steady: int) -> None:
    """To a neighbour: one sample more or less decides which cached block a request falls into."""
    told = forecast("resnet50-fp32-sgd")
    outcomes = [told.outcome(near, one_more_step=False) for near in (size - 1, size, size + 1)]
    assert max(outcome.num_steady_retries for outcome in outcomes if outcome is not None) == steady


def test_fragmentation_is_seen_where_a_line_through_peaks_sees_none() -> None:
    # The line ends at 1329; 1063 already failed, with 32 GiB asked for and 32 GiB of the cache unusable.
    assert 960 <= forecast("language_model-bf16-adamw").largest(160, 1400) < 1063


def test_a_forecast_that_does_not_reproduce_its_own_run_is_not_used() -> None:
    name = "unet-bf16-sgd"
    reserved = RECORDED[name]["traces"]["160"]["reserved_peak_bytes"]
    run = FitReport(precision="bf16", batch_size=160, budget_bytes=139 * GIB, reserved_peak_bytes=reserved)
    assert forecast_from(traces(name), run) is not None
    odd = FitReport(precision="bf16", batch_size=160, budget_bytes=139 * GIB, reserved_peak_bytes=2 * reserved)
    assert forecast_from(traces(name), odd) is None
    assert forecast_from(traces(name)[:1], run) is None


@pytest.mark.parametrize("name", ALL)
def test_a_safe_size_that_two_recorded_sizes_predict_trains(name: str) -> None:
    tries = Tries(FakeBench(), Recipe(precision="bf16"), 3, cap=10**7, dataset_length=None, smallest=1)
    tries.traces = traces(name)
    tries.reports = [
        FitReport(
            precision="bf16",
            batch_size=trace.batch_size,
            steady_peak_bytes=most_allocated(trace),
            reserved_peak_bytes=RECORDED[name]["traces"][str(trace.batch_size)]["reserved_peak_bytes"],
            budget_bytes=int(RECORDED[name]["budget_gib"] * GIB),
        )
        for trace in tries.traces
    ]
    tries.forecast = forecast_from(tries.traces, tries.fitting[-1])
    predicted = predicted_ceilings(tries, num_left=3)
    assert predicted is not None
    hard, safe = predicted
    assert 0.9 * hard < safe < hard
    fitting = [size for size, reserved_gib, _ in RECORDED[name]["measured"] if reserved_gib is not None]
    failing = [size for size, reserved_gib, _ in RECORDED[name]["measured"] if reserved_gib is None]
    assert safe <= max(fitting, default=min([10**7, *failing]) - 1)


def most_allocated(trace: AllocationTrace) -> int:
    sizes, held, most = list[int](), 0, 0
    for event in trace.events:
        if event > 0:
            sizes.append(event)
        held += event if event > 0 else -sizes[-event - 1]
        most = max(most, held)
    return most
