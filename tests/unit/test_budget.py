"""What is left of a time budget, and how long a run is expected to take."""

from pathlib import Path

import pytest
from fakes import FakeClock, fake_host
from study_rig import RUN_S, trial

from loadtune.records.config import TuneConfig
from loadtune.records.facts import Device
from loadtune.records.result import Attempt
from loadtune.run.state import Budget, Journal, State

LAST_S = 4.0


def at(spent_s: float) -> Budget:
    """After so many seconds."""
    return Budget(FakeClock(1000.0 + spent_s), 100.0, 1000.0)


def test_what_is_left_and_what_of_it_may_be_measured_in() -> None:
    assert at(30.0).left_s == 70.0
    assert at(30.0).measuring_s == pytest.approx(70.0 - LAST_S)
    assert at(110.0).left_s == -10.0
    assert at(30.0).until(0.5) == 1065.0
    assert at(110.0).until(0.5) == 1110.0, "nothing is left to share"


@pytest.mark.parametrize(
    ("stage", "num_trials", "num_runs", "expected_s"),
    [
        ("calibrate", 0, 0, None),
        ("study", 0, 0, 800.0),  # nobody knows how long a trial lasts
        ("study", 1, 0, (5 + 9) * RUN_S),
        ("changes", 6, 0, 9 * RUN_S),
        ("confirm", 6, 7, 2 * RUN_S),
        ("confirm", 6, 20, RUN_S),
    ],
)
def test_how_long_a_run_is_expected_to_take_follows_from_how_long_its_trials_last(
    stage: str, num_trials: int, num_runs: int, expected_s: float | None
) -> None:
    def journal(left_s: float) -> Journal:
        state = State(TuneConfig(num_trials=6), fake_host(), Device(kind="cpu", name="CPU"), "")
        state.trials = [trial(number, 100.0) for number in range(num_trials)]
        one = trial(0, 100.0)
        state.confirmed = [Attempt(config=one.config, measurement=one.measurement)] * num_runs
        return Journal(state, Budget(FakeClock(0.0), left_s, 0.0), Path(), stage_name=stage)

    assert journal(800.0).expected_s == expected_s
    assert journal(5.0).expected_s == (None if expected_s is None else 5.0), "no more than is left"
