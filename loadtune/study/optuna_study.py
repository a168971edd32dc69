"""The Optuna study, and the only module that knows Optuna: ask for a configuration, tell what came of it.

In: a `SearchSpace`, seeds, a SQLite file. Out: configurations to try. What cannot run is told as COMPLETE and
infeasible with the worst value so far: told as FAIL, Optuna would forget it and try it again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import optuna

from loadtune.records import Precision, TrialConfig, TrialOrigin
from loadtune.study.loop import Asked
from loadtune.study.space import SearchSpace

MAX_STARTUP = 5
"""Random trials before TPE would start by itself; our seeds are among them, so it starts right behind those."""


class OptunaStudy:
    """Ask/tell over batch_size × num_workers × pin_memory × precision, maximising samples/s."""

    def __init__(self, space: SearchSpace, seeds: Sequence[tuple[TrialOrigin, TrialConfig]], path: Path, seed: int):
        self._space = space
        self._worst: float | None = None
        self._open: dict[int, optuna.Trial] = {}
        with _quiet():
            self._study = optuna.create_study(
                study_name="loadtune",
                storage=f"sqlite:///{path}",
                direction="maximize",
                sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=min(len(seeds), MAX_STARTUP)),
            )
        for origin, config in seeds:
            self._study.enqueue_trial(self._params(config), user_attrs={"origin": origin}, skip_if_exists=True)

    def ask(self) -> Asked:
        trial = self._study.ask()
        space = self._space
        config = space.config(
            space.batch_sizes[trial.suggest_int("batch_size_index", 0, len(space.batch_sizes) - 1)],
            space.num_workers[trial.suggest_int("num_workers_index", 0, len(space.num_workers) - 1)],
            trial.suggest_categorical("pin_memory", space.pin_memory),
            cast(Precision, trial.suggest_categorical("precision", space.precisions)),
        )
        origin: TrialOrigin = trial.user_attrs.get("origin", "search")
        self._open[trial.number] = trial
        return Asked(number=trial.number, config=config, origin=origin)

    def tell_measured(self, asked: Asked, samples_per_s: float) -> None:
        self._worst = samples_per_s if self._worst is None else min(self._worst, samples_per_s)
        self._finish(asked, samples_per_s, excess=0.0, attrs={"screened": None})

    def tell_screened(self, asked: Asked, bound: float, reason: str) -> None:
        """Not run, because `bound` (samples/s, at most) cannot win. Feasible: it says where not to look."""
        self._finish(asked, bound, excess=0.0, attrs={"screened": reason})

    def tell_infeasible(self, asked: Asked, excess: float, reason: str) -> None:
        """Does not run. `excess` above 0 says by how much, for the sampler to learn from."""
        self._finish(asked, self._worst or 0.0, excess=max(excess, 1e-9), attrs={"infeasible": reason})

    def _finish(self, asked: Asked, value: float, *, excess: float, attrs: dict[str, Any]) -> None:
        trial, loader = self._open.pop(asked.number), asked.config.loader
        shown = {"batch_size": loader.batch_size, "num_workers": loader.num_workers, "feasible": excess <= 0, **attrs}
        for name, attr in shown.items():
            trial.set_user_attr(name, attr)
        trial.set_constraint("runs", excess)
        self._study.tell(trial, value)

    def _params(self, config: TrialConfig) -> dict[str, Any]:
        return {
            "batch_size_index": self._space.batch_sizes.index(config.batch_size),
            "num_workers_index": self._space.num_workers.index(config.loader.num_workers),
            "pin_memory": config.loader.pin_memory,
            "precision": config.precision,
        }


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna announces a new study on stderr, into the middle of a display; its level is put back behind us."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)
