"""The confirmation and the end of the time budget: what is claimed when time is short or others use the machine."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeSensor, FakeTraining, Surface, fake_host
from pipeline_rig import ALL_TRIALS, tune_fake

from loadtune import TuningResult
from loadtune.errors import OutOfTimeError
from loadtune.records.config import Precision, TrialConfig, TuneConfig, YourSettings
from loadtune.records.facts import Device
from loadtune.records.measurement import Measurement, Progress, Telemetry, TrainingRun, TrialFailure
from loadtune.records.result import Result
from loadtune.report.page import page_view
from loadtune.seams import Listener, Watch
from loadtune.store import LOG_FILE


def test_on_a_busy_machine_what_may_be_the_answer_is_run_twice_and_told_from_the_baseline(tmp_path: Path) -> None:
    """Others on the machine: workers take 7 s to start, so a run of the confirmation takes 12 s, and vary more."""
    config = TuneConfig(yours=YourSettings(batch_size=32), time_budget_s=360.0)
    result = tune_fake(FakeTraining(prepare_s=7.0, between_runs=0.065), tmp_path, config)
    runs = {finalist.config: len(finalist.runs) for finalist in result.finalists}
    assert min(runs[result.best.config], runs[result.yours]) >= 2
    assert result.best.speedup.holds(1.0) is False
    at_batch = [num_runs for each, num_runs in runs.items() if each.batch_size == 32]
    assert len(at_batch) >= 2
    assert min(at_batch) >= 2
    assert result.best_at_your_batch.config in runs
    assert result.best_at_your_batch.config != result.yours


NUM_CORES = fake_host().num_usable_cores


@dataclass
class BusySensor(FakeSensor):
    """`others(n)`: figures of what others took in the nth segment."""

    others: Callable[[int], dict[str, float]] = lambda number: {}
    num_asked: int = field(default=0)

    def between(self, start_s: float, end_s: float) -> Telemetry:
        self.num_asked += 1
        return replace(super().between(start_s, end_s), **self.others(self.num_asked))


def run_beside(folder: Path, others: Callable[[int], dict[str, float]]) -> tuple[Result, int]:
    """(The result, how many segments were run.)"""
    training = FakeTraining()
    sensor = BusySensor(training.clock, others=others)
    small = replace(ALL_TRIALS, max_batch_size=256)  # so that each trial may be repeated
    result = tune_fake(training, folder, small, sensor=sensor)
    return result, sensor.num_asked


def kept(result: Result) -> list[Measurement]:
    searched = [trial.measurement for trial in result.trials if trial.measurement is not None]
    return searched + [run for finalist in result.finalists for run in finalist.runs]


def about_others(result: Result) -> list[str]:
    return [note for note in result.notes if "other processes" in note.lower()]


def test_a_disturbed_segment_is_run_again_and_the_quiet_one_counts(tmp_path: Path) -> None:
    result, num_segments = run_beside(
        tmp_path, lambda number: {"others_cpu_cores": 0.5 * NUM_CORES if number in (2, 5) else 0.0}
    )
    assert num_segments == len(kept(result)) + 2
    assert all(measured.telemetry.others_cpu_cores == 0.0 for measured in kept(result))
    assert not about_others(result)


def test_a_repeat_that_fails_discards_nothing(tmp_path: Path) -> None:
    num_trained = 0

    def fail(config: TrialConfig) -> TrialFailure | None:
        nonlocal num_trained
        num_trained += 1
        return TrialFailure(kind="crash", phase="training", message="planted") if num_trained == 3 else None

    training = FakeTraining(fail=fail)
    sensor = BusySensor(
        training.clock, others=lambda number: {"others_cpu_cores": NUM_CORES / 2 if number == 2 else 0.0}
    )
    result = tune_fake(training, tmp_path, ALL_TRIALS, sensor=sensor)
    assert not any(trial.failure for trial in result.trials)
    assert num_trained == len(kept(result)) + 1


def test_a_machine_that_is_never_quiet_is_not_waited_for(tmp_path: Path) -> None:
    result, num_segments = run_beside(tmp_path, lambda number: {"gpu_others_sm_fraction": 0.3})
    assert num_segments == len(kept(result)) + 2, "two repeats in vain, and no further"
    assert len(about_others(result)) == 1


def test_where_they_leave_no_conclusion_this_is_said_in_the_answer_and_in_no_note(tmp_path: Path) -> None:
    training = FakeTraining(between_runs=1.5, seed=3)
    sensor = BusySensor(training.clock, others=lambda number: {"others_cpu_cores": 0.5 * NUM_CORES})
    result = tune_fake(training, tmp_path, ALL_TRIALS, sensor=sensor)
    said = " ".join(str(TuningResult.of(result)).split())
    assert said.startswith("Nothing is proven: ")
    assert " Other processes used up to 50% of the CPU cores in " in said
    assert said.count("Run again on a quieter machine") == 1
    assert not about_others(result)


STUCK = "dataset[41] (in a batch of 8: 7, 41, 3) did not return for 30 s, in a worker"


class WorkersHang(FakeTraining):
    """Each run with workers hangs for 30 s."""

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        if not config.loader.num_workers:
            return super().time_training(config, window_s, watch)
        try:
            self._spend(30.0, "first batch")
        except OutOfTimeError:
            raise OutOfTimeError("The time budget ended.", phase="first batch", stuck=STUCK) from None
        return TrialFailure(kind="hang", phase="first batch", message=f"{STUCK}; the training process was ended.")


def ends(when: Callable[[list[TrialConfig]], bool], stuck: str | None = None, **given: Any) -> tuple[Any, Listener]:
    """The time ends in a run of the confirmation, in which a sample hangs or not. `when` is told who was asked for."""
    asked, stages = list[TrialConfig](), set[str]()

    class Ends(FakeTraining):
        def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
            if "confirm" in stages:
                asked.append(config)
            if asked and when(asked):
                self.clock.spend(max(0.0, self.until_s - self.clock()))
                raise OutOfTimeError("The time budget ended.", phase="training", stuck=stuck)
            return super().time_training(config, window_s, watch)

    return Ends(**given), lambda progress: stages.add(progress.stage)


@pytest.mark.parametrize(("budget_s", "prepare_s"), [(6.0, 15.0), (20.0, 1.0), (60.0, 1.0), (60.0, 15.0)])
def test_no_budget_is_exceeded_and_a_cut_run_claims_only_what_was_run_twice(
    tmp_path: Path, budget_s: float, prepare_s: float
) -> None:
    training = FakeTraining(prepare_s=prepare_s)
    begun = training.clock()
    try:
        result: Result | None = tune_fake(training, tmp_path, TuneConfig(time_budget_s=budget_s))
    except OutOfTimeError:
        result = None
    assert training.clock() - begun <= budget_s
    if result is not None and result.cut_short is not None:
        assert "time budget" in result.cut_short
        runs = {finalist.config: len(finalist.runs) for finalist in result.finalists}
        assert result.best is None or runs[result.best.config] >= 2


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_on_a_slow_machine_calibration_leaves_time_to_confirm_the_baseline_and_another(
    tmp_path: Path, share: float
) -> None:
    """Two cores beside other programs: torch takes long to import, and a request to begin. ``share``: of the cores that
    is left by others."""
    rates: dict[Precision, float] = {"fp32": 6.0 * share, "bf16": 4.0 * share}
    surface = Surface(
        compute_per_s=rates, channels_last_gain=1.15, fused_gain=1.0, half_batch=1.0, sample_s=0.01 / share
    )
    host = fake_host(num_usable_cores=2, num_gpus=0)
    device = Device(kind="cpu", name="Laptop")
    training = FakeTraining(surface, prepare_s=1.0 / share, build_s=16.0, compute_s=2.0)
    shown = list[Progress]()
    result = tune_fake(training, tmp_path, TuneConfig(time_budget_s=60.0), shown.append, host, device)
    assert result.cut_short is None
    assert len({finalist.config for finalist in result.finalists} | {result.yours}) == len(result.finalists) >= 2
    assert any(note.startswith("bf16 was left out: timing fp32 took") for note in result.notes)
    assert {each.stage for each in shown if each.expected_s is None} == {"start", "calibrate"}


@pytest.mark.parametrize("budget_s", [30.0, 120.0])
def test_time_that_hangs_took_is_not_asked_for_again(tmp_path: Path, budget_s: float) -> None:
    training = WorkersHang()
    begun = training.clock()
    result = tune_fake(training, tmp_path, TuneConfig(time_budget_s=budget_s))
    assert training.clock() - begun <= budget_s
    told = result.cut_short or " ".join(note for note in result.notes if "ended early because" in note)
    assert "dataset[41]" in told
    assert "larger --time-budget" not in f"{told} {' '.join(result.notes)}"


def test_a_trial_far_slower_than_predicted_leaves_time_for_an_answer(tmp_path: Path) -> None:
    """The queue of 32 batches of any other than the first would take minutes."""

    class Crawling(FakeTraining):
        def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
            slow = config.loader.batch_size > 256
            surface = replace(self.surface, sample_s=0.1) if slow else self.surface
            self.surface, before = surface, self.surface
            try:
                return FakeTraining.time_training(self, config, window_s, watch)
            finally:
                self.surface = before

    result = tune_fake(Crawling(), tmp_path, TuneConfig())
    assert any(trial.failure is not None and trial.failure.kind == "too_slow" for trial in result.trials)
    assert result.cut_short is None
    assert result.best.config.batch_size <= 256


@pytest.mark.parametrize("run", [1, 4])
def test_what_was_run_once_when_the_time_ended_is_no_answer(tmp_path: Path, run: int) -> None:
    training, listen = ends(lambda asked: len(asked) == run)
    result = tune_fake(training, tmp_path, listener=listen)
    assert "ended in the confirmation. A larger --time-budget" in result.cut_short
    assert result.best is None


def test_what_was_run_twice_when_the_time_ended_is_the_answer(tmp_path: Path) -> None:
    """However many contestants there are, all of them ran twice when the first is asked for the third time."""
    training, listen = ends(lambda asked: asked.count(asked[-1]) == 3, STUCK, between_runs=0.2)
    result = tune_fake(training, tmp_path, TuneConfig(time_budget_s=600.0), listener=listen)
    assert STUCK in (result.cut_short or "")
    assert result.cut_short.endswith(f"The stacks are at the end of {tmp_path / LOG_FILE}")
    assert result.best.half_width_fraction is not None
    assert result.bottleneck is not None
    assert "fewer runs than planned" in (page_view(result)["warning"] or "")
