"""A measured table, or a surface of known shape, ready for play: a run whose probes are done, over a fake bench."""

import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from regret_table import Grid, GridSurface, Noise

from loadtune import stages
from loadtune.findings import Findings
from loadtune.probe.compute import compute_curve
from loadtune.records import ComputePoint, Device, Recipe, RecipeChoice, TrialConfig, TuneConfig
from loadtune.stages import Run
from loadtune.stages.memory import find_ceiling
from loadtune.stages.run import TRIAL_SHARE
from loadtune.stages.timing import timed
from loadtune.study.space import SearchSpace
from loadtune.testing import FakeBench, FakeClock, FakeSensor, Surface, fake_facts, fake_host

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdedSurface(Surface):
    """The fakes' machine, but with an optimum inside: more than 10 workers crowd each other, large batches cost."""

    def training_rate(self, config: TrialConfig) -> float:
        crowd = 1 + 0.03 * max(0, config.loader.num_workers - 10)
        return Surface.training_rate(self, config) / crowd / (1 + 0.5 * (config.batch_size / 512) ** 2)


def simulated(surface: Surface) -> Field:
    """The public fakes' machine as a field: a surface of known shape, not a measurement."""
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
