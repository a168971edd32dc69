"""A table measured on this machine, then loadtune's own run, then its winner against the table's best three.

Each call goes on where the last one was, and ends after ``--within-s`` seconds: the table is written after every row.
"""

import argparse
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
from regret_table import Duel, Grid, Row, all_rows, noise_of, read_grid, write_grid
from regret_workloads import spec_of

from loadtune import stages
from loadtune.bench import BenchClient
from loadtune.findings import Findings
from loadtune.host import MonotonicClock, Sampler, choose_device, read_host
from loadtune.probe.host_memory import host_memory_refusal
from loadtune.records import Measurement, TrialConfig, TuneConfig
from loadtune.stages import Run
from loadtune.stages.run import TRIAL_SHARE
from loadtune.stages.timing import timed
from loadtune.study.confirm import between_run_spread
from loadtune.study.space import SearchSpace
from loadtune.tune import tune_loader

NUM_ROWS, NUM_RUNS = 24, 2
NUM_BEST = 3
QUICK_ROWS, QUICK_ROUNDS, QUICK_BUDGET_S = 4, 2, 20.0
"""For CI: they say that it works, and nothing of the search."""


def measure(given: argparse.Namespace) -> int:
    """Measure what is still missing. 0: the table is complete; 3: call again."""
    if not given.quick:
        return _measure(given, NUM_ROWS)
    with tempfile.TemporaryDirectory() as folder:
        given.small, given.rounds, given.budget_s = True, QUICK_ROUNDS, QUICK_BUDGET_S
        given.out = given.out or Path(folder) / "table.json"
        return _measure(given, QUICK_ROWS)


def _measure(given: argparse.Namespace, num_rows: int) -> int:
    spec = spec_of(given.workload, small=given.small, folder=given.jpegs)
    name = f"{given.workload}{'-small' if given.small else ''}"
    path = given.out or Path(__file__).parent / "grids" / f"{name}.json"
    until = time.monotonic() + given.within_s
    config = TuneConfig(workload=spec, time_budget_s=given.budget_s)
    with _Machine(config) as machine:
        grid = read_grid(path) if path.exists() else _probe(machine, name)
        machine.restore(grid)
        keep = partial(write_grid, path=path)
        grid = _duel(machine, _fill(machine, grid, num_rows, until, keep), until, keep, given.rounds)
    done = _is_filled(grid) and grid.duel.loadtune is not None and _rounds(grid.duel) >= given.rounds
    print(_verdict(grid) if done else f"not complete: call again with the same arguments ({path})")
    return 0 if done else 3


class _Machine:
    """The real bench with a run around it."""

    def __init__(self, config: TuneConfig) -> None:
        self.config, self.host = config, read_host()
        self.device = choose_device(self.host, config.device)
        self._folder = tempfile.TemporaryDirectory()
        self.bench = BenchClient(config.workload, self.device, log_path=Path(self._folder.name) / "bench.log")
        self._sensor = Sampler(self.device, lambda: self.bench.pid, self.host.num_usable_cores)

    def __enter__(self) -> "_Machine":
        sensor = self._sensor.__enter__()
        clock = MonotonicClock()
        found = Findings(self.config, self.host, self.device, clock, "grid", lambda progress: _say(progress.message))
        self.run = Run(self.bench, sensor, clock, found, Path(self._folder.name), read_host)
        return self

    def __exit__(self, *_: object) -> None:
        self.bench.close()
        self._sensor.__exit__(None, None, None)
        self._folder.cleanup()

    @contextmanager
    def given_away(self) -> Iterator[None]:
        """Bench and sampler closed: device and driver are another's meanwhile. The next request starts a fresh one."""
        self.bench.close()
        self._sensor.__exit__(None, None, None)
        try:
            yield
        finally:
            self._sensor.__enter__()

    def restore(self, grid: Grid) -> None:
        found = self.run.found
        found.facts, found.recipes, found.ceilings = grid.facts, grid.recipes, list(grid.ceilings)
        found.compute_points = grid.compute_points

    def space(self, grid: Grid) -> SearchSpace:
        return stages.space(self.run, grid.facts, {each.chosen.precision: each.chosen for each in grid.recipes})

    def time(self, config: TrialConfig) -> Measurement | None:
        outcome = timed(self.run, config, TRIAL_SHARE, None)
        _say(f"{config.batch_size:6} × {config.loader.num_workers:2} {config.precision}: {_outcome_text(outcome)}")
        return outcome if isinstance(outcome, Measurement) else None


def _probe(machine: _Machine, name: str) -> Grid:
    run = machine.run
    facts = stages.start(run)
    recipes = stages.recipes(run, facts)
    stages.memory(run, facts, recipes)
    stages.compute(run, facts)
    return Grid(
        name=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        host=machine.host,
        device=machine.device,
        workload=machine.config.workload,
        facts=facts,
        recipes=run.found.recipes,
        ceilings=tuple(replace(ceiling, probes=(), small_sizes=()) for ceiling in run.found.ceilings),
        compute_points=run.found.compute_points,
        time_budget_s=machine.config.time_budget_s,
    )


