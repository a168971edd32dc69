"""The file of a run's study: what other tools find in it, also when a run was cut off; over a fake bench."""

from dataclasses import replace
from pathlib import Path

import optuna
from pipeline_rig import killed, resumed, tune_fake

from loadtune.records.config import TuneConfig
from loadtune.report.store import load_result
from loadtune.run_file import read_run
from loadtune.testing import FakeBench, Surface, fake_facts


def states(folder: Path) -> list[str]:
    study = optuna.load_study(study_name="loadtune", storage=f"sqlite:///{folder / 'study.db'}")
    return [trial.state.name for trial in study.trials]


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
    more = TuneConfig(num_trials=4)
    killed(tmp_path, "study", 2, more)
    assert "RUNNING" in states(tmp_path)
    before = read_run(tmp_path)
    assert len(before.trials) == 2
    bench = FakeBench(seed=1)
    result = resumed(tmp_path, more, bench=bench)
    assert "RUNNING" not in states(tmp_path)
    assert list(result.trials[:2]) == before.trials  # windows and all
    assert 2 < len(result.trials) <= 4
    assert {kind for kind, _ in bench.requests[:1]} == {"training"}  # nothing was probed again before the search ended
    assert list(result.ceilings) == before.ceilings
    assert any("was resumed, with 2 trials" in note for note in result.notes)
    assert load_result(tmp_path) == result


def test_a_resumed_run_searches_the_workers_that_it_searched_before(tmp_path: Path) -> None:
    """Where samples wait, how many workers are worth a trial depends on the time budget and on what a sample took."""
    waits = replace(fake_facts(Surface()), sample_cpu_s=Surface().sample_s / 20)
    longer = TuneConfig(num_trials=2, time_budget_s=600.0)
    tune_fake(FakeBench(facts=waits), tmp_path, longer)
    before = read_run(tmp_path).num_workers
    assert max(before) > 16, "more than there are cores"
    shorter = replace(longer, num_trials=3, time_budget_s=100.0)
    result = resumed(tmp_path, shorter, bench=FakeBench(facts=waits, seed=1))
    assert len(result.trials) >= 3
    assert {trial.config.loader.num_workers for trial in result.trials} <= {0, *before}
