"""What the winner's workers cost a checkpoint: timed where there are workers and time."""

from pathlib import Path

import pytest
from pipeline_rig import ALL_TRIALS, tune_fake

from loadtune.errors import BenchError
from loadtune.records import Progress, SavingCost, TrialConfig, TrialFailure, TuneConfig
from loadtune.testing import FakeBench

pytestmark = pytest.mark.usefixtures("study_in_memory")


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
    assert "saving" not in {kind for kind, _ in bench.requests}


@pytest.mark.parametrize("starts", [True, False])
def test_what_fails_is_left_out_and_the_winner_stands(tmp_path: Path, starts: bool) -> None:
    class Failing(FakeBench):
        def time_saving(self, config: TrialConfig, seconds: float) -> SavingCost | TrialFailure:
            if starts:
                return TrialFailure(kind="shm", phase="saving", message="/dev/shm ran full")
            raise BenchError("does not start any more")

    shown: list[str] = []
    result = tune_fake(Failing(), tmp_path, ALL_TRIALS, lambda progress: shown.append(progress.message or ""))
    assert result.best is not None
    assert result.saving_cost is None
    assert any(("/dev/shm ran full" if starts else "does not start any more") in message for message in shown)
