"""The search of a run over measured tables: it ends near the best of each, and closer than chance."""

import statistics
from pathlib import Path

import pytest
import replay

MEASURED = sorted((Path(__file__).parents[3] / "benchmarks" / "measured").glob("*.json"))
TABLES = [path for path in MEASURED if not path.stem.startswith("steps-")]
SEEDS = range(4)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_search_ends_near_the_best_of_a_measured_table(path: Path) -> None:
    played = replay.read(path)
    found = [replay.replayed(played, "loadtune", 12, seed) for seed in SEEDS]
    most = round(statistics.fmean(number for number, _ in found))
    by_chance = [replay.replayed(played, "random", most, seed)[1] for seed in SEEDS]
    assert statistics.fmean(regret for _, regret in found) <= 0.03
    assert statistics.fmean(regret for _, regret in found) < statistics.fmean(by_chance)
