"""How far from the best configuration a search ends, against trials: over measured tables, or on this machine.

    python benchmarks/regret.py --replay [--quick] [--seeds 200] [--trials 20] [TABLE …]
    python benchmarks/regret.py --grid [--quick] --workload memory-mlp [--small] [--within-s 500] [--rounds 6]
                                [--jpegs FOLDER] [--out TABLE]

``--replay`` needs no GPU: loadtune's own search, Optuna's samplers without seeds, chance and two rules of thumb play
over the tables in ``benchmarks/grids`` and over one simulated surface. ``--grid`` measures such a table, then lets
loadtune search, then measures its winner and the table's best three again in turn; it goes on where it was. Exit code
of a replay: 1 where chance or a sampler without seeds ends more than 1% closer to the best than loadtune's search, or
than what it has confirmed.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import optuna
from regret_field import CrowdedSurface, Field, simulated
from regret_fit import leave_one_out
from regret_replay import WAYS, regrets
from regret_table import GridSurface, all_rows, foretold, known_rates, noise_of, read_grid

from loadtune.records import TuneConfig
from loadtune.units import percent_text

GRIDS = Path(__file__).parent / "grids"
QUICK_SEEDS = 40
"""Of eight, TPE's median on one table was 2.2% where 200 say 9.2%."""

CLOSER = 0.01
"""By how much another search's median has to be closer to the best."""

RANKS = 0.15
"""Noise between runs up to which a table may decide an exit code; above it, who is closer to the best is luck."""

SLOW = ("GP", "loadtune, no bounds")
"""Left out for CI: what costs the most, and what no exit code asks for."""

GP_SEEDS = 20
"""At most: a GP trial costs 50 times a TPE one. Its row says how many it is made of."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--replay", action="store_true")
    mode.add_argument("--grid", action="store_true")
    parser.add_argument("--quick", action="store_true", help="few seeds and ways, or four small configurations: for CI")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--workload", default="memory-mlp")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU of two cores")
    parser.add_argument("--within-s", type=float, default=500.0)
    parser.add_argument(
        "--budget-s", type=float, default=TuneConfig().time_budget_s, help="time budget of loadtune's run"
    )
    parser.add_argument("--rounds", type=int, default=6, help="of loadtune's winner and the table's best, each once")
    parser.add_argument("--jpegs", type=Path, help="folder for the JPEG files, made where it is empty")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> int:
    given = arguments()
    if given.grid:
        from regret_grid import measure

        return measure(given)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return replay(given)


def replay(given: argparse.Namespace) -> int:
    """Print a table for each field. 1: a search without seeds ended closer to the best by more than 1%."""
    seeds = QUICK_SEEDS if given.quick else given.seeds
    lost = 0
    for field in [_field(path) for path in given.tables or sorted(GRIDS.glob("*.json"))] + [
        simulated(CrowdedSurface())
    ]:
        best = field.best_rate()
        noise = (
            f"{percent_text(field.noise.between_runs, 1)} between runs, {percent_text(field.noise.windows, 1)} windows"
        )
        print(f"\n## {field.grid.name}: {field.grid.device.name}, best {best:,.0f}/s, noise {noise}")
        if field.grid.rows:
            median, worst = leave_one_out(known_rates(field.grid), foretold(field.grid))
            print(
                f"{len(field.grid.rows)} rows; a row left out is missed by {median:.1%} (median), {worst:.1%} at most"
            )
        worse = _play(field, seeds, given.trials, best, quick=given.quick)
        lost += worse and field.noise.between_runs <= RANKS
    return int(lost > 0)


def _field(path: Path) -> Field:
    grid = read_grid(path)
    return Field(grid, GridSurface(grid), noise_of(all_rows(grid)))


def _play(field: Field, seeds: int, num_trials: int, best: float, *, quick: bool) -> bool:
    """Whether a search without seeds ended closer to the best than loadtune, by more than 1%."""
    at = [n for n in (1, 2, 4, 6, 8, 12, 16, 20, 30, 50) if n <= num_trials]
    print("\nregret, median / 95th percentile, after trials; runs, mean, and regret at the end:")
    print(f"{'':24}{'seeds':>6}" + "".join(f"{n:>15}" for n in at) + f"{'runs':>7}{'end':>15}{'s':>7}")
    last: dict[str, float] = {}
    for name, way in WAYS.items():
        if quick and name in SLOW:
            continue
        number, started = min(seeds, GP_SEEDS) if name == "GP" else seeds, time.monotonic()
        runs = [regrets(field, way, seed, num_trials, best) for seed in range(number)]
        cells = [_cell(sorted(run[min(n, len(run)) - 1] for run in runs)) for n in at]
        num_runs, end = statistics.fmean(map(len, runs)), _cell(sorted(run[-1] for run in runs))
        last[name] = statistics.median(run[-1] for run in runs)
        columns = "".join(f"{cell:>15}" for cell in cells)
        print(f"{name:24}{number:>6}{columns}{num_runs:7.1f}{end:>15}{time.monotonic() - started:7.1f}")
    searches = {name: regret for name, regret in last.items() if name in ("TPE", "GP", "random")}
    return max(last["loadtune"], last["loadtune, confirmed"]) > min(searches.values()) + CLOSER


def _cell(ordered: list[float]) -> str:
    return f"{statistics.median(ordered):.1%} / {ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]:.1%}"


if __name__ == "__main__":
    sys.exit(main())
