"""Remedies in a whole run over a fake training: which are tried, which are kept, and what stands when one fails."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fakes import FakeTraining, Surface

from loadtune.changes import CHANGES
from loadtune.errors import WorkloadError
from loadtune.records.config import TrialConfig, TuneConfig
from loadtune.records.loading import Examined, Loading
from loadtune.records.measurement import Progress, TrialFailure
from loadtune.records.result import Result, TriedRemedy, finalist_of
from loadtune.report.terminal import terminal_answer
from loadtune.run.state import read_run
from loadtune.store import load_result
from loadtune.units import rate_text
from tests.pipeline_rig import killed, resumed, runs_in, tune_fake

FLOATS = Loading(sample_s=3e-3, sample_cpu_s=3e-3, sample_bytes=602_120.0)
BYTES = Loading(sample_s=2.4e-3, sample_cpu_s=2.4e-3, sample_bytes=150_536.0)
UINT8 = Examined(name="uint8_transfer", before=FLOATS, after=BYTES, code="images = images.float()")
FETCH = Examined(name="batched_fetch", before=FLOATS, after=FLOATS, code="one call")


def training(**given) -> FakeTraining:
    """Pinning limits, so that fewer bytes help."""
    examined = {each.name: each for each in (UINT8, FETCH)}
    return FakeTraining(**({"examined": examined, "remedy_gains": {"uint8_transfer": 1.3}} | given))


def named(result: Result) -> dict[str, TriedRemedy]:
    return {each.name: each for each in result.remedies.tried}


def kept(result: Result) -> tuple[str, ...]:
    config = result.remedies.config
    return () if config is None else config.remedies


def test_a_remedy_that_gains_is_kept_and_stands_beside_the_best_configuration(tmp_path: Path) -> None:
    result = tune_fake(training(examined={"uint8_transfer": UINT8}), tmp_path)
    uint8 = named(result)["uint8_transfer"]
    assert uint8.predicted.value > 1.03
    assert 1.0 < uint8.gain.low < 1.3 < uint8.gain.high
    assert uint8.code == UINT8.code
    assert result.best.config.remedies == ()
    assert kept(result) == (uint8.name,)
    together = finalist_of(result.finalists, result.remedies.config)
    assert together.samples_per_s == pytest.approx(1.3 * result.best.samples_per_s, rel=0.1)


ALL = TuneConfig(remedies="all", time_budget_s=900.0, num_trials=3)


NOTHING = {"uint8_transfer": replace(UINT8, after=FLOATS)}
"""As many bytes, loaded as slowly."""


def test_what_is_predicted_to_gain_nothing_is_not_tried(tmp_path: Path) -> None:
    assert not named(tune_fake(training(examined=NOTHING), tmp_path))


TWO = {"uint8_transfer": 1.3, "batched_fetch": 1.1}


def test_a_combination_that_fails_leaves_the_shorter_one(tmp_path: Path) -> None:
    both = ("uint8_transfer", "batched_fetch")
    crash = TrialFailure(kind="crash", phase="training", message="no room")
    fails = training(remedy_gains=TWO, fail=lambda config: crash if config.remedies == both else None)
    result = tune_fake(fails, tmp_path, ALL)
    assert kept(result) == ("uint8_transfer",)


@pytest.mark.parametrize(("stage", "number"), [("changes", 4), ("confirm", 0)])
def test_a_resumed_run_goes_on_with_the_changes_that_it_had_examined(tmp_path: Path, stage: str, number: int) -> None:
    """Examined again on top of themselves they would gain nothing, and be lost."""
    quiet, config = {"noise": 0.0, "between_runs": 0.0, "remedy_gains": TWO}, replace(ALL, remedies="auto")
    (tmp_path / "whole").mkdir()
    whole = tune_fake(training(**quiet), tmp_path / "whole", config)
    killed(tmp_path, runs_in(stage, number), config, training(**quiet))
    assert any(trial.config.remedies for trial in read_run(tmp_path).trials)
    going_on = training(**quiet)
    after = resumed(tmp_path, replace(config, time_budget_s=600.0), going_on)
    assert [trial.config for trial in after.trials] == [trial.config for trial in whole.trials]
    assert not [request for request in going_on.requests if request[0] == "examine"]
    assert named(after)["uint8_transfer"].predicted == named(whole)["uint8_transfer"].predicted
    assert after.remedies.config == whole.remedies.config != after.best.config
    assert load_result(tmp_path).remedies == after.remedies


def test_the_most_promising_comes_first_and_all_that_gain_are_measured_together(tmp_path: Path) -> None:
    result = tune_fake(training(remedy_gains=TWO), tmp_path, ALL)
    together = result.remedies
    assert set(kept(result)) == {"uint8_transfer", "batched_fetch"}
    contestant = next(each for each in result.finalists if each.config.remedies)
    assert together.config == contestant.config
    assert together.gain.value == pytest.approx(1.3 * 1.1, rel=0.1)
    assert 1.2 < together.gain.low < 1.43


def test_a_remedy_that_does_not_keep_its_promise_is_shown_and_not_kept(tmp_path: Path) -> None:
    result = tune_fake(training(remedy_gains={"uint8_transfer": 0.8}), tmp_path)
    assert result.remedies.gain.value < 1.0
    assert result.remedies.config is None


def test_a_run_that_is_cut_short_tells_what_its_trials_showed_and_names_the_changes(tmp_path: Path) -> None:
    told = list[str]()

    def listen(progress: Progress) -> None:
        told.append(progress.message or "")
        if progress.stage == "confirm":
            raise KeyboardInterrupt

    result = tune_fake(training(examined={"uint8_transfer": UINT8}), tmp_path, listener=listen)
    said, title = " ".join(terminal_answer(result)), CHANGES["uint8_transfer"].title
    rate = rate_text(max(each.measurement.samples_per_s for each in result.trials if each.config.remedies))
    assert f"Changes of your code to try: {title}." in told
    assert f"With a change of your code ({title}): {rate} (one measurement, not confirmed) with batch" in said


@pytest.mark.parametrize("raises", [False, True])
def test_a_remedy_that_fails_is_named_and_the_answer_and_the_others_stand(tmp_path: Path, raises: bool) -> None:
    """It crashes, or makes a job that cannot be trained."""

    def fail(config: TrialConfig) -> TrialFailure | None:
        if "uint8_transfer" not in config.remedies:
            return None
        if raises:
            raise WorkloadError("it died")
        return TrialFailure(kind="crash", phase="training", message="it died")

    result = tune_fake(training(fail=fail, remedy_gains=TWO), tmp_path, ALL)
    assert result.best is not None
    assert result.cut_short is None
    assert named(result)["uint8_transfer"].gain is None
    assert "it died" in (named(result)["uint8_transfer"].reason or "")
    assert "batched_fetch" in named(result)


@dataclass(slots=True)
class Crashing(FakeTraining):
    """Examining one indexing call a batch kills the training process."""

    def examine(self, config, names):
        if "batched_fetch" in names:
            self.requests.append(("killed", len(names)))
            return TrialFailure(kind="crash", phase="remedies", message="The training process was ended by SIGSEGV.")
        return FakeTraining.examine(self, config, names)


def test_a_remedy_that_kills_the_training_process_while_it_is_examined_is_left_out_alone(tmp_path: Path) -> None:
    crashing = Crashing(examined={"uint8_transfer": UINT8}, remedy_gains={"uint8_transfer": 1.3})
    result = tune_fake(crashing, tmp_path)
    assert "uint8_transfer" in kept(result)
    assert "batched_fetch" not in named(result)
    assert sum(request == "killed" for request, _ in crashing.requests) == 2, "it is not examined again"


@pytest.mark.parametrize("where", ["offer", "job"])
def test_a_remedy_whose_own_code_crashes_is_a_note_and_the_answer_stands(
    tmp_path: Path, monkeypatch, where: str
) -> None:
    def crashes(*given):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(CHANGES["batched_fetch"], where, crashes, raising=False)
    result = tune_fake(training(), tmp_path, ALL)
    assert result.best is not None
    assert "Not all changes of the code were examined: ZeroDivisionError: planted." in result.notes


def test_the_end_of_the_time_budget_while_remedies_are_examined_is_a_note(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(FakeTraining, "examine", lambda self, config, names: self._spend(1e6, "remedies"))
    result = tune_fake(training(), tmp_path)
    assert result.best is not None
    assert result.cut_short is None
    assert any("changes of the code" in note for note in result.notes)
    assert not any("report page was not written" in note for note in result.notes)


def test_a_remedy_is_tried_with_the_precision_that_is_best_with_it(tmp_path: Path) -> None:
    """While pinning limits all precisions alike, the fastest one shows only with fewer bytes."""
    surface = Surface(
        compute_per_s={"fp32": 2300.0, "fp16": 4500.0, "bf16": 2000.0}, pinned_per_s=3300.0, sample_s=1 / 600
    )
    light = replace(BYTES, sample_s=1e-4, sample_cpu_s=1e-4, sample_bytes=1e4)
    result = tune_fake(training(surface=surface, examined={"uint8_transfer": replace(UINT8, after=light)}), tmp_path)
    assert {each.config.precision for each in result.finalists if each.config.remedies} == {"fp16"}
