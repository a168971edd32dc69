"""A kept study as others may look at it: nothing is written, and every trial says what it really was.

In: a run's ``study.db``, also while the run puts newer ones in its place. Out: a storage as Optuna's tools take one.
optuna-dashboard (0.21) looks for feasibility where Optuna before 5 kept it, so it is put there as well.
"""

import copy
import sqlite3
from collections.abc import Container
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from optuna.storages import BaseStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.pool import NullPool

from loadtune.errors import ResultError
from loadtune.records import SCORE_UNITS
from loadtune.study.optuna_study import OBJECTIVE

if TYPE_CHECKING:
    from optuna.study._frozen import FrozenStudy

LISTED_CONSTRAINTS = "constraints"
"""A trial's system attribute, a list: where Optuna before 5 kept constraints and where optuna-dashboard looks."""

METRIC_NAMES = "study:metric_names"
"""A study's system attribute, as Optuna's own ``set_metric_names`` writes it."""


def open_study(file: Path) -> "ShownStudy":
    """The study in this file, for reading alone. Raises ResultError where it cannot be read."""
    _check(file)
    try:
        # A connection for each look: a run puts a new file in this one's place.
        kept = {"creator": lambda: _connected(file), "poolclass": NullPool}
        return ShownStudy(RDBStorage("sqlite://", engine_kwargs=kept, skip_table_creation=True))
    except RuntimeError as error:
        raise ResultError(f"{file} was written with another Optuna: {error}") from error


class ShownStudy(BaseStorage):
    """Optuna's storage without its writing half; trials are shown by `shown`."""

    def __init__(self, kept: RDBStorage) -> None:
        self._kept = kept

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Fresh from the file each time, so `deepcopy` has nothing to protect."""
        trials = [shown(trial) for trial in self._kept.get_all_trials(study_id, deepcopy=False)]
        return [trial for trial in trials if states is None or trial.state in states]

    def get_trial(self, trial_id: int) -> FrozenTrial:
        return shown(self._kept.get_trial(trial_id))

    def get_best_trial(self, study_id: int) -> FrozenTrial:
        """The best that was measured; one that does not run only where there is no other."""
        complete = self.get_all_trials(study_id, states=(TrialState.COMPLETE,))
        if not complete:
            raise ValueError("No trial was measured yet.")
        return max(complete, key=lambda trial: (_is_feasible(trial), trial.value))

    def get_all_studies(self) -> "list[FrozenStudy]":
        """With the unit of what was searched for, which otherwise reads "Objective 0"; so does what kept none."""
        studies = self._kept.get_all_studies()
        for study in studies:
            kept = study.user_attrs.get(OBJECTIVE)
            units = [unit for objective, unit in SCORE_UNITS.items() if objective == kept]
            if units:
                study.system_attrs = {**study.system_attrs, METRIC_NAMES: units}
        return studies

    def get_study_id_from_name(self, study_name: str) -> int:
        return self._kept.get_study_id_from_name(study_name)

    def get_study_name_from_id(self, study_id: int) -> str:
        return self._kept.get_study_name_from_id(study_id)

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return self._kept.get_study_directions(study_id)

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return self._kept.get_study_user_attrs(study_id)

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return self._kept.get_study_system_attrs(study_id)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise PermissionError("This study is shown and not written to.")

    create_new_study = delete_study = set_study_user_attr = set_study_system_attr = _refuse
    create_new_trial = set_trial_param = set_trial_state_values = set_trial_intermediate_value = _refuse
    set_trial_user_attr = set_trial_system_attr = _refuse


def shown(trial: FrozenTrial) -> FrozenTrial:
    """With its constraints where optuna-dashboard reads them."""
    trial = copy.copy(trial)
    if trial.constraints:
        trial.system_attrs = {**trial.system_attrs, LISTED_CONSTRAINTS: list(trial.constraints.values())}
    return trial


def _is_feasible(trial: FrozenTrial) -> bool:
    return all(excess <= 0 for excess in trial.constraints.values())


def _connected(file: Path) -> sqlite3.Connection:
    """SQLite itself refuses to write, and makes no file beside it. SQLAlchemy hands it between threads."""
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)


def _check(file: Path) -> None:
    """Whole, and with a study in it; in SQLite's own words where it is not."""
    try:
        with closing(_connected(file)) as database:
            problem = next((said for (said,) in database.execute("PRAGMA quick_check") if said != "ok"), None)
            studies = database.execute("SELECT study_id FROM studies").fetchall()
    except sqlite3.Error as error:
        problem = str(error)
    if problem is not None:
        raise ResultError(
            f"{file} cannot be read as a study: {problem}. It takes the study.db of a run as loadtune wrote it."
            " Name another run's folder; where a run was killed as it wrote, `loadtune run --resume` mends it."
        )
    if not studies:
        raise ResultError(f"{file} holds no study yet. The search begins after the probes: try again in a moment.")
