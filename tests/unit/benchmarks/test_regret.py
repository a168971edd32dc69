"""The replay over a table: what it reads and fits, and that the search it plays is reproducible."""

import math
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from regret_field import CrowdedSurface, Field, simulated
from regret_fit import leave_one_out
from regret_replay import WAYS, regrets
from regret_table import (
    Duel,
    Grid,
    GridSurface,
    Noise,
    Row,
    all_rows,
    foretold,
    known_rates,
    noise_of,
    read_grid,
    write_grid,
)

from loadtune.records import Measurement, TrainingRun, TrialConfig, TrialFailure, Window
from loadtune.seams import Watch
from loadtune.stages.run import TRIAL_SHARE
from loadtune.stages.timing import timed
from loadtune.testing import FakeBench, Surface

ROOT = Path(__file__).parents[3]
GRIDS = sorted((ROOT / "benchmarks" / "grids").glob("*.json"))


def row(config: TrialConfig, *rates: float) -> Row:
    runs = tuple(
        Measurement(
            windows=tuple(
                Window(start_s=float(at), seconds=1.0, num_steps=4, num_samples=round(rate * 1000)) for at in range(3)
            ),
            first_batch_s=0.1,
            seconds=3.0,
        )
        for rate in rates
    )
    return Row(config=config, runs=runs)


@pytest.fixture(scope="module")
def field() -> Field:
    return simulated(CrowdedSurface())


@pytest.fixture(scope="module")
def table(field: Field) -> Grid:
    """Every fifth configuration of the simulated space, measured twice without noise of windows."""
    _, space = field.begin(0, 1)
    rows = [row(c, *(field.surface.training_rate(c) / 1000 * s for s in (0.97, 1.03))) for c in space.configs()]
    return Grid(
        **{name: getattr(field.grid, name) for name in field.grid.__struct_fields__} | {"rows": tuple(rows[::5])}
    )


def test_a_table_survives_its_file(table: Grid, tmp_path: Path) -> None:
    write_grid(table, tmp_path / "deep" / "t.json")
    assert read_grid(tmp_path / "deep" / "t.json") == table


def test_noise_is_pooled_over_the_rows(table: Grid) -> None:
    noise = noise_of(table.rows)
    assert noise.between_runs == pytest.approx(math.log(1.03 / 0.97) / math.sqrt(2), rel=0.01)
    assert noise.windows == 0.0


def test_measured_rows_are_played_as_measured_and_the_rest_is_near(table: Grid, field: Field) -> None:
    surface = GridSurface(table)
    assert surface.training_rate(table.rows[7].config) == pytest.approx(table.rows[7].rate)
    _, space = field.begin(0, 1)
    errors = sorted(
        abs(surface.training_rate(config) / field.surface.training_rate(config) - 1) for config in space.configs()
    )
    assert errors[len(errors) // 2] < 0.05
    assert leave_one_out(known_rates(table), foretold(table))[0] < 0.2


def test_a_rate_is_of_all_runs_of_a_configuration_the_duels_among_them(table: Grid) -> None:
    first, second = table.rows[:2]
    other = row(second.config, 7.0)
    dueled = msgspec.structs.replace(
        table, rows=(row(first.config, 4.0, 6.0),), duel=Duel((row(first.config, 8.0), other))
    )
    assert known_rates(dueled) == [(first.config, pytest.approx(6000.0)), (second.config, pytest.approx(7000.0))]
    three = statistics.stdev(math.log(rate) for rate in (4.0, 6.0, 8.0))
    assert noise_of(all_rows(dueled)).between_runs == pytest.approx(three)


@pytest.mark.parametrize("way", sorted(set(WAYS) - {"GP"}))
def test_every_way_is_reproducible_and_gets_no_worse_with_what_it_saw(field: Field, way: str) -> None:
    best = field.best_rate()
    once, again = (regrets(field, WAYS[way], 3, 8, best) for _ in range(2))
    assert once == again
    assert len(once) == (1 if way.startswith("rule") else 8) or way == "loadtune, confirmed"
    assert all(0 <= regret <= 1 for regret in once)


class LuckyBench(FakeBench):
    """The first run of each batch of 64 or fewer reads four times what it trains."""

    def time_training(self, config: TrialConfig, window_s: float, watch: Watch) -> TrainingRun | TrialFailure:
        surface = self.surface
        if config.batch_size <= 64 and ("training", config.batch_size) not in self.requests:
            self.surface = replace(surface, sample_s=surface.sample_s / 4)
        try:
            return super().time_training(config, window_s, watch)
        finally:
            self.surface = surface


def test_a_confirmation_takes_a_lucky_figure_out_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four workers keep up with nothing: the batch makes no difference but that."""
    monkeypatch.setattr("regret_field.FakeBench", LuckyBench)
    starved = simulated(Surface(sample_s=1 / 30))
    lucky = Field(starved.grid, starved.surface, Noise(between_runs=0.0, windows=0.0))
    searched = list(WAYS["loadtune"](lucky, 0, 10))
    confirmed = list(WAYS["loadtune, confirmed"](lucky, 0, 10))
    assert searched[-1] is not None
    assert searched[-1].batch_size <= 64
    assert confirmed[: len(searched)] == searched
    assert 4 <= len(confirmed) - len(searched) <= 12
    assert confirmed[-1] != searched[-1]


def test_probes_and_runs_take_the_time_they_took_on_the_machine(table: Grid) -> None:
    ran = msgspec.structs.replace(table, rows=(row(table.rows[0].config, 1.0),))
    result = read_grid(GRIDS[0]).duel.loadtune
    dueled = msgspec.structs.replace(ran, duel=Duel((), result))
    quick, slow = (
        Field(grid, GridSurface(ran), noise_of(ran.rows)).begin(0, 1, as_long=True)[0] for grid in (ran, dueled)
    )
    assert result is not None
    before = [result.stage_seconds[name] for name in ("start", "recipe", "memory", "compute")]
    assert quick.found.left_s - slow.found.left_s == pytest.approx(sum(before))


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_the_tables_own_rows_last_as_long_as_they_did(path: Path) -> None:
    grid = read_grid(path)
    run, _ = Field(grid, GridSurface(grid), noise_of(all_rows(grid))).begin(0, 1, as_long=True)
    began = run.clock.now()
    for each in grid.rows:
        for _ in each.runs:
            timed(run, each.config, TRIAL_SHARE, None)
    measured = sum(one.seconds for each in grid.rows for one in each.runs)
    assert run.clock.now() - began == pytest.approx(measured, rel=0.05)


_TRIALS = """
from regret_field import CrowdedSurface, simulated
from regret_replay import loadtune
print([(repr(config), rate) for config, rate in loadtune(simulated(CrowdedSurface()), 5, 14)])
"""


def test_a_fresh_process_tries_the_same() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", _TRIALS],
            cwd=ROOT / "benchmarks",
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}", "PATH": "", "PYTHONHASHSEED": hashing},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for hashing in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("LoaderConfig") >= 8


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_the_kept_tables_can_be_played(path: Path) -> None:
    grid = read_grid(path)
    played = Field(grid, GridSurface(grid), noise_of(all_rows(grid)))
    assert len(grid.rows) >= 24
    assert 0 <= regrets(played, WAYS["loadtune, confirmed"], 0, 20, played.best_rate())[-1] < 1
