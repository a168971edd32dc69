"""The Optuna study: its sampler proposes what the `Search` says, its storage keeps the trials, for other tools as well.

The storage is a database in memory. A copy of it is the file ``study.db``: whoever looks at that file, locks it or
damages it is in nobody's way.
A configuration that could not run becomes a trial in the state COMPLETE, infeasible, with a value just below the worst
so far. `optuna-dashboard` shows it, and its best trial is one that was measured. What is in the state FAIL is nothing
that was learnt.
"""

import logging
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.pool import StaticPool

from loadtune.records.config import TrialConfig
from loadtune.records.result import Trial
from loadtune.search.space import SearchSpace, is_alike

STUDY_NAME = "loadtune"


class SearchSampler(BaseSampler):
    """Every parameter of a trial is that of ``proposed``, which the search and its throughput model chose."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self.proposed: TrialConfig | None = None

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {str(name): CategoricalDistribution(axis) for name, axis in self._space.axes.items()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        assert self.proposed is not None
        return {str(name): value for name, value in self._space.point(self.proposed).items()}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise ValueError(f"{param_name} is no dimension of the search space")


class OptunaStudy:
    """Tell it what is tried by `ask`, and the outcome by `tell`.

    `known` are trials that were run before; what the space lacks takes a number. `save` is called after each change,
    with what returns the database as a file has it.
    """

    def __init__(
        self,
        space: SearchSpace,
        save: Callable[[Callable[[], bytes]], None] = lambda content: None,
        *,
        known: Sequence[Trial] = (),
    ) -> None:
        self._space = space
        self._save: Callable[[Callable[[], bytes]], None] = lambda content: None
        self._worst = math.inf
        self._sampler = SearchSampler(space)
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._storage = _storage(self._database)
        with _quiet():
            self._study = optuna.create_study(
                study_name=STUDY_NAME, storage=self._storage, direction="maximize", sampler=self._sampler
            )
        # The unit of the values, as Optuna's own set_metric_names writes it, which is experimental and warns.
        study_id = self._storage.get_study_id_from_name(STUDY_NAME)
        self._storage.set_study_system_attr(study_id, "study:metric_names", ["samples/s"])
        for trial in known:
            if trial.outcome is None or not is_alike(space.nearest(trial.config), trial.config):
                self._study.add_trial(optuna.trial.create_trial(state=TrialState.FAIL))
                continue
            self.ask(trial.config)
            self.tell(trial)
        self._save = save
        self._save(self._database.serialize)

    def ask(self, config: TrialConfig) -> None:
        """Begin a trial of this configuration."""
        self._sampler.proposed = config
        self._running = self._study.ask()
        for name, axis in self._space.axes.items():
            self._running.suggest_categorical(str(name), axis)
        self._save(self._database.serialize)

    def tell(self, trial: Trial) -> None:
        """The outcome of the trial that was begun."""
        asked, measured = self._running, trial.measurement
        attrs: dict[str, Any] = {"origin": trial.origin, "feasible": measured is not None}
        if trial.predicted is not None:
            said = trial.predicted
            shown = {"predicted": said.value, "predicted_low": said.low, "predicted_high": said.high}
            attrs |= {name: float(f"{value:.4g}") for name, value in shown.items()}
        if measured is None:
            value = math.nextafter(0.0 if math.isinf(self._worst) else self._worst, 0.0)
            attrs["infeasible"] = trial.failure.message if trial.failure else "not measured"
        else:
            value = measured.score
            self._worst = min(self._worst, value)
        for name, attr in attrs.items():
            asked.set_user_attr(name, attr)
        # Not by set_constraint: optuna-dashboard (0.21) looks for feasibility in this list, and Optuna 5 reads it, too.
        excess = 0.0 if measured is not None else 1.0
        self._storage.set_trial_system_attr(asked._trial_id, "constraints", [excess])
        self._study.tell(asked, value)
        self._save(self._database.serialize)


def _storage(database: sqlite3.Connection) -> optuna.storages.BaseStorage:
    # Ctrl-C in the middle of a query makes SQLAlchemy log a traceback; without any handler Python prints it on stderr.
    logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())
    return optuna.storages.RDBStorage("sqlite://", engine_kwargs={"creator": lambda: database, "poolclass": StaticPool})


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna announces a new study on stderr, into the middle of a display; its level is put back behind us."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)
