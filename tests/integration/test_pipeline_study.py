"""The file of a run's study: what other tools find in it, also when a run was cut off; over a fake bench."""

from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from pipeline_rig import ALL_TRIALS, Killed, killed, resumed, tune_fake

from loadtune.records import TuneConfig, YourSettings
from loadtune.report.journal import read_journal
from loadtune.report.store import load_result
from loadtune.study.loop import Asked
from loadtune.study.optuna_study import OptunaStudy
from loadtune.testing import FakeBench, Surface, fake_facts


def states(folder: Path) -> list[str]:
    study = optuna.load_study(study_name="loadtune", storage=f"sqlite:///{folder / 'study.db'}")
    return [trial.state.name for trial in study.trials]


def told_values(folder: Path) -> list[float | None]:
    study = optuna.load_study(study_name="loadtune", storage=f"sqlite:///{folder / 'study.db'}")
    return [trial.value for trial in study.trials]


def test_the_study_is_kept_for_other_tools(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(), tmp_path)
    stored = optuna.load_study(study_name="loadtune", storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert len(stored.trials) >= len(result.trials)
    assert all(t.state == optuna.trial.TrialState.COMPLETE for t in stored.trials)
    assert {"batch_size", "num_workers", "pin_memory", "precision"} <= set(stored.trials[0].params)
    assert {"origin", "feasible"} <= set(stored.trials[0].user_attrs)
    proposed = [trial.user_attrs for trial in stored.trials if trial.user_attrs["origin"] == "search"]
    assert all(attrs["predicted_low"] < attrs["predicted"] < attrs["predicted_high"] for attrs in proposed)


def test_a_run_killed_in_the_study_loses_the_running_trial_alone(tmp_path: Path) -> None:
    killed(tmp_path, "study", 4)
    assert "RUNNING" in states(tmp_path)
    before = read_journal(tmp_path)
    run = before.trials
    assert len(run) == 4
    bench = FakeBench(seed=1)
    result = resumed(tmp_path, bench=bench)
    assert "RUNNING" not in states(tmp_path)
    assert result.trials[: len(before.trials)] == before.trials  # windows and all
    assert 4 < len(result.trials) <= TuneConfig().num_trials
    assert {kind for kind, _ in bench.requests[:1]} == {"training"}  # nothing was probed again before the search ended
    assert list(result.ceilings) == list(before.probed.ceilings)
    assert any("was resumed, with 4 trials" in note for note in result.notes)
    assert load_result(tmp_path) == result


def test_what_was_measured_and_not_told_is_told_later(tmp_path: Path) -> None:
    """The journal is written first; a crash may come before the study hears of it."""

    class Untold(OptunaStudy):
        def tell_measured(self, asked: Asked, samples_per_s: float, seen=None) -> None:
            if asked.number >= 3:
                raise Killed
            super().tell_measured(asked, samples_per_s, seen)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("loadtune.study.optuna_study.OptunaStudy", Untold)
        with pytest.raises(Killed):
            tune_fake(FakeBench(), tmp_path)
    last = read_journal(tmp_path).trials[-1]
    assert states(tmp_path)[last.number] == "RUNNING"
    result = resumed(tmp_path)
    assert last.measurement is not None
    assert states(tmp_path)[last.number] == "FAIL"
    assert told_values(tmp_path).count(last.measurement.score("samples-per-s")) == 1
    assert [trial.config for trial in result.trials].count(last.config) == 1


def test_a_study_that_was_lost_is_rebuilt_with_the_baseline(tmp_path: Path) -> None:
    """Its workers end with each epoch, which no other configuration of the space does."""
    config = replace(ALL_TRIALS, yours=YourSettings(num_workers=4))
    finished = tune_fake(FakeBench(), tmp_path, config)
    (tmp_path / "study.db").unlink()
    resumed(tmp_path, replace(config, num_trials=ALL_TRIALS.num_trials + 1))
    assert finished.trials[0].origin == "yours"
    assert states(tmp_path)[0] == "COMPLETE"


def test_a_resumed_run_searches_the_workers_that_it_searched_before(tmp_path: Path) -> None:
    """Where samples wait, how many workers are worth a trial depends on the time budget and on what a sample took."""
    waits = replace(fake_facts(Surface()), sample_cpu_s=Surface().sample_s / 20)
    longer = TuneConfig(num_trials=2, time_budget_s=600.0)
    tune_fake(FakeBench(facts=waits), tmp_path, longer)
    before = read_journal(tmp_path).probed.num_workers
    assert max(before) > 16, "more than there are cores"
    shorter = replace(longer, num_trials=4, time_budget_s=100.0)
    result = resumed(tmp_path, shorter, bench=FakeBench(facts=waits, seed=1))
    assert len(result.trials) >= 3
    assert {trial.config.loader.num_workers for trial in result.trials} <= {0, *before}
