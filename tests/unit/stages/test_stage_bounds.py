"""The stage after the confirmation: what it asks the bench for, and what it makes of bounds that cannot be timed."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from loadtune.errors import BenchError
from loadtune.findings import Findings
from loadtune.probe.host_memory import prefetch_bytes
from loadtune.records import (
    Device,
    Finalist,
    HostFacts,
    LoaderConfig,
    LoaderPoint,
    Measurement,
    Recipe,
    Trial,
    TrialConfig,
    TrialFailure,
    TuneConfig,
    TuningResult,
    Window,
    Winner,
)
from loadtune.stages.bounds import bounds, verdict
from loadtune.stages.run import Run
from loadtune.testing import FakeBench, FakeSensor, Surface, fake_facts, fake_host

GPU = Device(kind="cuda", uuid="GPU-0", name="GPU")
LOADER = LoaderConfig(batch_size=64, num_workers=8, pin_memory=True)


class Failing(FakeBench):
    """Cannot time a loader by itself."""

    def __init__(self, fail: Callable[[], TrialFailure]) -> None:
        super().__init__()
        self._fail = fail

    def time_loader(self, config: LoaderConfig, seconds: float) -> LoaderPoint | TrialFailure:
        return self._fail()


def after_confirmation(
    bench: FakeBench,
    loader: LoaderConfig = LOADER,
    *,
    device: Device = GPU,
    host: HostFacts | None = None,
    trials: tuple[Trial, ...] = (),
    spent_s: float = 0.0,
) -> TuningResult:
    """The stage alone, behind a winner that waits for its loader in 40% of the time, at half the compute-only rate."""
    config = TrialConfig(loader=loader, recipe=Recipe())
    step = Window(start_s=0.0, seconds=1.0, num_steps=10, num_samples=1600, wait_s=0.4)
    measured = Measurement(windows=(step, step), first_batch_s=0.5, seconds=2.0)
    host = host or fake_host()
    found = Findings(TuneConfig(), host, device, bench.clock, "0")
    found.trials = list(trials)
    found.finalists = (Finalist(config=config, runs=(measured,)),)
    found.best = Winner(
        config=config, samples_per_s=1600.0, half_width_fraction=None, speedup=None, compute_fraction=0.5
    )
    bench.clock.spend(spent_s)
    run = Run(bench, FakeSensor(bench.clock), bench.clock, found, Path(), lambda: host)
    with contextlib.suppress(KeyboardInterrupt):
        verdict(run, fake_facts(Surface()))
        bounds(run, fake_facts(Surface()))
    return found.result()


@pytest.mark.parametrize(
    ("loader", "pinned", "copies"),
    [
        pytest.param(LOADER, [True, False], [True], id="pinned"),
        pytest.param(replace(LOADER, pin_memory=False), [False], [False], id="not-pinned"),
        pytest.param(replace(LOADER, num_workers=0), [True], [True], id="no-pinning-thread"),
    ],
)
def test_what_is_timed_of_the_winner(loader: LoaderConfig, pinned: list[bool], copies: list[bool]) -> None:
    result = after_confirmation(FakeBench(), loader)
    assert [point.config.pin_memory for point in result.loader_points] == pinned
    assert [point.pinned for point in result.transfer_points] == copies
    assert all(point.config.num_workers == loader.num_workers for point in result.loader_points)


def failed() -> TrialFailure:
    return TrialFailure(kind="crash", phase="loader alone", message="planted")


def gone() -> TrialFailure:
    raise BenchError("planted")


def interrupted() -> TrialFailure:
    raise KeyboardInterrupt


@pytest.mark.parametrize("fail", [failed, gone, interrupted])
def test_a_loader_that_cannot_be_timed_leaves_a_verdict_of_what_is_known(fail: Callable[[], TrialFailure]) -> None:
    result = after_confirmation(Failing(fail))
    assert result.loader_points == ()
    assert result.verdict is not None
    assert result.verdict.bound_by == "loader"
    assert "not timed apart" in result.verdict.evidence
    assert len(result.transfer_points) == (0 if fail is interrupted else 1)


def test_a_cpu_is_asked_for_no_transfer() -> None:
    bench = FakeBench()
    result = after_confirmation(bench, replace(LOADER, pin_memory=False), device=Device(kind="cpu", name="CPU"))
    assert [what for what, _ in bench.requests] == ["loader"]
    assert result.transfer_points == ()


def test_without_time_nothing_is_asked_and_the_verdict_stands() -> None:
    bench = FakeBench()
    result = after_confirmation(bench, spent_s=299.0)
    assert bench.requests == []
    assert result.verdict is not None


def test_each_point_keeps_within_its_time() -> None:
    bench = FakeBench()
    result = after_confirmation(bench)
    points = len(result.loader_points) + len(result.transfer_points)
    assert points == 3
    assert result.stage_seconds["bounds"] <= 3.0 * points


def test_a_long_round_of_the_workers_is_timed_with_a_smaller_batch() -> None:
    """8 workers at 1600/s: a round of 512 each takes 2.6 s."""
    (timed, _) = after_confirmation(FakeBench(), replace(LOADER, batch_size=512)).loader_points
    assert timed.config.batch_size == 100
    assert 8 * timed.config.batch_size / 1600 <= 0.5


def test_workers_that_do_not_fit_are_no_way_out() -> None:
    in_flight = prefetch_bytes(LOADER, fake_facts(Surface()).sample_bytes)
    full = replace(fake_host(), shm_free_bytes=int(1.3 * in_flight))
    assert verdict_of(after_confirmation(FakeBench(), host=full)) == "host_memory"
    roomy = replace(fake_host(), shm_free_bytes=3 * in_flight)
    assert verdict_of(after_confirmation(FakeBench(), host=roomy)) != "host_memory"


@pytest.mark.parametrize(("num_workers", "counts"), [(12, True), (4, False)])
def test_trials_that_ran_out_of_memory_count_where_more_was_in_flight(num_workers: int, counts: bool) -> None:
    full = TrialFailure(kind="shm", phase="training", message="bus error")
    config = TrialConfig(loader=replace(LOADER, num_workers=num_workers), recipe=Recipe())
    trials = tuple(Trial(number=number, config=config, origin="search", failure=full) for number in range(2))
    assert (verdict_of(after_confirmation(FakeBench(), trials=trials)) == "host_memory") is counts


def verdict_of(result: TuningResult) -> str:
    assert result.verdict is not None
    return result.verdict.bound_by


def test_without_a_winner_there_is_nothing_to_judge() -> None:
    bench = FakeBench()
    found = Findings(TuneConfig(), fake_host(), GPU, bench.clock, "0")
    bounds(Run(bench, FakeSensor(bench.clock), bench.clock, found, Path(), fake_host), fake_facts(Surface()))
    assert (found.verdict, bench.requests, found.stage_seconds) == (None, [], {})
