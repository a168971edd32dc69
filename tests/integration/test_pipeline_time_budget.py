"""The end of the time budget: nothing goes on after it, nothing is claimed that was not confirmed, and why is said."""

from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune import tuner
from loadtune.errors import OutOfTimeError
from loadtune.records.config import TrialConfig, TuneConfig
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import TrainingRun, TrialFailure
from loadtune.records.result import TuningResult
from loadtune.records.telemetry import Progress
from loadtune.report.page.view import page_view
from loadtune.seams import Watch
from loadtune.testing import FakeBench

pytestmark = pytest.mark.usefixtures("study_in_memory")

STUCK = "dataset[41] (in a batch of 8: 7, 41, 3) did not return for 30 s, in a worker"


class SlowToBuild(FakeBench):
    def describe(self) -> WorkloadFacts:
        if not self.requests:
            self._spend(30.0, "build")
        return FakeBench.describe(self)


class WorkersHang(FakeBench):
    """Each run with workers hangs for 30 s."""

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        if not config.loader.num_workers:
            return super().time_training(config, window_s, watch)
        try:
            self._spend(30.0, "first batch")
        except OutOfTimeError:
            raise OutOfTimeError("The time budget ended.", phase="first batch", stuck=STUCK) from None
        return TrialFailure(kind="hang", phase="first batch", message=f"{STUCK}; the training process was ended.")


class EndsInConfirmation(FakeBench):
    """The time ends in this run of the confirmation, in which a sample hangs or not."""

    def ends_in(self, run: int, *, stuck: str | None = None) -> "EndsInConfirmation":
        self.left, self.stuck, self.confirming = run, stuck, False
        return self

    def listen(self, progress: Progress) -> None:
        self.confirming |= progress.stage == "confirm"

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        self.left -= self.confirming
        if not self.left:
            self.clock.spend(max(0.0, self.until_s - self.clock.now()))
            raise OutOfTimeError("The time budget ended.", phase="training", stuck=self.stuck)
        return super().time_training(config, window_s, watch)


@pytest.mark.parametrize("budget_s", [6.0, 20.0, 60.0])
@pytest.mark.parametrize("prepare_s", [1.0, 15.0])
def test_no_budget_is_exceeded_and_a_cut_run_claims_only_what_was_run_twice(
    tmp_path: Path, budget_s: float, prepare_s: float
) -> None:
    bench = FakeBench(prepare_s=prepare_s)
    begun = bench.clock.now()
    try:
        result: TuningResult | None = tune_fake(bench, tmp_path, TuneConfig(time_budget_s=budget_s))
    except OutOfTimeError:
        result = None
    assert bench.clock.now() - begun <= budget_s
    if result is not None and result.cut_short is not None:
        assert "time budget" in result.cut_short
        runs = {finalist.config: len(finalist.runs) for finalist in result.finalists}
        assert result.best is None or runs[result.best.config] >= 2


def test_a_workload_that_is_not_built_in_time_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(OutOfTimeError) as raised:
        tune_fake(SlowToBuild(), tmp_path, TuneConfig(time_budget_s=5.0))
    assert "The time budget of 5.0 s ended before the workload was built" in str(raised.value)
    assert "phase build" in str(raised.value)


def test_a_workload_that_takes_all_of_the_time_to_build_is_told_with_what_it_took(tmp_path: Path) -> None:
    with pytest.raises(OutOfTimeError, match=r"The workload took 30 s to build\. Give a larger --time-budget"):
        tune_fake(SlowToBuild(), tmp_path, TuneConfig(time_budget_s=30.5))


def test_time_that_hangs_took_is_not_asked_for_again(tmp_path: Path) -> None:
    bench = WorkersHang()
    begun = bench.clock.now()
    result = tune_fake(bench, tmp_path, TuneConfig(time_budget_s=30.0))
    assert bench.clock.now() - begun <= 30.0
    assert result.best is None
    assert result.cut_short is not None
    assert "dataset[41]" in result.cut_short
    assert "larger --time-budget" not in result.cut_short
    assert not any("larger --time-budget may find" in note for note in result.notes)


def test_hung_trials_end_a_search_early_and_that_is_said(tmp_path: Path) -> None:
    result = tune_fake(WorkersHang(), tmp_path, TuneConfig(time_budget_s=120.0))
    (told,) = [note for note in result.notes if note.startswith("The search ended early because")]
    assert "hung: dataset[41]" in told
    assert not any("larger --time-budget may find" in note for note in result.notes)


def test_a_trial_far_slower_than_predicted_leaves_time_for_an_answer(tmp_path: Path) -> None:
    """The queue of 32 batches of any other than the first would take minutes."""

    class Crawling(FakeBench):
        def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
            slow = config.loader.batch_size > 256
            surface = replace(self.surface, sample_s=0.1) if slow else self.surface
            self.surface, before = surface, self.surface
            try:
                return FakeBench.time_training(self, config, window_s, watch)
            finally:
                self.surface = before

    result = tune_fake(Crawling(), tmp_path, TuneConfig())
    assert any(trial.failure is not None and trial.failure.kind == "too_slow" for trial in result.trials)
    assert result.cut_short is None
    assert result.best is not None
    assert result.best.config.batch_size <= 256


@pytest.mark.parametrize("run", [1, 4])
def test_what_was_run_once_when_the_time_ended_is_no_answer(tmp_path: Path, run: int) -> None:
    bench = EndsInConfirmation().ends_in(run)
    result = tune_fake(bench, tmp_path, listener=bench.listen)
    assert result.cut_short is not None
    assert "ended in the confirmation. A larger --time-budget" in result.cut_short
    assert result.best is None


class EndsInThirdRound(EndsInConfirmation):
    """However many contestants there are, all of them ran twice when the first is asked for the third time."""

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        self.asked = [*getattr(self, "asked", []), *([config] if self.confirming else [])]
        self.left = 1 if self.asked.count(config) == 3 else 2
        return super().time_training(config, window_s, watch)


@pytest.mark.parametrize("stuck", [None, STUCK])
def test_what_was_run_twice_when_the_time_ended_is_the_answer(tmp_path: Path, stuck: str | None) -> None:
    bench = EndsInThirdRound(between_runs=0.2).ends_in(2, stuck=stuck)
    result = tune_fake(bench, tmp_path, TuneConfig(time_budget_s=600.0), listener=bench.listen)
    assert (stuck or "") in (result.cut_short or "")
    assert result.best is not None
    assert result.best.half_width_fraction is not None
    assert result.bottleneck is not None
    assert "fewer runs than planned" in (page_view(result).warning or "")


def test_a_run_cut_short_after_the_confirmation_does_not_claim_fewer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuner, "name_bottleneck", interrupt)
    result = tune_fake(FakeBench(), tmp_path, TuneConfig(num_trials=1, max_workers=0))
    assert result.cut_short is not None
    assert result.best is not None
    assert "The confirmation was complete before that." in (page_view(result).warning or "")


def test_a_run_that_took_longer_says_what_took_it_and_advises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = FakeBench()
    monkeypatch.setattr(tuner, "name_bottleneck", lambda *given: bench.clock.spend(200.0))
    result = tune_fake(bench, tmp_path)
    (told,) = [note for note in result.notes if note.startswith("The run took ")]
    assert "more than its time budget of 4 min 00 s. The longest stages were " in told
    assert "--time-budget" not in told
