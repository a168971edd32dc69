"""The forecast against what really happened: traces and outcomes of six models, recorded on an H200 with torch 2.11."""

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import GIB, FakeTraining

from loadtune.decide.ceiling import MemoryProbe
from loadtune.decide.forecast import Forecast, forecast_from
from loadtune.records.config import Recipe
from loadtune.records.memory import AllocationTrace, BatchTry, FitReport
from loadtune.seams import drive

RECORDED: dict[str, Any] = json.loads(
    gzip.decompress((Path(__file__).parents[2] / "data" / "allocations-h200.json.gz").read_bytes())
)
ALL = sorted(RECORDED)


def events_of(recorded: list[int]) -> Iterator[tuple[int, int]]:
    """Above 0: so many bytes are asked for. Below 0: the request of this number is given back; it is its address."""
    numbers = itertools.count(1)
    yield from ((next(numbers), event) if event > 0 else (-event, 0) for event in recorded)


def traces(name: str) -> list[AllocationTrace]:
    return [
        AllocationTrace(
            batch_size=int(size),
            idle_bytes=trace["idle_bytes"],
            events=tuple(events_of(trace["events"])),
            step_starts=tuple(trace["step_starts"]),
        )
        for size, trace in RECORDED[name]["traces"].items()
    ]


def forecast(name: str) -> Forecast:
    return Forecast(*traces(name), int(RECORDED[name]["budget_gib"] * GIB))


OFF_BY = {"mobilenet_v3_large-bf16-sgd": 0.1}
"""Some of its requests are convolutions' workspaces, which do not grow as the batch does."""


@pytest.mark.parametrize("name", ALL)
def test_a_replay_reserves_what_was_reserved_and_sizes_ten_times_as_large_end_as_they_did(name: str) -> None:
    told = forecast(name)
    of_the_run_itself, reserved_bytes = told.played(160), RECORDED[name]["traces"]["160"]["reserved_peak_bytes"]
    assert of_the_run_itself.reserved_peak_bytes == pytest.approx(reserved_bytes, rel=0.015)
    for size, reserved_gib, _ in RECORDED[name]["measured"]:
        outcome = told.played(size)
        assert (outcome is None) == (reserved_gib is None), size
        if outcome is not None:
            assert outcome.reserved_peak_bytes == pytest.approx(reserved_gib * GIB, rel=OFF_BY.get(name, 0.025))


@pytest.mark.parametrize(("size", "steady"), [(1372, 0), (1544, 0), (1596, 1), (1690, 2)])
def test_retries_of_every_steady_step_are_foretold(size: int, steady: int) -> None:
    """To a neighbour: one sample more or less decides which cached block a request falls into."""
    told = forecast("resnet50-fp32-sgd")
    retries = [told.retries(near) for near in (size - 1, size, size + 1)]
    assert max(each for each in retries if each is not None) == steady


def test_a_forecast_that_does_not_reproduce_its_own_run_is_not_used() -> None:
    name = "unet-bf16-sgd"
    reserved = RECORDED[name]["traces"]["160"]["reserved_peak_bytes"]
    run = FitReport(precision="bf16", batch_size=160, budget_bytes=139 * GIB, reserved_peak_bytes=reserved)
    assert forecast_from(traces(name), run) is not None
    odd = FitReport(precision="bf16", batch_size=160, budget_bytes=139 * GIB, reserved_peak_bytes=2 * reserved)
    assert forecast_from(traces(name), odd) is None
    assert forecast_from(traces(name)[:1], run) is None


class Recorded(FakeTraining):
    """Answers as the H200 did, at the two sizes that were traced."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.traces = {trace.batch_size: trace for trace in traces(name)}
        self.reserved = {int(size): trace["reserved_peak_bytes"] for size, trace in RECORDED[name]["traces"].items()}
        self.budget_bytes = int(RECORDED[name]["budget_gib"] * GIB)

    def try_batch(self, asked: BatchTry) -> FitReport:
        trace = self.traces[asked.batch_size]
        return FitReport(
            precision="bf16",
            batch_size=asked.batch_size,
            steady_peak_bytes=most_allocated(trace),
            reserved_peak_bytes=self.reserved[asked.batch_size],
            budget_bytes=self.budget_bytes,
            allocations=trace,
        )


@pytest.mark.parametrize("name", ALL)
def test_a_safe_size_that_two_recorded_sizes_predict_trains(name: str) -> None:
    step_s = {32: 0.2, 160: 1.0}  # no larger size is run
    probe = MemoryProbe(Recipe(precision="bf16"), {"cap": 10**7}, step_s=step_s)
    ceiling = drive(probe.bound(), Recorded(name).try_batch)
    hard, safe = ceiling.batch_size, ceiling.safe_batch_size
    assert 0.9 * hard < safe < hard
    fitting = [size for size, reserved_gib, _ in RECORDED[name]["measured"] if reserved_gib is not None]
    failing = [size for size, reserved_gib, _ in RECORDED[name]["measured"] if reserved_gib is None]
    assert safe <= max(fitting, default=min([10**7, *failing]) - 1)


def most_allocated(trace: AllocationTrace) -> int:
    alive, held, most = dict[int, int](), 0, 0
    for address, num_bytes in trace.events:
        held += num_bytes - alive.get(address, 0)
        alive[address] = num_bytes
        most = max(most, held)
    return most
