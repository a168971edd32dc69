"""What is told of a run that is resumed and ended again, and of one that was ended before its search."""

from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_rig import ALL_TRIALS, Impatient, finished, resumed, tune_fake

from loadtune import tuner
from loadtune.errors import ResultError, UsageError, WorkloadError
from loadtune.records.config import Fixed, TuneConfig, YourSettings
from loadtune.records.measurement import TrialFailure
from loadtune.records.result import TuningResult
from loadtune.records.telemetry import Progress
from loadtune.report.page.write import PAGE_FILE
from loadtune.report.store import RESULT_FILE, load_result
from loadtune.run_file import newest_run, read_run
from loadtune.seams import Listener
from loadtune.testing import FakeBench

pytestmark = pytest.mark.usefixtures("study_in_memory")

MORE = replace(ALL_TRIALS, num_trials=5)


def interrupt_at(stage: str) -> Listener:
    """Once; in the study behind its third trial or a later one."""
    interrupted: list[Progress] = []

    def listen(progress: Progress) -> None:
        is_late = stage != "study" or (progress.message and (progress.trial_number or 0) >= 3)
        if progress.stage == stage and is_late and not interrupted:
            interrupted.append(progress)
            raise KeyboardInterrupt

    return listen


def files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (RESULT_FILE, PAGE_FILE)}


def stands(result: TuningResult) -> bool:
    return any(f"is kept: {RESULT_FILE} and {PAGE_FILE} are unchanged." in note for note in result.notes)


@pytest.mark.parametrize("stage", ["start", "study", "confirm"])
def test_an_answer_stands_until_another_is_confirmed(tmp_path: Path, stage: str) -> None:
    finished(tmp_path)
    before, known = files(tmp_path), len(read_run(tmp_path).trials)
    if stage == "start":
        cut = resumed(tmp_path, MORE, Impatient(), reopen=True)
    else:
        cut = resumed(tmp_path, MORE, reopen=True, listener=interrupt_at(stage))
    assert cut.cut_short == "interrupted by Ctrl-C"
    assert cut.best is None
    assert stands(cut)
    assert files(tmp_path) == before
    assert (len(read_run(tmp_path).trials) > known) == (stage != "start")
    assert any("run.json has what was measured since" in note for note in cut.notes) == (stage != "start")
    result = resumed(tmp_path, MORE, FakeBench(seed=2), reopen=stage == "start")
    assert result.best is not None
    assert not stands(result)
    assert load_result(tmp_path) == result


def test_what_was_confirmed_anew_takes_its_place_whatever_ends_it_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    whole = finished(tmp_path)
    monkeypatch.setattr(tuner, "name_bottleneck", interrupt)
    cut = resumed(tmp_path, MORE, reopen=True)
    assert cut.cut_short is not None
    assert cut.best is not None
    assert cut.best != whole.best
    assert not stands(cut)
    assert load_result(tmp_path) == cut


def test_an_answer_stands_where_nothing_is_confirmed_any_more(tmp_path: Path) -> None:
    finished(tmp_path)
    before, planted = files(tmp_path), TrialFailure(kind="shm", phase="training", message="planted")
    result = resumed(tmp_path, MORE, FakeBench(fail=lambda config: planted), reopen=True)
    assert result.cut_short is None
    assert result.best is None
    assert stands(result)
    assert files(tmp_path) == before


def test_an_answer_stands_behind_an_error(tmp_path: Path) -> None:
    finished(tmp_path)
    before = files(tmp_path)
    broken = TrialFailure(kind="user_error", phase="training", message="sample 7 is broken")
    with pytest.raises(WorkloadError, match="sample 7"):
        resumed(tmp_path, MORE, FakeBench(fail=lambda config: broken), reopen=True)
    assert files(tmp_path) == before


@pytest.mark.parametrize("content", [None, "{"])
def test_a_result_that_cannot_be_read_stands_in_nobodys_way(tmp_path: Path, content: str | None) -> None:
    finished(tmp_path)
    (tmp_path / RESULT_FILE).unlink()
    if content is not None:
        (tmp_path / RESULT_FILE).write_text(content)
    cut = resumed(tmp_path, MORE, reopen=True, listener=interrupt_at("study"))
    assert not stands(cut)
    assert load_result(tmp_path) == cut


def test_a_run_that_was_ended_before_its_search_has_no_trial(tmp_path: Path) -> None:
    cut = tune_fake(FakeBench(), tmp_path, None, interrupt_at("calibrate"))
    assert cut.trials == ()
    assert cut.assumed
    again = resumed(tmp_path, listener=interrupt_at("calibrate"))
    assert again.assumed == cut.assumed
    told = [note for note in again.notes if note.startswith("This run was resumed")]
    assert [note.partition(" measured")[0] for note in told] == ["This run was resumed, with 0 trials"]
    assert len(resumed(tmp_path, TuneConfig(num_trials=2)).trials) == 2


def test_a_run_that_is_resumed_often_says_so_once(tmp_path: Path) -> None:
    tune_fake(FakeBench(), tmp_path, MORE, interrupt_at("calibrate"))
    notes = [resumed(tmp_path, MORE, listener=interrupt_at(stage)).notes for stage in ("study", "confirm")]
    notes.append(resumed(tmp_path, MORE).notes)
    told = [[note for note in each if note.startswith("This run was resumed")] for each in notes]
    assert [len(each) for each in told] == [1, 1, 1]
    assert told[0] != told[1] != told[2]


def test_an_error_before_the_search_leaves_no_result(tmp_path: Path) -> None:
    """It would be the newest run, and hide one with an answer."""
    config = TuneConfig(
        yours=YourSettings(batch_size=1800), fix=(Fixed(name="batch_size", value=1800),), precisions=("fp32",)
    )
    with pytest.raises(UsageError, match="1800"):
        tune_fake(FakeBench(), tmp_path, config)
    assert read_run(tmp_path).compute_points
    assert not (tmp_path / RESULT_FILE).exists()


def test_a_run_is_named_by_its_result_as_well(tmp_path: Path) -> None:
    run = tmp_path / "lab" / "run"
    run.mkdir(parents=True)
    tune_fake(FakeBench(), run, ALL_TRIALS)
    assert newest_run(run / RESULT_FILE) == newest_run(tmp_path) == run
    with pytest.raises(ResultError, match="holds no run to resume"):
        newest_run(tmp_path / RESULT_FILE)


def test_a_seed_of_search_and_workload_is_refused_once(tmp_path: Path) -> None:
    config = replace(ALL_TRIALS, seed=0, workload=replace(ALL_TRIALS.workload, seed=0))
    tune_fake(FakeBench(), tmp_path, config)
    with pytest.raises(ResultError) as refused:
        resumed(tmp_path, replace(config, seed=4, workload=replace(config.workload, seed=4)))
    assert str(refused.value).count("seed was 0 and is 4") == 1
