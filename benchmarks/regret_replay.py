"""Ways of searching, replayed over a table instead of a machine: how far each is from the best after so many trials.

Every way sees the same space and the same noise. Its answer is the configuration with the best figure seen so far, and
after a confirmation its winner; the true rate of that counts. A trial is one that was really run, also by a
confirmation; above a memory ceiling it is lost.
"""

import random
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import optuna
from regret_table import Grid, GridSurface, Noise

from loadtune import stages
from loadtune.findings import Findings
from loadtune.records import ComputePoint, Measurement, RecipeChoice, TrialConfig, TuneConfig
from loadtune.stages import Run
from loadtune.stages.memory import find_ceiling
from loadtune.stages.run import TRIAL_SHARE
from loadtune.stages.searching import first_configs, study_loop
from loadtune.stages.timing import timed
from loadtune.study.optuna_study import OptunaStudy
from loadtune.study.space import SearchSpace, is_ordered
from loadtune.testing import FakeBench, FakeClock, FakeSensor, Surface

Seen = tuple[TrialConfig, float]
"""What was run and the figure it gave; 0 where it failed."""

PROBING = ("start", "recipe", "memory", "compute")
"""Stages before the search."""


@dataclass(frozen=True)
class Field:
    """A table ready for play."""

    grid: Grid
    surface: Surface | GridSurface
    noise: Noise

    def begin(self, seed: int, num_trials: int, *, as_long: bool = False) -> tuple[Run, SearchSpace]:
        """A run whose probes are done, and the space they span; `as_long`: probes and runs take their time."""
        grid, clock = self.grid, FakeClock()
        bench = FakeBench(
            self.surface,  # type: ignore[arg-type]
            clock=clock,
            noise=self.noise.windows,
            between_runs=self.noise.between_runs,
            seed=seed,
            facts=grid.facts,
        )
        config = TuneConfig(workload=grid.workload, num_trials=num_trials, seed=seed, time_budget_s=grid.time_budget_s)
        found = Findings(config, grid.host, grid.device, clock, "replay")
        found.facts, found.recipes, found.ceilings = grid.facts, grid.recipes, list(grid.ceilings)
        found.compute_points = grid.compute_points
        if as_long:
            clock.spend(self._probing_s)
            bench.prepare_s = self._prepare_s
        run = Run(bench, FakeSensor(clock), clock, found, Path(), lambda: grid.host)
        return run, stages.space(run, grid.facts, {choice.chosen.precision: choice.chosen for choice in grid.recipes})

    @property
    def _probing_s(self) -> float:
        """Of loadtune's own run beside the table; 0 where there was none."""
        stage_seconds = self.grid.duel.loadtune.stage_seconds if self.grid.duel.loadtune else {}
        return sum(stage_seconds.get(name, 0.0) for name in PROBING)

    @cached_property
    def _prepare_s(self) -> float:
        """What a run took beside what a replayed one takes in windows, mean over the table; the fakes' without one."""
        measured = [(row.config, run.seconds) for row in self.grid.rows for run in row.runs]
        if not measured:
            return FakeBench().prepare_s
        run, _ = self.begin(0, 1)
        assert isinstance(run.bench, FakeBench)
        run.bench.prepare_s, replayed = 0.0, []
        for config, _ in measured:
            began = run.clock.now()
            timed(run, config, TRIAL_SHARE, None)
            replayed.append(run.clock.now() - began)
        return max(0.0, statistics.fmean(seconds for _, seconds in measured) - statistics.fmean(replayed))

    def best_rate(self) -> float:
        _, space = self.begin(0, 1)
        return max(self.surface.training_rate(config) for config in space.configs())


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdedSurface(Surface):
    """The fakes' machine, but with an optimum inside: more than 10 workers crowd each other, large batches cost."""

    def training_rate(self, config: TrialConfig) -> float:
        crowd = 1 + 0.03 * max(0, config.loader.num_workers - 10)
        return Surface.training_rate(self, config) / crowd / (1 + 0.5 * (config.batch_size / 512) ** 2)


def simulated(surface: Surface) -> Field:
    """The public fakes' machine as a field: a surface of known shape, not a measurement."""
    from loadtune.probe.compute import compute_curve
    from loadtune.records import Device, Recipe
    from loadtune.testing import fake_facts, fake_host

    bench, host, facts = FakeBench(surface, noise=0.0), fake_host(), fake_facts(surface)
    device = Device(kind="cuda", uuid="GPU-0", name="Fake GPU")
    recipes = [Recipe(precision=p, memory_format="channels_last", fused_optimizer=True) for p in surface.compute_per_s]
    points = [point for recipe in recipes if isinstance(point := bench.time_compute(recipe, 64, 1.0), ComputePoint)]
    ceilings = [
        find_ceiling(bench, recipe, facts, host, host, device, {"dataset": facts.dataset_length}) for recipe in recipes
    ]
    top = {ceiling.precision: ceiling.safe_batch_size for ceiling in ceilings}
    curve = compute_curve(bench, points, top, clock=bench.clock, until_s=1e9, point_s=1.0)
    grid = Grid(
        name="simulated",
        created="",
        host=host,
        device=device,
        workload=TuneConfig().workload,
        facts=facts,
        recipes=tuple(RecipeChoice(chosen=point.recipe, points=(point,)) for point in points),
        ceilings=tuple(ceilings),
        compute_points=curve,
        time_budget_s=TuneConfig().time_budget_s,
    )
    return Field(grid, surface, Noise(between_runs=0.06, windows=0.02))


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
