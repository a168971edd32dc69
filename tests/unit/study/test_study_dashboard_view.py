"""A study as others may look at it."""

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from study_rig import MEASURED_PER_S, begun_study

from loadtune.errors import ResultError
from loadtune.study.dashboard_view import LISTED_CONSTRAINTS, METRIC_NAMES, open_study


def test_every_kind_of_trial_is_shown_as_what_it_was(tmp_path: Path) -> None:
    begun_study(tmp_path)
    measured, infeasible, running = open_study(tmp_path / "study.db").get_all_trials(1)
    assert (measured.state, measured.value) == (TrialState.COMPLETE, MEASURED_PER_S)
    assert measured.system_attrs[LISTED_CONSTRAINTS] == [0.0]
    assert infeasible.state == TrialState.COMPLETE
    assert infeasible.system_attrs[LISTED_CONSTRAINTS] == [1.0]
    assert running.state == TrialState.RUNNING
    assert LISTED_CONSTRAINTS not in running.system_attrs


def test_optunas_own_views_see_the_same(tmp_path: Path) -> None:
    begun_study(tmp_path)
    shown = open_study(tmp_path / "study.db")
    study = optuna.load_study(study_name="loadtune", storage=shown)
    assert study.best_trial.number == 0
    assert shown.get_trial(study.trials[1]._trial_id) == study.trials[1]


@pytest.mark.parametrize(("objective", "unit"), [("samples-per-s", "samples/s"), ("samples-per-joule", "samples/J")])
def test_the_values_have_the_unit_of_what_was_searched_for(tmp_path: Path, objective: str, unit: str) -> None:
    begun_study(tmp_path, objective)
    assert open_study(tmp_path / "study.db").get_all_studies()[0].system_attrs[METRIC_NAMES] == [unit]


def test_what_cannot_run_is_never_the_best_beside_what_was_measured(tmp_path: Path) -> None:
    study, asked = begun_study(tmp_path)
    study.tell_measured(asked, 100.0)
    study.tell_infeasible(study.ask(), "too large")  # told with the worst value, which is the one above
    assert open_study(tmp_path / "study.db").get_best_trial(1).number == 0


def test_nothing_is_written_while_a_run_goes_on_writing(tmp_path: Path) -> None:
    study, asked = begun_study(tmp_path)
    shown, before = open_study(tmp_path / "study.db"), (tmp_path / "study.db").read_bytes()
    assert len(shown.get_all_trials(1)) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["study.db"]
    assert (tmp_path / "study.db").read_bytes() == before
    study.tell_measured(asked, 1000.0)
    assert shown.get_best_trial(1).value == 1000.0
    with pytest.raises(PermissionError):
        shown.set_trial_user_attr(1, "mine", 1)


def test_a_path_with_marks_of_urls_is_a_path(tmp_path: Path) -> None:
    folder = tmp_path / "what? 50% #1 {ü}"
    folder.mkdir()
    begun_study(folder)
    assert [path.name for path in folder.iterdir()] == ["study.db"]
    assert len(open_study(folder / "study.db").get_all_trials(1)) == 3


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "no such table"), (b"no study, but text\n" * 500, "not a database"), (None, "malformed|not a database")],
)
def test_a_damaged_file_is_told_with_what_to_do(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "study.db"
    begun_study(tmp_path)
    file.write_bytes(file.read_bytes()[:20_000] if content is None else content)
    with pytest.raises(ResultError, match=f"cannot be read as a study: .*({said}).*another run's folder"):
        open_study(file)


def test_a_study_that_did_not_begin_is_no_damage(tmp_path: Path) -> None:
    optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study.db'}")
    with pytest.raises(ResultError, match="no study yet"):
        open_study(tmp_path / "study.db")
