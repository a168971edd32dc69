"""Other processes on the cores or the GPU: their segments are run again, and what stays disturbed is said."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pipeline_rig import ALL_TRIALS, tune_fake

from loadtune.records.config import TrialConfig
from loadtune.records.measurement import Measurement, TrialFailure
from loadtune.records.result import TuningResult
from loadtune.records.telemetry import Telemetry
from loadtune.testing import FakeBench, FakeSensor, fake_host

pytestmark = pytest.mark.usefixtures("study_in_memory")

NUM_CORES = fake_host().num_usable_cores


@dataclass
class BusySensor(FakeSensor):
    """`others(n)`: figures of what others took in the nth segment."""

    others: Callable[[int], dict[str, float]] = lambda number: {}
    num_asked: int = field(default=0)

    def between(self, start_s: float, end_s: float) -> Telemetry:
        self.num_asked += 1
        return replace(super().between(start_s, end_s), **self.others(self.num_asked))


def run_beside(folder: Path, others: Callable[[int], dict[str, float]]) -> tuple[TuningResult, int]:
    """(The result, how many segments were run.)"""
    bench = FakeBench()
    sensor = BusySensor(bench.clock, others=others)
    small = replace(ALL_TRIALS, max_batch_size=256)  # so that each trial may be repeated
    result = tune_fake(bench, folder, small, sensor=sensor)
    return result, sensor.num_asked


def kept(result: TuningResult) -> list[Measurement]:
    searched = [trial.measurement for trial in result.trials if trial.measurement is not None]
    return searched + [run for finalist in result.finalists for run in finalist.runs]


def num_kept(result: TuningResult) -> int:
    return len(kept(result))


def about_others(result: TuningResult) -> list[str]:
    return [note for note in result.notes if "other processes" in note.lower()]


def test_a_quiet_machine_repeats_nothing_and_says_nothing(tmp_path: Path) -> None:
    result, num_segments = run_beside(tmp_path, lambda number: {"others_cpu_cores": 0.09 * NUM_CORES})
    assert num_segments == num_kept(result)
    assert about_others(result) == []


def test_a_disturbed_segment_is_run_again_and_the_quiet_one_counts(tmp_path: Path) -> None:
    result, num_segments = run_beside(
        tmp_path, lambda number: {"others_cpu_cores": 0.5 * NUM_CORES if number in (2, 5) else 0.0}
    )
    assert num_segments == num_kept(result) + 2
    assert all(measured.telemetry.others_cpu_cores == 0.0 for measured in kept(result))
    (said,) = about_others(result)
    assert said == (
        "2 measurements were repeated, because other processes used 10% or more of the CPU cores or of the GPU "
        "meanwhile."
    )


def test_a_repeat_that_fails_discards_nothing(tmp_path: Path) -> None:
    num_trained = 0

    def fail(config: TrialConfig) -> TrialFailure | None:
        nonlocal num_trained
        num_trained += 1
        return TrialFailure(kind="crash", phase="training", message="planted") if num_trained == 3 else None

    bench = FakeBench(fail=fail)
    sensor = BusySensor(bench.clock, others=lambda number: {"others_cpu_cores": NUM_CORES / 2 if number == 2 else 0.0})
    result = tune_fake(bench, tmp_path, ALL_TRIALS, sensor=sensor)
    assert not any(trial.failure for trial in result.trials)
    assert [trial.measurement.repeated for trial in result.trials[:3] if trial.measurement] == [False, True, False]


def test_a_machine_that_is_never_quiet_is_not_waited_for(tmp_path: Path) -> None:
    result, num_segments = run_beside(tmp_path, lambda number: {"gpu_others_sm_fraction": 0.3})
    assert num_segments == num_kept(result) + 2, "two repeats in vain, and no further"
    repeated, disturbed = about_others(result)
    assert repeated.startswith("2 measurements were repeated")
    num_runs = sum(len(finalist.runs) for finalist in result.finalists)
    assert disturbed == (
        f"Other processes used up to 30% of the GPU in {num_runs} of the {num_runs} runs of the confirmation. The true "
        "throughput may be higher. Run again on a quiet machine."
    )


def test_after_a_quiet_repeat_segments_are_repeated_again(tmp_path: Path) -> None:
    """Every other one is disturbed, so each repeat is a quiet one."""
    result, num_segments = run_beside(
        tmp_path, lambda number: {"others_cpu_cores": NUM_CORES / 2 if number % 2 else 0.0}
    )
    assert num_segments == 2 * num_kept(result)