def spread(space: SearchSpace, fits: Callable[[TrialConfig], bool], count: int) -> list[TrialConfig]:
    """`count` configurations far from each other: each the one farthest from those before it; the first by chance."""
    left = [config for config in space.configs() if fits(config)]
    random.Random(0).shuffle(left)
    picked = left[:1]
    while len(picked) < min(count, len(left)):
        picked.append(max(left, key=lambda config: min(_distance(space, config, other) for other in picked)))
    return picked


def _distance(space: SearchSpace, one: TrialConfig, other: TrialConfig) -> float:
    """Each axis counts 1 from end to end."""
    first, second = space.point(one), space.point(other)
    steps = [
        (axis.index(first[name]) - axis.index(second[name])) / max(1, len(axis) - 1)
        for name, axis in space.axes.items()
    ]
    return math.sqrt(math.fsum(step**2 for step in steps))


def _is_filled(grid: Grid) -> bool:
    return len(grid.rows) >= 1 and all(len(row.runs) >= NUM_RUNS for row in grid.rows)


def _fill(machine: _Machine, grid: Grid, num_rows: int, until: float, keep: Callable[[Grid], None]) -> Grid:
    """Every configuration once, then every one again, so that drift shows as noise between runs."""
    space = machine.space(grid)
    wanted = spread(
        space, lambda c: host_memory_refusal(c.loader, grid.facts.sample_bytes, machine.host) is None, num_rows
    )
    for number in range(NUM_RUNS):
        for config in wanted:
            row = next((row for row in grid.rows if row.config == config), Row(config=config, runs=()))
            if len(row.runs) > number or time.monotonic() > until:
                continue
            began = time.monotonic()
            measured = machine.time(config)
            if measured is None:
                continue
            others = tuple(other for other in grid.rows if other.config != config)
            grid = msgspec.structs.replace(
                grid,
                rows=(*others, Row(config=config, runs=(*row.runs, _slim(measured)))),
                grid_seconds=grid.grid_seconds + time.monotonic() - began,
            )
            keep(grid)
    return grid


def _duel(machine: _Machine, grid: Grid, until: float, keep: Callable[[Grid], None], rounds: int) -> Grid:
    """loadtune's run, then its winner and the table's best in turn."""
    if not _is_filled(grid) or time.monotonic() + _left_s(machine, grid) > until:
        return grid
    if grid.duel.loadtune is None:
        with machine.given_away(), tempfile.TemporaryDirectory() as folder:
            result = tune_loader(machine.config, folder=Path(folder), listener=lambda progress: _say(progress.message))
        if result.best is None:
            return grid
        ranked = sorted(grid.rows, key=lambda row: -row.rate)
        configs = dict.fromkeys([result.best.config, *(row.config for row in ranked[:NUM_BEST])])
        slim = replace(result, trials=(), ceilings=(), compute_points=(), recipes=())
        grid = msgspec.structs.replace(grid, duel=Duel(tuple(Row(config, ()) for config in configs), slim))
        keep(grid)
    while _rounds(grid.duel) < rounds and time.monotonic() < until:
        rows, shift = grid.duel.rows, _rounds(grid.duel) % len(grid.duel.rows)
        runs = {row.config: machine.time(row.config) for row in (*rows[shift:], *rows[:shift])}
        rows = tuple(
            Row(row.config, (*row.runs, _slim(measured))) if (measured := runs[row.config]) else row for row in rows
        )
        grid = msgspec.structs.replace(grid, duel=Duel(rows, grid.duel.loadtune))
        keep(grid)
    return grid


def _left_s(machine: _Machine, grid: Grid) -> float:
    return 0.0 if grid.duel.loadtune else machine.config.time_budget_s


def _rounds(duel: Duel) -> int:
    return min((len(row.runs) for row in duel.rows), default=0)


def _slim(measured: Measurement) -> Measurement:
    return replace(measured, telemetry=None)


def _verdict(grid: Grid) -> str:
    """loadtune's winner against the best of those measured beside it; a regret below 0 is a winner that beats them.

    The interval is of the spread between runs of all of them, and allows for having picked the best.
    """
    winner, rivals = grid.duel.rows[0], grid.duel.rows[1:]
    best = max(rivals, key=lambda row: row.rate)
    regret, spread = 1 - winner.rate / best.rate, between_run_spread([row.runs for row in grid.duel.rows])
    width = spread.half_width(2 / _rounds(grid.duel), len(rivals)) if spread else math.nan
    cost = grid.duel.loadtune.seconds if grid.duel.loadtune else math.nan
    noise = noise_of(all_rows(grid))
    return (
        f"{grid.name} on {grid.device.name}: winner {winner.rate:,.1f}/s, best beside it {best.rate:,.1f}/s, regret "
        f"{regret:.1%} ± {width:.1%}; loadtune took {cost:.0f} s, {len(grid.rows)} rows {grid.grid_seconds:.0f} s; "
        f"runs differ by {noise.between_runs:.1%}"
    )


def _outcome_text(outcome: object) -> str:
    return f"{outcome.samples_per_s:,.1f}/s" if isinstance(outcome, Measurement) else str(outcome)


def _say(message: str | None) -> None:
    if message:
        print(message, flush=True)
