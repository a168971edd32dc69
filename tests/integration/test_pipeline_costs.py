"""What the winner costs at an epoch's end and at a checkpoint: timed where there are workers and time."""

from pathlib import Path

import pytest
from pipeline_rig import ALL_TRIALS, tune_fake

from loadtune.errors import BenchError
from loadtune.records import EpochCost, LoaderConfig, Progress, TrialFailure, TuneConfig
from loadtune.report.costs import cost_lines
from loadtune.testing import FakeBench

pytestmark = pytest.mark.usefixtures("study_in_memory")

SHM_FULL = TrialFailure(kind="shm", phase="epochs", message="/dev/shm ran full")


class Answering(FakeBench):
    answer: EpochCost | TrialFailure | None = None

    def time_epochs(self, loader: LoaderConfig, seconds: float) -> EpochCost | TrialFailure:
        if self.answer is None:
            raise BenchError("does not start any more")
        return self.answer


def test_new_workers_cost_at_least_what_fresh_loaders_took_where_there_was_no_time_for_them(tmp_path: Path) -> None:
    bench = Answering()
    bench.answer = EpochCost(loader=LoaderConfig(batch_size=64, num_workers=4), kept_s=(0.5,))
    lines = cost_lines(tune_fake(bench, tmp_path, ALL_TRIALS))
    assert any("0.5 s with persistent_workers, at least 1.0 s without" in line for line in lines), lines


@pytest.mark.parametrize(("max_workers", "spent_s"), [(0, 0.0), (None, 250.0)])
def test_nothing_is_asked_without_workers_or_without_time(
    tmp_path: Path, max_workers: int | None, spent_s: float
) -> None:
    bench = FakeBench()

    def listen(progress: Progress) -> None:
        if progress.stage == "costs":
            bench.clock.spend(spent_s)

    result = tune_fake(bench, tmp_path, TuneConfig(num_trials=5, max_workers=max_workers), listen)
    assert result.best is not None
    assert not {"epochs", "saving"} & {kind for kind, _ in bench.requests}


@pytest.mark.parametrize(("answer", "saved"), [(SHM_FULL, True), (None, False)])
def test_what_fails_is_left_out_and_the_winner_stands(tmp_path: Path, answer: TrialFailure | None, saved: bool) -> None:
    bench = Answering()
    bench.answer = answer
    result = tune_fake(bench, tmp_path, ALL_TRIALS)
    assert result.best is not None
    assert result.epoch_cost is None
    assert (result.saving_cost is not None) == saved
    assert any("does not start any more" in note for note in result.notes) != saved
