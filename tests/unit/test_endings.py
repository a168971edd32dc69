"""Why the time budget ended a run, in words; the log that the words name is kept."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadtune.errors import OutOfTimeError
from loadtune.records.measurement import TrialFailure
from loadtune.report.store import LOG_FILE, run_folder
from loadtune.tuner import ended_text

STUCK = OutOfTimeError("", stuck="dataset[41] (in a batch of 16: 7, 41, …) did not return for 12 s, in a worker")


def ending(end: OutOfTimeError, *failures: TrialFailure) -> str:
    """Of a run that built its workload and measured nothing."""
    run = SimpleNamespace(
        config=SimpleNamespace(time_budget_s=20.0),
        folder=Path("run"),
        facts=object(),
        timed=(),
        failed=[(None, failure) for failure in failures],
        stage_seconds={"start": 12.0},
    )
    return ended_text(run, end)  # type: ignore[arg-type]


def test_a_sample_that_hangs_is_named_and_no_larger_budget_is_advised() -> None:
    text = ending(STUCK)
    assert "the time budget of 20 s ended: dataset[41] (in a batch of 16: " in text
    assert text.endswith(f"The stacks are at the end of {Path('run') / LOG_FILE}")
    assert "larger --time-budget" not in text


def test_trials_that_hung_are_told_and_no_larger_budget_is_advised() -> None:
    failure = TrialFailure(kind="hang", phase="first batch", message="dataset[41] did not return.")
    text = ending(OutOfTimeError("", phase="training"), failure)
    assert text == "the time budget of 20 s ended after 1 trial hung: dataset[41] did not return"


def test_a_larger_budget_is_advised_where_building_took_the_time() -> None:
    assert "building the workload took 12 s" in ending(OutOfTimeError("", phase="first"))


@pytest.mark.parametrize("end", [STUCK, OutOfTimeError("", phase="build")])
def test_the_log_is_kept_where_it_has_the_stacks(tmp_path: Path, end: OutOfTimeError) -> None:
    with suppress(OutOfTimeError), run_folder(None, tmp_path, "label") as folder:
        (folder / LOG_FILE).touch()
        raise end
    assert len(list(tmp_path.rglob(LOG_FILE))) == (end.stuck is not None)
