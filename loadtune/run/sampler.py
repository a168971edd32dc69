"""The search as an Optuna study. Its sampler proposes by the throughput model; any other sampler can take its place.

The study is in memory. The file ``study.db`` is written from it: whoever looks at that file, locks it or damages it is
in nobody's way. optuna-dashboard shows that file.
"""

import json
import logging
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution, distribution_to_json
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.pool import StaticPool

from loadtune.decide.search import Next, Search
from loadtune.decide.space import SearchSpace
from loadtune.records.config import TrialConfig
from loadtune.records.result import Trial
from loadtune.store import write_whole

STUDY_NAME = "loadtune"
_ENDED = (TrialState.COMPLETE, TrialState.FAIL)


class ThroughputSampler(BaseSampler):
    """Proposes what `search` does, which knows what was measured of each trial beside its rate. Ask `upcoming` first: a
    study has no end of its own, and a search has."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._upcoming: Next | str | None = None

    def upcoming(self) -> Next | str:
        """What is proposed now; or why nothing is worth a further trial, for people."""
        self._upcoming = self._search.next()
        return self._upcoming

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return distributions(self._search.space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        asked, self._upcoming = self._upcoming or self.upcoming(), None
        return dict(self._search.space.point(asked.config)) if isinstance(asked, Next) else {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise ValueError(f"nothing is worth a further trial, so there is no {param_name} to propose")


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Of each dimension: numbers in their order, batch sizes by doublings."""
    found: dict[str, BaseDistribution] = {name: CategoricalDistribution(axis) for name, axis in space.axes.items()}
    for name, axis, log in (("batch_size", space.batch_sizes, True), ("num_workers", space.num_workers, False)):
        found[name] = IntDistribution(axis[0], axis[-1], log=log)
    return found


class SearchStudy:
    """Call `ask`, try what it returns, and `tell` what came of it. `known` are trials that were run before; what the
    space lacks takes a number."""

    def __init__(self, space: SearchSpace, sampler: BaseSampler, known: Sequence[Trial] = ()) -> None:
        self._space, self._distributions = space, distributions(space)
        storage = InMemoryStorage()
        _new_study(storage)
        self._study = optuna.Study(STUDY_NAME, storage, sampler)
        for trial in known:
            self._study.add_trial(self._ended(trial))

    def ask(self, first: TrialConfig | None = None) -> TrialConfig:
        """``first``: comes before the sampler is asked. It may have workers that end with an epoch, as no point has."""
        if first is not None:
            self._study.enqueue_trial(self._space.point(first))
        self._asked = self._study.ask(self._distributions)
        return first or self._space.nearest(self._space.at(self._asked.params))

    def tell(self, trial: Trial) -> None:
        """What came of the configuration that was asked for."""
        ended = self._ended(trial)
        for name, value in ended.user_attrs.items():
            self._asked.set_user_attr(name, value)
        self._study.tell(self._asked, ended.value, ended.state)

    def _ended(self, trial: Trial) -> FrozenTrial:
        """With its outcome. One that could not run, or that the space lacks, has the state FAIL."""
        has, measured, attrs = self._space.has(trial.config), trial.measurement, dict[str, Any]()
        if (said := trial.predicted) is not None:
            shown = {"predicted": said.value, "predicted_low": said.low, "predicted_high": said.high}
            attrs |= {name: float(f"{value:.4g}") for name, value in shown.items()}
        if trial.failure is not None:
            attrs["failure"] = trial.failure.message
        return create_trial(
            state=TrialState.FAIL if measured is None or not has else TrialState.COMPLETE,
            value=None if measured is None or not has else measured.score,
            params=self._space.point(trial.config) if has else {},
            distributions=self._distributions if has else {},
            user_attrs=attrs,
        )

    def write(self, file: Path) -> None:
        """All trials that ended, as a database of Optuna's. Raises ResultError where it cannot be written."""
        rows: dict[str, list[tuple[object, ...]]] = {table: [] for table in _COLUMNS}
        for key, trial in enumerate(self._study.get_trials(deepcopy=False, states=_ENDED), 1):
            rows["trials"].append(
                (key, key - 1, trial.state.name, str(trial.datetime_start), str(trial.datetime_complete))
            )
            rows["trial_values"] += [(key, trial.value)] if trial.value is not None else []
            rows["trial_user_attributes"] += [(key, name, json.dumps(each)) for name, each in trial.user_attrs.items()]
            for name, each in trial.distributions.items():
                value = each.to_internal_repr(trial.params[name])
                rows["trial_params"].append((key, name, value, distribution_to_json(each)))
        with closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(_empty_study())
            for table, columns in _COLUMNS.items():
                database.executemany(f"INSERT INTO {table} {columns}", rows[table])
            database.commit()
            write_whole(file, database.serialize())


_COLUMNS = {
    "trials": "(trial_id, number, study_id, state, datetime_start, datetime_complete) VALUES (?, ?, 1, ?, ?, ?)",
    "trial_values": "(trial_id, objective, value, value_type) VALUES (?, 0, ?, 'FINITE')",
    "trial_user_attributes": "(trial_id, key, value_json) VALUES (?, ?, ?)",
    "trial_params": "(trial_id, param_name, param_value, distribution_json) VALUES (?, ?, ?, ?)",
}
"""What of Optuna's tables a trial fills. Through `RDBStorage` each figure is a query of its own, so a trial of four
parameters takes 42 ms."""


@cache
def _empty_study() -> bytes:
    """A database with a study, and without trials, as Optuna makes it."""
    # Ctrl-C in a query makes SQLAlchemy log a traceback; without any handler Python prints it on stderr.
    logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as database:
        storage = RDBStorage("sqlite://", {"creator": lambda: database, "poolclass": StaticPool})
        number = _new_study(storage)
        # The unit of the values, as Optuna's own set_metric_names writes it, which is experimental and warns.
        storage.set_study_system_attr(number, "study:metric_names", ["samples/s"])
        return database.serialize()


def _new_study(storage: BaseStorage) -> int:
    """Its number."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a new study is announced on stderr, in a display
    try:
        return storage.create_new_study([StudyDirection.MAXIMIZE], STUDY_NAME)
    finally:
        optuna.logging.set_verbosity(level)
