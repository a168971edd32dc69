"""The stage after the confirmation: timed where there are workers and time, and never in the way of the answer."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pipeline_rig import GPU

from loadtune.errors import BenchError
from loadtune.findings import Findings
from loadtune.records import (
    ComputePoint,
    EpochCost,
    Finalist,
    LoaderConfig,
    Measurement,
    Recipe,
    RecipeChoice,
    TrialConfig,
    TrialFailure,
    TuneConfig,
    TuningResult,
    Window,
    Winner,
)
from loadtune.report.costs import cost_lines
from loadtune.stages import Run, costs
from loadtune.testing import FakeBench, FakeSensor, fake_facts, fake_host


def after_confirmation(
    bench: FakeBench,
    *,
    num_workers: int = 4,
    spent_s: float = 0.0,
    compiled: bool = False,
) -> TuningResult:
    """A winner was found after so many seconds; what the stage adds."""
    found = Findings(TuneConfig(), fake_host(), GPU, bench.clock, "0")
    found.facts = fake_facts(bench.surface)
    point = FakeBench().time_compute(Recipe(compile=True), 256, 1.0)
    assert isinstance(point, ComputePoint)
    found.recipes = (RecipeChoice(chosen=point.recipe, points=(point,)),)
    config = TrialConfig(loader=LoaderConfig(batch_size=64, num_workers=num_workers), recipe=Recipe(compile=compiled))
    window = Window(start_s=0.0, seconds=1.0, num_steps=10, num_samples=640, wait_s=0.5)
    measured = Measurement(windows=(window,), first_batch_s=1.0, seconds=2.0)
    found.finalists = (Finalist(config=config, runs=(measured, measured)),)
    found.best = Winner(config=config, samples_per_s=640.0, half_width_fraction=None, speedup=None)
    bench.clock.spend(spent_s)
    costs(Run(bench, FakeSensor(bench.clock), bench.clock, found, Path(), fake_host))
    return found.result()


def test_both_are_timed_with_the_winners_loader() -> None:
    bench = FakeBench()
    result = after_confirmation(bench)
    assert bench.requests == [("epochs", 64), ("saving", 64)]
    assert result.epoch_cost is not None
    assert result.epoch_cost.loader.num_workers == 4
    assert result.saving_cost is not None
    assert "costs" in result.stage_seconds


def test_new_workers_cost_at_least_what_fresh_loaders_took_where_there_was_no_time_for_them() -> None:
    class Slow(FakeBench):
        def time_epochs(self, loader: LoaderConfig, seconds: float) -> EpochCost | TrialFailure:
            return EpochCost(loader=loader, kept_s=(0.5,))

    lines = cost_lines(after_confirmation(Slow()))
    assert any("0.5 s with persistent_workers, at least 1.0 s without" in line for line in lines), lines


@pytest.mark.parametrize(("num_workers", "spent_s"), [(0, 0.0), (4, 295.0)])
def test_nothing_is_asked_without_workers_or_without_time(num_workers: int, spent_s: float) -> None:
    bench = FakeBench()
    result = after_confirmation(bench, num_workers=num_workers, spent_s=spent_s)
    assert bench.requests == []
    assert result.epoch_cost is None
    assert result.saving_cost is None


@pytest.mark.parametrize(("spent_s", "saved"), [(240.0, True), (255.0, False)])
def test_a_winner_that_has_to_be_compiled_again_takes_that_much_longer(spent_s: float, saved: bool) -> None:
    """A resumed run's bench is fresh; 40 s for a checkpoint's figure have to be there."""
    bench = FakeBench()
    started = bench.clock.now()
    result = after_confirmation(bench, spent_s=spent_s, compiled=True)
    assert (result.saving_cost is not None) is saved
    assert bench.clock.now() - started < 300.0


def refuses(loader: LoaderConfig, seconds: float) -> EpochCost | TrialFailure:
    return TrialFailure(kind="shm", phase="epochs", message="/dev/shm ran full")


def dies(loader: LoaderConfig, seconds: float) -> EpochCost | TrialFailure:
    raise BenchError("does not start any more")


@pytest.mark.parametrize(("answer", "saved"), [(refuses, True), (dies, False)])
def test_what_fails_is_left_out_and_the_winner_stands(
    answer: Callable[[LoaderConfig, float], EpochCost | TrialFailure], saved: bool
) -> None:
    class Failing(FakeBench):
        def time_epochs(self, loader: LoaderConfig, seconds: float) -> EpochCost | TrialFailure:
            return answer(loader, seconds)

    result = after_confirmation(Failing())
    assert result.best is not None
    assert result.epoch_cost is None
    assert (result.saving_cost is not None) == saved
