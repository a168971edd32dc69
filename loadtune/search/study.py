"""The trials as an Optuna study, for other tools. It proposes nothing.

Its storage is a database in memory. A copy of it is the file ``study.db``: whoever looks at that file, locks it or
damages it is in nobody's way. optuna-dashboard shows that file.
"""

import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial
from sqlalchemy.pool import StaticPool

from loadtune.records.result import Trial
from loadtune.report.store import write_whole
from loadtune.search.space import SearchSpace

STUDY_NAME = "loadtune"


class OptunaStudy:
    """`known` are trials that were run before; what the space lacks takes a number."""

    def __init__(self, space: SearchSpace, known: Sequence[Trial] = ()) -> None:
        self._space = space
        # Ctrl-C in a query makes SQLAlchemy log a traceback; without any handler Python prints it on stderr.
        logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._storage = RDBStorage("sqlite://", {"creator": lambda: self._database, "poolclass": StaticPool})
        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # a new study is announced on stderr, in a display
        try:
            self._id = self._storage.create_new_study([StudyDirection.MAXIMIZE], STUDY_NAME)
        finally:
            optuna.logging.set_verbosity(level)
        # The unit of the values, as Optuna's own set_metric_names writes it, which is experimental and warns.
        self._storage.set_study_system_attr(self._id, "study:metric_names", ["samples/s"])
        for trial in known:
            self.add(trial)

    def add(self, trial: Trial) -> None:
        """With its outcome. One that could not run, or that the space lacks, has the state FAIL."""
        has, measured, attrs = self._space.has(trial.config), trial.measurement, dict[str, Any]()
        if (said := trial.predicted) is not None:
            shown = {"predicted": said.value, "predicted_low": said.low, "predicted_high": said.high}
            attrs |= {name: float(f"{value:.4g}") for name, value in shown.items()}
        if trial.failure is not None:
            attrs["failure"] = trial.failure.message
        ended = create_trial(
            state=TrialState.FAIL if measured is None or not has else TrialState.COMPLETE,
            value=None if measured is None or not has else measured.score,
            params=self._space.point(trial.config) if has else {},
            distributions={name: CategoricalDistribution(axis) for name, axis in self._space.axes.items() if has},
            user_attrs=attrs,
        )
        self._storage.create_new_trial(self._id, ended)

    def write(self, file: Path) -> None:
        """Raises ResultError where it cannot be written."""
        write_whole(file, self._database.serialize())


# For people
