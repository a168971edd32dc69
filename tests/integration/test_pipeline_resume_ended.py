"""What is told of a run that is resumed and ended again, and of one that was ended before its search."""

from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_rig import ALL_TRIALS, resumed, tune_fake

from loadtune.errors import ResultError, UsageError
from loadtune.records import Fixed, Progress, TuneConfig, TuningResult, YourSettings
from loadtune.report.journal import newest_run, read_journal
from loadtune.report.store import RESULT_FILE, load_result, result_in
from loadtune.report.view import summary
from loadtune.seams import Listener
from loadtune.testing import FakeBench

MORE = replace(ALL_TRIALS, num_trials=8)
ANSWER = ("finalists", "best", "best_at_your_batch", "verdict", "epoch_cost", "loader_points", "transfer_points")


class Impatient(FakeBench):
    def describe(self):
        raise KeyboardInterrupt


def interrupt_at(stage: str) -> Listener:
    def listen(progress: Progress) -> None:
        if progress.stage == stage and (stage != "study" or progress.message):
            raise KeyboardInterrupt

    return listen


def answer(result: TuningResult) -> list[object]:
    return [getattr(result, name) for name in ANSWER]


@pytest.mark.parametrize("stage", ["start", "study", "confirm"])
def test_an_answer_stands_until_another_is_confirmed(tmp_path: Path, stage: str) -> None:
    config = replace(MORE, yours=YourSettings(batch_size=64))
    finished = tune_fake(FakeBench(), tmp_path, replace(config, num_trials=5))
    if stage == "start":
        cut = resumed(tmp_path, config, Impatient(), reopen=True)
    else:
        cut = resumed(tmp_path, config, reopen=True, listener=interrupt_at(stage))
    assert finished.best_at_your_batch is not None
    assert answer(cut) == answer(finished)
    assert cut.earlier_answer
    assert summary(cut).warning == ("Cut short: interrupted by Ctrl-C. What is confirmed is of before it was resumed.")
    assert set(finished.notes) <= set(cut.notes)
    kept = load_result(tmp_path)
    assert kept == (finished if stage == "start" else cut)


def test_what_is_confirmed_anew_takes_its_place(tmp_path: Path) -> None:
    tune_fake(FakeBench(), tmp_path, ALL_TRIALS)
    resumed(tmp_path, MORE, reopen=True, listener=interrupt_at("study"))
    before = load_result(tmp_path)
    result = resumed(tmp_path, MORE, FakeBench(seed=2))
    assert not result.earlier_answer
    assert result.best is not None
    assert before.best is not None
    assert result.best.samples_per_s != before.best.samples_per_s
    after = resumed(tmp_path, replace(MORE, num_trials=9), reopen=True, listener=interrupt_at("confirm"))
    assert after.best == result.best


def test_a_result_that_cannot_be_read_stands_in_nobodys_way(tmp_path: Path) -> None:
    tune_fake(FakeBench(), tmp_path, ALL_TRIALS)
    (tmp_path / RESULT_FILE).write_text("{")
    assert result_in(tmp_path) is None
    cut = resumed(tmp_path, MORE, reopen=True, listener=interrupt_at("study"))
    assert cut.best is None
    assert not cut.earlier_answer


def test_a_run_that_was_ended_before_its_search_has_one_trial(tmp_path: Path) -> None:
    cut = tune_fake(FakeBench(), tmp_path, None, interrupt_at("memory"))
    (trial,) = cut.trials
    assert cut.yours is not None
    assert cut.yours.loader == trial.config.loader
    assert cut.assumed
    kept = read_journal(tmp_path)
    assert kept.num_run == 1
    again = resumed(tmp_path, listener=interrupt_at("compute"))
    told = [note for note in again.notes if note.startswith("This run was resumed")]
    assert [note.partition(", ")[0] for note in told] == ["This run was resumed: 1 of its trials"]
    result = resumed(tmp_path, TuneConfig(num_trials=kept.num_run + 2))
    assert sum(trial.screened is None for trial in result.trials) == 3
    assert result.trials[0].measurement == trial.measurement


def test_a_run_that_is_resumed_often_says_so_once(tmp_path: Path) -> None:
    tune_fake(FakeBench(), tmp_path, TuneConfig(), interrupt_at("compute"))
    for stage in ("compute", "study"):
        resumed(tmp_path, listener=interrupt_at(stage))
    notes = resumed(tmp_path).notes
    assert sum(note.startswith("This run was resumed") for note in notes) == 1


def test_yours_is_the_best_so_far_while_memory_is_probed(tmp_path: Path) -> None:
    told: list[Progress] = []
    tune_fake(FakeBench(), tmp_path, ALL_TRIALS, told.append)
    assert all(progress.best_samples_per_s is None for progress in told if progress.stage == "recipe")
    assert all(progress.best_samples_per_s for progress in told if progress.stage == "memory")


def test_an_error_before_the_search_leaves_no_result(tmp_path: Path) -> None:
    """It would be the newest run, and hide one with an answer."""
    config = TuneConfig(
        yours=YourSettings(batch_size=1800), fix=(Fixed(name="batch_size", value=1800),), precisions=("fp32",)
    )
    with pytest.raises(UsageError, match="1800"):
        tune_fake(FakeBench(), tmp_path, config)
    assert read_journal(tmp_path).ahead is not None
    assert not (tmp_path / RESULT_FILE).exists()


def test_a_run_is_named_by_its_result_as_well(tmp_path: Path) -> None:
    tune_fake(FakeBench(), tmp_path, ALL_TRIALS)
    assert newest_run(tmp_path / RESULT_FILE) == newest_run(tmp_path) == tmp_path


def test_a_seed_of_search_and_workload_is_refused_once(tmp_path: Path) -> None:
    config = replace(ALL_TRIALS, seed=0, workload=replace(ALL_TRIALS.workload, seed=0))
    tune_fake(FakeBench(), tmp_path, config)
    with pytest.raises(ResultError) as refused:
        resumed(tmp_path, replace(config, seed=4, workload=replace(config.workload, seed=4)))
    assert str(refused.value).count("seed was 0 and is 4") == 1
