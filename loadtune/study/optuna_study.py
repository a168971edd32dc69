"""The Optuna study, and the only module that knows Optuna: ask for a configuration, tell what came of it.

In: a `SearchSpace`, seeds, a file to keep the study in. Out: configurations to try. A configuration that cannot run
becomes a trial in the state COMPLETE, infeasible and with the worst value so far. Optuna would forget one in the state
FAIL, and propose it again.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna

from loadtune.records import Dimension, Objective, Telemetry, Trial, TrialConfig
from loadtune.study.loop import Asked
from loadtune.study.seeds import Seed
from loadtune.study.space import SearchSpace, is_ordered
from loadtune.study.study_file import STUDY_NAME, open_or_renew

MAX_STARTUP = 5
"""Random trials before TPE would start by itself; our seeds are among them, so it starts right behind those."""

OVERTAKEN = 1.05
"""Times the score of its own precision's corner at which a seed follows another's: most fresh loaders differ less."""

OBJECTIVE = "objective"
"""The study's user attribute that says what its values are."""

SHOWN = (
    "gpu_utilization_fraction",
    "gpu_sm_activity_fraction",
    "cpu_utilization_fraction",
    "gpu_memory_used_bytes",
    "gpu_power_w",
)
"""Figures of `Telemetry` that are user attributes of a trial, for whoever looks at the study."""


class OptunaStudy:
    """Ask/tell over the axes of a space, maximising the value told. `seeds` are asked first, in their order.

    `file` is a database of SQLite; None keeps the study in memory. `known` are trials of it that were run before:
    what they had begun and not ended is closed, because a trial that seems to run repels the sampler from its place.
    Where the file has not all of them, the study is built anew: `renewed` says so.
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
            self._study, self.renewed = _opened(file, num_known=1 + max((trial.number for trial in known), default=-1))
        self._study.set_user_attr(OBJECTIVE, objective)  # for whoever looks at it: the values have no unit
        if not self._study.get_trials(deepcopy=False):
            self._replay(known, objective)
        done = self._study.get_trials(deepcopy=False)
        # From another place in its random numbers, or a resumed run would ask the first one's questions again.
        self._study.sampler = optuna.samplers.TPESampler(
            seed=seed + len(done), n_startup_trials=min(len(seeds), MAX_STARTUP)
        )
        ran = {trial.config for trial in known if trial.screened is None}
        untold = self._close_stale(done, known)
        self._seeds = deque([*untold, *(seed for seed in seeds if seed.config not in ran)])

    def ask(self) -> Asked:
        return self._ask(self._seed() or self._neighbour())

    def _ask(self, following: Seed | None) -> Asked:
        if following is not None:
            attrs = {"origin": following.origin}
            self._study.enqueue_trial(self._params(following.config), user_attrs=attrs)
        trial = self._study.ask()
        point = {name: _suggest(trial, name, axis) for name, axis in self._space.axes.items() if len(axis) > 1}
        point |= {name: axis[0] for name, axis in self._space.axes.items() if len(axis) == 1}
        # The baseline may end its workers with each epoch where the space has only loaders that keep them.
        config = self._space.at(point) if following is None else following.config
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

    def _replay(self, known: Sequence[Trial], objective: Objective) -> None:
        """Ask and tell a new study what was run, under its old numbers. Of what was screened the bound is not kept."""
        for trial in in_order(known):
            if trial is None or not self._has(trial.config):
                self._study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.FAIL))
                continue
            asked = self._ask(Seed(trial.origin, trial.config))
            if trial.measurement is not None:
                self.tell_measured(asked, trial.measurement.score(objective), trial.measurement.telemetry)
            elif trial.failure is not None:
                self.tell_infeasible(asked, 1.0, trial.failure.message)
            else:
                self._finish(asked, None, excess=0.0, attrs={"screened": trial.screened})

    def _has(self, config: TrialConfig) -> bool:
        """Whether the space has it; whether the baseline's workers outlive an epoch is no part of that."""
        near = self._space.at(self._space.point(config))
        kept = config.loader.persistent_workers
        return replace(near, loader=replace(near.loader, persistent_workers=kept)) == config

    def tell_measured(self, asked: Asked, score: float, seen: Telemetry | None = None) -> None:
        """``seen``: stored as attributes of the trial. The sampler does not use it."""
        self._remember(asked.config, score)
        used = {} if seen is None else {figure: getattr(seen, figure) for figure in SHOWN}
        known = {figure: round(value, 3) for figure, value in used.items() if value is not None}
        self._finish(asked, score, excess=0.0, attrs={"screened": None, **known})

    def tell_screened(self, asked: Asked, bound: float, reason: str) -> None:
        """Not run, because `bound` (its score, at most) cannot win. Feasible: it says where not to look."""
        self._finish(asked, bound, excess=0.0, attrs={"screened": reason})

    def tell_infeasible(self, asked: Asked, excess: float, reason: str) -> None:
        """Does not run. `excess` above 0 says by how much, for the sampler to learn from."""
        self._finish(
            asked, min(self._scores.values(), default=0.0), excess=max(excess, 1e-9), attrs={"infeasible": reason}
        )

    def _finish(self, asked: Asked, value: float | None, *, excess: float, attrs: dict[str, Any]) -> None:
        trial, loader = self._open.pop(asked.number), asked.config.loader
        self._told.add(asked.config)
        shown = {"batch_size": loader.batch_size, "num_workers": loader.num_workers, "feasible": excess <= 0, **attrs}
        for name, attr in shown.items():
            trial.set_user_attr(name, attr)
        trial.set_constraint("runs", excess)
        self._study.tell(trial, value, state=optuna.trial.TrialState.PRUNED if value is None else None)

    def _remember(self, config: TrialConfig, measured: float | None) -> None:
        self._told.add(config)
        if measured is not None:
            self._scores[config] = measured

    def _params(self, config: TrialConfig) -> dict[str, Any]:
        axes, point = self._space.axes, self._space.point(config)
        return {
            _param(name, axis): axis.index(point[name]) if is_ordered(axis) else point[name]
            for name, axis in axes.items()
            if len(axis) > 1
        }


def in_order(known: Sequence[Trial]) -> list[Trial | None]:
    """Each at its number, None where no trial of that is known. Whose number is taken comes after all others."""
    numbered: dict[int, Trial] = {}
    taken: list[Trial | None] = [trial for trial in known if numbered.setdefault(trial.number, trial) is not trial]
    return [numbered.get(number) for number in range(max(numbered, default=-1) + 1)] + taken


def _opened(file: Path | None, num_known: int) -> tuple[optuna.Study, str | None]:
    if file is None:
        return optuna.create_study(study_name=STUDY_NAME, direction="maximize"), None
    return open_or_renew(file, num_known)


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
