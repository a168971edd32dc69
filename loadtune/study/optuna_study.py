"""The Optuna study: its sampler asks the `Search`, its storage keeps the trials, for other tools as well.

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
from dataclasses import replace
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.pool import StaticPool

from loadtune.records import SCORE_UNITS, Objective, Predicted, Telemetry, Trial, TrialConfig
from loadtune.study.loop import Asked
from loadtune.study.search import Next
from loadtune.study.space import SearchSpace

STUDY_NAME = "loadtune"
SHOWN = (
    "gpu_utilization_fraction",
    "gpu_sm_activity_fraction",
    "cpu_utilization_fraction",
    "gpu_memory_used_bytes",
    "gpu_power_w",
)
"""Figures of `Telemetry` that are user attributes of a trial, for whoever looks at the study."""


class SearchSampler(BaseSampler):
    """Every parameter of a trial is what ``propose`` returns, which also sees to it that the configuration can run."""

    def __init__(self, space: SearchSpace, propose: Callable[[], TrialConfig]) -> None:
        self._space, self._propose = space, propose

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {str(name): CategoricalDistribution(axis) for name, axis in self._space.axes.items()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {str(name): value for name, value in self._space.point(self._propose()).items()}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise ValueError(f"{param_name} is no dimension of the search space")


class OptunaStudy:
    """Ask/tell over the axes of a space, maximising the value told; ``propose`` decides what is asked for.

    `known` are trials that were run before. `save` is called after each change, with what
    returns the database as a file has it.
    """

    def __init__(
        self,
        space: SearchSpace,
        propose: Callable[[], Next],
        save: Callable[[Callable[[], bytes]], None] = lambda content: None,
        *,
        known: Sequence[Trial] = (),
        objective: Objective = "samples-per-s",
    ) -> None:
        self._space, self._propose = space, propose
        self._worst: float | None = None
        self._open: dict[int, optuna.Trial] = {}
        self._replayed: Next | None = None
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._storage = _storage(self._database)
        with _quiet():
            self._study = optuna.create_study(
                study_name=STUDY_NAME,
                storage=self._storage,
                direction="maximize",
                sampler=SearchSampler(space, lambda: self._next.config),
            )
        # The unit of the values, as Optuna's own set_metric_names writes it, which is experimental and warns.
        study_id = self._storage.get_study_id_from_name(STUDY_NAME)
        self._storage.set_study_system_attr(study_id, "study:metric_names", [SCORE_UNITS[objective]])
        self._save: Callable[[Callable[[], bytes]], None] = lambda content: None
        self._replay(known, objective)
        self._save = save
        self._changed()

    def _changed(self) -> None:
        self._save(self._database.serialize)

    @property
    def _next(self) -> Next:
        return self._replayed or self._propose()

    def ask(self) -> Asked:
        asked = self._next
        trial = self._study.ask()
        for name, axis in self._space.axes.items():
            trial.suggest_categorical(name, axis)
        self._open[trial.number] = trial
        self._changed()
        # The baseline may end its workers with each epoch where the space has only loaders that keep them.
        return Asked(number=trial.number, config=asked.config, origin=asked.origin, predicted=asked.predicted)

    def _replay(self, known: Sequence[Trial], objective: Objective) -> None:
        """Ask and tell what was run before; what the space lacks takes a number."""
        for trial in known:
            if trial.outcome is None or not self._has(trial.config):
                self._study.add_trial(optuna.trial.create_trial(state=TrialState.FAIL))
                continue
            self._replayed = Next(config=trial.config, origin=trial.origin, predicted=trial.predicted)
            asked = self.ask()
            self._replayed = None
            if trial.measurement is not None:
                self.tell_measured(asked, trial.measurement.score(objective), trial.measurement.telemetry)
            elif trial.failure is not None:
                self.tell_infeasible(asked, trial.failure.message)

    def _has(self, config: TrialConfig) -> bool:
        """Whether the space has it; whether the baseline's workers outlive an epoch is no part of that."""
        near = self._space.at(self._space.point(config))
        kept = config.loader.persistent_workers
        return replace(near, loader=replace(near.loader, persistent_workers=kept)) == config

    def tell_measured(self, asked: Asked, score: float, seen: Telemetry | None = None) -> None:
        """``seen``: stored as attributes of the trial."""
        self._worst = score if self._worst is None else min(self._worst, score)
        used = {} if seen is None else {figure: getattr(seen, figure) for figure in SHOWN}
        known = {figure: round(value, 3) for figure, value in used.items() if value is not None}
        self._finish(asked, score, excess=0.0, attrs=known)

    def tell_infeasible(self, asked: Asked, reason: str) -> None:
        """It did not run."""
        self._finish(asked, math.nextafter(self._worst or 0.0, 0.0), excess=1.0, attrs={"infeasible": reason})

    def _finish(self, asked: Asked, value: float, *, excess: float, attrs: Mapping[str, Any]) -> None:
        trial = self._open.pop(asked.number)
        shown = {"origin": asked.origin, **_predicted(asked.predicted), "feasible": excess <= 0, **attrs}
        for name, attr in shown.items():
            trial.set_user_attr(name, attr)
        # Not by set_constraint: optuna-dashboard (0.21) looks for feasibility in this list, and Optuna 5 reads it, too.
        self._storage.set_trial_system_attr(trial._trial_id, "constraints", [excess])
        self._study.tell(trial, value)
        self._changed()


def _predicted(said: Predicted | None) -> dict[str, float]:
    if said is None:
        return {}
    figures = {"predicted": said.score, "predicted_low": said.low, "predicted_high": said.high}
    return {name: float(f"{value:.4g}") for name, value in figures.items()}


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
