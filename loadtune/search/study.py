"""The trials as an Optuna study, for other tools. It proposes nothing.

Its storage is a database in memory. A copy of it is the file ``study.db``: whoever looks at that file, locks it or
damages it is in nobody's way. optuna-dashboard, of the extra ``live``, shows that file on 127.0.0.1.
A configuration that could not run becomes a trial in the state COMPLETE, infeasible, with a value just below the worst
so far. `optuna-dashboard` shows it, and its best trial is one that was measured. What is in the state FAIL is nothing
that was learnt.
"""

import importlib.util
import logging
import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import quote
from wsgiref.simple_server import WSGIServer, make_server

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool, StaticPool

from loadtune.errors import ResultError, UsageError
from loadtune.records.config import TrialConfig
from loadtune.records.result import Trial
from loadtune.report.store import write_whole
from loadtune.search.space import SearchSpace

STUDY_NAME = "loadtune"
HOST = "127.0.0.1"


class OptunaStudy:
    """Tell it what is tried by `ask`, and the outcome by `tell`.

    `known` are trials that were run before; what the space lacks takes a number.
    """

    def __init__(self, space: SearchSpace, known: Sequence[Trial] = ()) -> None:
        self._space, self._worst = space, math.inf
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
            if space.has(trial.config):
                self.ask(trial.config)
                self.tell(trial)
            else:
                self._storage.create_new_trial(self._id, create_trial(state=TrialState.FAIL))

    def ask(self, config: TrialConfig) -> None:
        """Begin a trial of this configuration."""
        begun = create_trial(
            state=TrialState.RUNNING,
            params=self._space.point(config),
            distributions={name: CategoricalDistribution(axis) for name, axis in self._space.axes.items()},
        )
        self._running = self._storage.create_new_trial(self._id, begun)

    def tell(self, trial: Trial) -> None:
        """The outcome of the trial that was begun."""
        measured = trial.measurement
        attrs: dict[str, Any] = {"origin": trial.origin, "feasible": measured is not None}
        if (said := trial.predicted) is not None:
            shown = {"predicted": said.value, "predicted_low": said.low, "predicted_high": said.high}
            attrs |= {name: float(f"{value:.4g}") for name, value in shown.items()}
        if measured is not None:
            value = measured.score
            self._worst = min(self._worst, value)
        else:
            value = math.nextafter(0.0 if math.isinf(self._worst) else self._worst, 0.0)
            attrs["infeasible"] = trial.failure.message if trial.failure else "not measured"
        for name, attr in attrs.items():
            self._storage.set_trial_user_attr(self._running, name, attr)
        # Not by set_constraint: optuna-dashboard (0.21) looks for feasibility in this list, and Optuna 5 reads it, too.
        self._storage.set_trial_system_attr(self._running, "constraints", [0.0 if measured is not None else 1.0])
        self._storage.set_trial_state_values(self._running, TrialState.COMPLETE, [value])

    def write(self, file: Path) -> None:
        """Raises ResultError where it cannot be written."""
        write_whole(file, self._database.serialize())


# For people


class _Server(ThreadingMixIn, WSGIServer):
    """One thread a request, as browsers keep idle connections open; none outlives the process."""

    daemon_threads = True


def dashboard_server(study: Path, port: int) -> WSGIServer:
    """A server that listens but does not answer yet. Port 0 takes any free port. Raises UsageError, ResultError."""
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise UsageError(
            "`--live` needs optuna-dashboard, which is not installed. Install it with"
            " `pip install '.[live]'` in loadtune's checkout. `loadtune report` works without it."
        )
    import optuna_dashboard

    # SQLite itself refuses to write, and makes no file beside it. A connection for each look: a run replaces the file.
    url = f"sqlite:///file:{quote(str(study.absolute()))}?mode=ro&uri=true"
    try:
        storage = RDBStorage(url, engine_kwargs={"poolclass": NullPool}, skip_table_creation=True)
    except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:
        why = str(error.__cause__ or error).splitlines()[0]
        raise ResultError(
            f"{study} cannot be read as a study: {why}. It takes the study.db of a run by this version of Optuna. Name"
            " another run's folder; `loadtune run --resume` writes the file anew."
        ) from error
    app = optuna_dashboard.wsgi(storage)
    try:
        return make_server(HOST, port, app, _Server)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"--port is {port}, which cannot be used ({error}). It must be a free port from 0 to 65535 that this user"
            " may open. Choose another one, or --port 0 for any free port."
        ) from error
