"""The search as an Optuna study: what it is asked and told, and what of it other tools read."""

from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from study_rig import trial
from test_search_next import BASELINE, JOB, SPACE, SURFACE

from loadtune.decide.search import Next, Search
from loadtune.records.config import TrialConfig
from loadtune.records.result import Trial
from loadtune.run.sampler import SearchStudy, ThroughputSampler


def tried(config: TrialConfig, number: int, predicted: Next | None = None) -> Trial:
    ran = trial(number, SURFACE.training_rate(config), config)
    return replace(ran, predicted=predicted and predicted.predicted)


def test_the_users_settings_come_first_and_then_what_the_model_proposes(tmp_path: Path) -> None:
    search = Search(job=JOB, space=SPACE, yours=BASELINE)
    sampler = ThroughputSampler(search)
    study = SearchStudy(SPACE, sampler)
    asked = list[TrialConfig]()
    for number in range(4):
        upcoming = sampler.upcoming()
        assert isinstance(upcoming, Next)
        asked.append(study.ask(search.first))
        assert asked[-1] == upcoming.config
        search.trials.append(tried(asked[-1], number, upcoming))
        study.tell(search.trials[-1])
    assert asked[0] == BASELINE
    assert len(set(asked)) == 4
    study.write(tmp_path / "study.db")
    stored = optuna.load_study(study_name="loadtune", storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert [each.params for each in stored.trials] == [SPACE.point(config) for config in asked]
    assert stored.best_value == pytest.approx(max(each.measurement.score for each in search.trials if each.measurement))
    assert "predicted_low" in stored.trials[1].user_attrs
    again = SearchStudy(SPACE, ThroughputSampler(search), search.trials)
    assert again.ask(search.first) not in asked, "they are known"


@pytest.mark.parametrize("make", [optuna.samplers.RandomSampler, optuna.samplers.TPESampler])
def test_another_sampler_can_take_the_models_place(make: type[optuna.samplers.BaseSampler]) -> None:
    study = SearchStudy(SPACE, make(seed=1))
    for number in range(12):
        config = study.ask(BASELINE if number == 0 else None)
        assert (config == BASELINE) == (number == 0)
        study.tell(tried(SPACE.nearest(config), number))


def test_what_failed_and_what_the_space_lacks_are_failed_trials(tmp_path: Path) -> None:
    beyond = replace(BASELINE, loader=replace(BASELINE.loader, batch_size=48))
    study = SearchStudy(SPACE, optuna.samplers.RandomSampler(), known=[trial(0, None, BASELINE), tried(beyond, 1)])
    study.write(tmp_path / "study.db")
    failed, lacking = optuna.load_study(study_name="loadtune", storage=f"sqlite:///{tmp_path / 'study.db'}").trials
    assert {failed.state, lacking.state} == {optuna.trial.TrialState.FAIL}
    assert failed.user_attrs["failure"] == "out of memory"
    assert failed.params == SPACE.point(BASELINE)
    assert not lacking.params
