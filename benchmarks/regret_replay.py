"""Ways of searching, replayed over a table instead of a machine: how far each is from the best after so many trials.

Every way sees the same space and the same noise. Its answer is the configuration with the best figure seen so far, and
after a confirmation its winner; the true rate of that counts. A trial is one that was really run, also by a
confirmation; above a memory ceiling it is lost.
"""

import random
from collections.abc import Callable, Iterable, Iterator

import optuna
from regret_field import Field

from loadtune import stages
from loadtune.records import Measurement, TrialConfig, TuneConfig
from loadtune.stages import Run
from loadtune.stages.run import TRIAL_SHARE
from loadtune.stages.searching import first_configs, study_loop
from loadtune.stages.timing import timed
from loadtune.study.optuna_study import OptunaStudy
from loadtune.study.space import SearchSpace, is_ordered

Seen = tuple[TrialConfig, float]
"""What was run and the figure it gave; 0 where it failed."""


def loadtune(field: Field, seed: int, num_trials: int, *, bounds: bool = True) -> Iterator[Seen]:
    """The search as `loadtune run` has it: seeds, TPE, bounds, and its own end."""
    run, space = field.begin(seed, num_trials)
    return _search(field, run, space, seed, bounds=bounds)


def confirmed(field: Field, seed: int, num_trials: int) -> Iterator[TrialConfig | None]:
    """What `loadtune run` answers: search and confirmation, in the time and of the trials that both have by default."""
    run, space = field.begin(seed, min(num_trials, TuneConfig().num_trials), as_long=True)
    answer = None
    for answer in answers(_search(field, run, space, seed)):
        yield answer
    stages.confirmation(run, field.grid.facts, space)
    num_runs = sum(len(finalist.runs) for finalist in run.found.finalists)
    yield from [answer] * (num_runs - 1)
    yield run.found.best.config if run.found.best else answer


def _search(field: Field, run: Run, space: SearchSpace, seed: int, *, bounds: bool = True) -> Iterator[Seen]:
    first = first_configs(run, field.grid.facts, space)
    loop = study_loop(run, field.grid.facts, space, OptunaStudy(space, first, None, seed), num_seeds=len(first))
    if not bounds:
        refuse = loop.refuse
        loop.refuse = lambda config, best: refuse(config, None)
    for trial in loop.trials():
        run.found.trials.append(trial)
        if trial.screened is None:
            yield trial.config, trial.measurement.samples_per_s if trial.measurement else 0.0


def unseeded(sampler: Callable[[int], optuna.samplers.BaseSampler]) -> "Search":
    """One of Optuna's samplers over the same space, told what does not fit as infeasible."""

    def search(field: Field, seed: int, num_trials: int) -> Iterator[Seen]:
        run, space = field.begin(seed, num_trials)
        study = optuna.create_study(direction="maximize", sampler=sampler(seed))
        for _ in range(num_trials):
            trial = study.ask()
            config = space.at({name: _suggest(trial, name, axis) for name, axis in space.axes.items()})
            rate = _measure(run, space, config)
            trial.set_constraint("runs", float(space.excess(config)))
            study.tell(trial, rate)
            yield config, rate

    return search


def random_search(field: Field, seed: int, num_trials: int) -> Iterator[Seen]:
    """Configurations that fit, each once, in any order."""
    run, space = field.begin(seed, num_trials)
    every = list(space.configs())
    for config in random.Random(seed).sample(every, min(num_trials, len(every))):
        yield config, _measure(run, space, config)


def rule(num_workers: int | None) -> "Search":
    """A rule of thumb: so many workers (None: as many as cores), pinned, the largest batch, the fastest precision."""

    def search(field: Field, seed: int, num_trials: int) -> Iterator[Seen]:
        run, space = field.begin(seed, num_trials)
        recipe = max(field.grid.compute_points, key=lambda point: point.samples_per_s).recipe
        workers = field.grid.host.num_usable_cores if num_workers is None else num_workers
        config = space.config(space.batch_sizes[-1], workers, space.pin_memory[-1], recipe.precision)
        config = space.clip(config)
        yield config, _measure(run, space, config)

    return search


def answers(seen: Iterable[Seen]) -> Iterator[TrialConfig | None]:
    """After each run the configuration with the best figure so far. None: nothing ran yet."""
    best: Seen | None = None
    for config, rate in seen:
        if rate > (best[1] if best else 0.0):
            best = (config, rate)
        yield best[0] if best else None


Search = Callable[[Field, int, int], Iterator[Seen]]
Way = Callable[[Field, int, int], Iterator[TrialConfig | None]]
"""The answer after each run."""


def _best_so_far(search: Search) -> Way:
    return lambda field, seed, num_trials: answers(search(field, seed, num_trials))


WAYS: dict[str, Way] = {
    "loadtune": _best_so_far(loadtune),
    "loadtune, confirmed": confirmed,
    "loadtune, no bounds": _best_so_far(lambda field, seed, num: loadtune(field, seed, num, bounds=False)),
    "TPE": _best_so_far(unseeded(lambda seed: optuna.samplers.TPESampler(seed=seed))),
    "GP": _best_so_far(unseeded(lambda seed: optuna.samplers.GPSampler(seed=seed))),
    "random": _best_so_far(random_search),
    "rule: workers = cores": _best_so_far(rule(None)),
    "rule: 4 workers a GPU": _best_so_far(rule(4)),
}


def regrets(field: Field, way: Way, seed: int, num_trials: int, best: float) -> list[float]:
    """Share of the best rate that the answer falls short of, after 1, 2, … trials.

    Fewer than `num_trials` where the way ends by itself, more where a confirmation follows.
    """
    rates = [answer and field.surface.training_rate(answer) for answer in way(field, seed, num_trials)]
    return [1 - (rate or 0.0) / best for rate in rates]


def _suggest(trial: optuna.Trial, name: str, axis: object) -> object:
    values = list(axis)  # type: ignore[call-overload]
    return (
        values[trial.suggest_int(name, 0, len(values) - 1)]
        if is_ordered(values)
        else trial.suggest_categorical(name, values)
    )


def _measure(run: Run, space: SearchSpace, config: TrialConfig) -> float:
    if space.excess(config) > 0:
        return 0.0
    outcome = timed(run, config, TRIAL_SHARE, None)
    return outcome.samples_per_s if isinstance(outcome, Measurement) else 0.0
