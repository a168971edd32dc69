"""The Optuna study, and the only module that knows Optuna: ask for a configuration, tell what came of it.

In: a `SearchSpace`, seeds, a file to keep the study in. Out: configurations to try. What cannot run is told as
COMPLETE, infeasible and with the worst value so far: told as FAIL, Optuna would forget it and try it again.
"""

import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna

from loadtune.records import Dimension, Objective, Trial, TrialConfig
from loadtune.study.loop import Asked
from loadtune.study.seeds import Seed
from loadtune.study.space import SearchSpace, is_ordered

MAX_STARTUP = 5
"""Random trials before TPE would start by itself; our seeds are among them, so it starts right behind those."""

OVERTAKEN = 1.05
"""Times the score of its own precision's corner at which a seed follows another's: most fresh loaders differ less."""

OBJECTIVE = "objective"
"""The study's user attribute that says what its values are."""


class OptunaStudy:
    """Ask/tell over the axes of a space, maximising the value told. `seeds` are asked first, in their order.

    `file` is a database of SQLite; None keeps the study in memory. `known` are trials of it that were run before:
    what they had begun and not ended is closed, because a trial that seems to run repels the sampler from its place.
    """

    def __init__(
        self,
        space: SearchSpace,
        seeds: Sequence[Seed],
        file: Path | None,
        seed: int,
        *,
        known: Sequence[Trial] = (),
        objective: Objective = "samples-per-s",
    ) -> None:
        self._space = space
        self._scores: dict[TrialConfig, float] = {}
        self._told: set[TrialConfig] = set()
        self._sampled = False
        for trial in known:
            self._remember(trial.config, trial.measurement.score(objective) if trial.measurement else None)
        self._open: dict[int, optuna.Trial] = {}
        with _quiet():
            self._study = optuna.create_study(
                study_name="loadtune",
                storage=None if file is None else kept_in(file),
                direction="maximize",
                load_if_exists=True,
            )
        self._study.set_user_attr(OBJECTIVE, objective)  # for whoever looks at it: the values have no unit
        done = self._study.get_trials(deepcopy=False)
        # From another place in its random numbers, or a resumed run would ask the first one's questions again.
        self._study.sampler = optuna.samplers.TPESampler(
            seed=seed + len(done), n_startup_trials=min(len(seeds), MAX_STARTUP)
        )
        ran = {trial.config for trial in known}
        untold = self._close_stale(done, known)
        self._seeds = deque([*untold, *(seed for seed in seeds if seed.config not in ran)])

    def ask(self) -> Asked:
        following = self._seed() or self._neighbour()
        if following is not None:
            attrs = {"origin": following.origin}
            self._study.enqueue_trial(self._params(following.config), user_attrs=attrs)
        trial = self._study.ask()
        point = {name: _suggest(trial, name, axis) for name, axis in self._space.axes.items()}
        config = self._space.at(point)
        self._open[trial.number] = trial
        return Asked(number=trial.number, config=config, origin=trial.user_attrs.get("origin", "search"))

    @property
    def has_predictions_left(self) -> bool:
        """Whether a seed was not tried yet; what only completes a space that is run whole is none."""
        return any(
            seed.origin != "search" and self._is_called_for(seed) and self._followed(seed) not in self._told
            for seed in self._seeds
        )

    def _seed(self) -> Seed | None:
        """The next one; one that follows a faster precision may have been asked for in that already."""
        while self._seeds:
            seed = self._seeds.popleft()
            config = self._followed(seed)
            if self._is_called_for(seed) and (config == seed.config or config not in self._told):
                return Seed(seed.origin, config)
        return None

    def _is_called_for(self, seed: Seed) -> bool:
        """Whether what it is to do better than was run, and fell short."""
        if seed.where_short is None:
            return True
        config, enough = seed.where_short
        score = self._scores.get(self._followed(Seed(seed.origin, config, seed.follows)))
        return score is not None and score < enough

    def _followed(self, seed: Seed) -> TrialConfig:
        """Its configuration, in the precision that it follows where that is clearly faster with the same loader."""
        if seed.follows is None:
            return seed.config
        own, other = (self._scores.get(corner) for corner in seed.follows)
        if own is None or other is None or other < OVERTAKEN * own:
            return seed.config
        return self._space.in_precision(seed.config, seed.follows[1].precision)

    def _neighbour(self) -> Seed | None:
        """Every other time, a configuration beside the best so far that was not asked for yet; else the sampler's."""
        self._sampled = not self._sampled
        if self._sampled or not self._scores:
            return None
        near = self._space.neighbours(max(self._scores, key=self._scores.__getitem__))
        return next((Seed("search", config) for config in near if config not in self._told), None)

    def _close_stale(self, done: Sequence[optuna.trial.FrozenTrial], known: Sequence[Trial]) -> list[Seed]:
        """Close what never ended; of those, what was measured and never told, to be asked once more."""
        stale = {trial.number for trial in done if trial.state == optuna.trial.TrialState.RUNNING}
        for number in stale:
            self._study.tell(number, state=optuna.trial.TrialState.FAIL)
        return [Seed(trial.origin, trial.config) for trial in known if trial.number in stale]

    def tell_measured(self, asked: Asked, score: float) -> None:
        self._remember(asked.config, score)
        self._finish(asked, score, excess=0.0, attrs={"screened": None})

    def tell_screened(self, asked: Asked, bound: float, reason: str) -> None:
        """Not run, because `bound` (its score, at most) cannot win. Feasible: it says where not to look."""
        self._finish(asked, bound, excess=0.0, attrs={"screened": reason})

    def tell_infeasible(self, asked: Asked, excess: float, reason: str) -> None:
        """Does not run. `excess` above 0 says by how much, for the sampler to learn from."""
        self._finish(
            asked, min(self._scores.values(), default=0.0), excess=max(excess, 1e-9), attrs={"infeasible": reason}
        )

    def _finish(self, asked: Asked, value: float, *, excess: float, attrs: dict[str, Any]) -> None:
        trial, loader = self._open.pop(asked.number), asked.config.loader
        self._told.add(asked.config)
        shown = {"batch_size": loader.batch_size, "num_workers": loader.num_workers, "feasible": excess <= 0, **attrs}
        for name, attr in shown.items():
            trial.set_user_attr(name, attr)
        trial.set_constraint("runs", excess)
        self._study.tell(trial, value)

    def _remember(self, config: TrialConfig, measured: float | None) -> None:
        self._told.add(config)
        if measured is not None:
            self._scores[config] = measured

    def _params(self, config: TrialConfig) -> dict[str, Any]:
        axes, point = self._space.axes, self._space.point(config)
        return {
            _param(name, axis): axis.index(point[name]) if is_ordered(axis) else point[name]
            for name, axis in axes.items()
        }


def kept_in(file: Path, *, read_only: bool = False) -> optuna.storages.RDBStorage:
    """Optuna's storage in this file, to which it does not connect by itself.

    In a URL of its own a path with a brace or a question mark would be another path.
    """
    return optuna.storages.RDBStorage(
        "sqlite:///study.db",
        engine_kwargs={"creator": lambda: connected(file, read_only=read_only)},
        skip_table_creation=read_only,
    )


def connected(file: Path, *, read_only: bool) -> sqlite3.Connection:
    """`read_only`: SQLite itself refuses to write, and makes no file beside it."""
    address = f"{file.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
    return sqlite3.connect(address, uri=True, check_same_thread=False)  # SQLAlchemy's pool hands it from one to another


def _suggest(trial: optuna.Trial, name: Dimension, axis: Sequence[Any]) -> Any:
    if is_ordered(axis):
        return axis[trial.suggest_int(_param(name, axis), 0, len(axis) - 1)]
    return trial.suggest_categorical(name, axis)


def _param(name: Dimension, axis: Sequence[Any]) -> str:
    """Numbers are searched by their index, which the parameter's name says."""
    return f"{name}_index" if is_ordered(axis) else name


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna announces a new study on stderr, into the middle of a display; its level is put back behind us."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)
