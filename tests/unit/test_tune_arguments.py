"""What a caller of `tune` can mend is said before anything is measured or written."""

from pathlib import Path
from typing import Any

import pytest

from loadtune import TuneConfig, YourSettings, tune
from loadtune.bench import BenchClient
from loadtune.errors import UsageError, WorkloadError
from loadtune.records.telemetry import Progress


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"time_budget_s": -1}, "time_budget_s is -1"),
        ({"num_trials": 0}, "num_trials is 0"),
        (
            {"yours": YourSettings(batch_size=64), "max_batch_size": 32},
            r"YourSettings\(.* is 64, .* max_batch_size 32",
        ),
    ],
)
def test_numbers_out_of_range_are_refused(wrong, words, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        tune(config=TuneConfig(**wrong, out=str(tmp_path / "out")))
    assert list(tmp_path.iterdir()) == []


def test_a_step_beside_precisions_is_refused_in_pythons_names(tmp_path: Path) -> None:
    config = TuneConfig(precisions=("fp32",), out=str(tmp_path / "out"))
    with pytest.raises(UsageError, match=r"step=\.\.\. is given together with TuneConfig\(precisions=\.\.\.\)"):
        tune(lambda: None, step=lambda device: None, config=config)  # type: ignore[arg-type,return-value]


@pytest.fixture
def without_bench(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(BenchClient, "start", lambda self: None)
    return monkeypatch


def test_a_run_that_fails_leaves_no_folder(tmp_path: Path, without_bench: pytest.MonkeyPatch) -> None:
    def fails(*given: object, **others: object) -> None:
        raise WorkloadError("the dataset is empty")

    without_bench.setattr("loadtune.tuner.tune_on", fails)
    with pytest.raises(WorkloadError, match="is empty"):
        tune(config=TuneConfig(device="cpu", out=str(tmp_path / "out")))
    assert list(tmp_path.iterdir()) == []


def test_without_a_listener_warnings_and_the_folder_are_on_stderr(
    tmp_path: Path, without_bench: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tells(*given: object, **others: object) -> str:
        listener: Any = given[7]
        listener(Progress(stage="memory", message="little memory is left", warning=True, left_s=1.0))
        listener(Progress(stage="memory", message="fp32 fits", left_s=1.0))
        return "a result"

    without_bench.setattr("loadtune.tuner.tune_on", tells)
    config = TuneConfig(device="cpu", out=str(tmp_path / "out"))
    assert tune(config=config, folder=tmp_path) == "a result"
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.splitlines() == [
        "loadtune: warning: little memory is left",
        f"loadtune: the result and its report are in {tmp_path}",
    ]
    tune(config=config, folder=tmp_path, listener=lambda progress: None)
    assert capsys.readouterr().err == ""
