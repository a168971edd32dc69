"""Measured configurations of one workload on one machine, and a rate for those in between. Pure, but for the file.

In: a table that ``regret.py --grid`` measured. Out: a surface that `loadtune.testing.FakeBench` replays. Between the
measured rows the rate is `regret_fit`'s.
"""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from regret_fit import Fit, Foretold, place

from loadtune.probe.compute import compute_bound
from loadtune.records import (
    ComputePoint,
    Device,
    HostFacts,
    Measurement,
    MemoryCeiling,
    Precision,
    Recipe,
    RecipeChoice,
    TrialConfig,
    TuningResult,
    WorkloadFacts,
    WorkloadSpec,
)


class Row(msgspec.Struct, frozen=True):
    """One configuration and every run of it."""

    config: TrialConfig
    runs: tuple[Measurement, ...]

    @property
    def rate(self) -> float:
        return statistics.fmean(run.samples_per_s for run in self.runs)


class Duel(msgspec.Struct, frozen=True):
    """loadtune's winner and the table's best, measured again in turn."""

    rows: tuple[Row, ...] = ()
    """The winner first."""
    loadtune: TuningResult | None = None


class Grid(msgspec.Struct, frozen=True):
    """What was measured, on what, under which bounds."""

    name: str
    created: str
    host: HostFacts
    device: Device
    workload: WorkloadSpec
    facts: WorkloadFacts
    recipes: tuple[RecipeChoice, ...]
    ceilings: tuple[MemoryCeiling, ...]
    compute_points: tuple[ComputePoint, ...]
    time_budget_s: float
    rows: tuple[Row, ...] = ()
    grid_seconds: float = 0.0
    """What measuring the rows took."""
    duel: Duel = Duel()


def read_grid(path: Path) -> Grid:
    return msgspec.json.decode(path.read_bytes(), type=Grid)


def write_grid(grid: Grid, path: Path) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(grid), indent=1) + b"\n")
    temporary.replace(path)


@dataclass(frozen=True, slots=True)
class Noise:
    """Relative standard deviations: from run to run, and from window to window within one."""

    between_runs: float
    windows: float


def noise_of(rows: tuple[Row, ...]) -> Noise:
    """Pooled over the rows."""
    squares = [
        (math.log(run.samples_per_s) - statistics.fmean(math.log(each.samples_per_s) for each in row.runs)) ** 2
        for row in rows
        for run in row.runs
    ]
    degrees = sum(len(row.runs) - 1 for row in rows)
    widths = [
        statistics.stdev(rates) / statistics.fmean(rates)
        for row in rows
        for run in row.runs
        if len(rates := [window.num_samples / window.seconds for window in run.windows]) > 1
    ]
    return Noise(
        between_runs=math.sqrt(math.fsum(squares) / degrees) if degrees else 0.0,
        windows=statistics.median(widths) if widths else 0.0,
    )


def foretold(grid: Grid) -> Foretold:
    return Foretold(grid.compute_points, grid.facts.sample_s)


def all_rows(grid: Grid) -> tuple[Row, ...]:
    """Every run of each configuration, the duel's among them: by its own runs alone, the table's best was lucky.

    So for the noise: a row's two runs lie minutes apart, and a machine drifts meanwhile; a duel's rounds do not.
    """
    runs: dict[TrialConfig, list[Measurement]] = {}
    for row in (*grid.rows, *grid.duel.rows):
        runs.setdefault(row.config, []).extend(row.runs)
    return tuple(Row(config, tuple(own)) for config, own in runs.items() if own)


def known_rates(grid: Grid) -> list[tuple[TrialConfig, float]]:
    return [(row.config, row.rate) for row in all_rows(grid)]


class GridSurface:
    """The table as a machine: measured where it was measured, fitted elsewhere. What `FakeBench` asks a surface."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._waits = {row.config: statistics.fmean(run.wait_fraction for run in row.runs) for row in grid.rows}
        known = known_rates(grid)
        self._fit, self._rates = Fit(known, foretold(grid)), dict(known)
        self._rows = tuple(self._waits)
        self.compute_per_s = {choice.chosen.precision: 0.0 for choice in grid.recipes}
        self.budget_bytes = grid.facts.memory_budget_bytes

    def training_rate(self, config: TrialConfig) -> float:
        if config not in self._rates:
            self._rates[config] = self._fit(config)
        return self._rates[config]

    def wait_fraction(self, config: TrialConfig) -> float:
        """The measured one; where it was not, of the nearest row that was."""
        if config not in self._waits:
            here = place(config)
            near = min(self._rows, key=lambda known: float(np.sum((place(known) - here) ** 2)))
            self._waits[config] = self._waits[near]
        return self._waits[config]

    def pins_in_time(self, config: TrialConfig) -> bool:
        """Nothing is known of the pinning thread."""
        return True

    def compute_rate(self, recipe: Recipe, batch_size: int) -> float:
        known = compute_bound(self._grid.compute_points, recipe, batch_size)
        return known or foretold(self._grid).compute_per_s(recipe.precision, batch_size)

    def peak_bytes(self, precision: Precision, batch_size: int) -> int:
        return 0

    def largest_batch(self, precision: Precision) -> int:
        return next(ceiling.batch_size for ceiling in self._grid.ceilings if ceiling.precision == precision)
