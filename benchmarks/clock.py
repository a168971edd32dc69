"""Is a trial's samples/s true? Sleeping loaders and steps, through the real bench and stopping rule, against their log.

    python benchmarks/clock.py [--quick] [--note benchmarks/results/DATE-HOST-clock.md]

A cell is a number of workers, a prefetch factor, and which side is the slower one: either is meant for 800/s where it
is. Samples log when they were made, steps when they were done. After the stopping rule has seen enough the same loader
goes on, unmeasured, so that the truth spans several times what the trial saw.

Truth is the lesser of two rates over that span, as the logs have them: samples made (right from the first moment where
the loader is the slow side; too high while a queue fills that no step empties) and samples trained on (right where the
step is the slow side; too high while a queue runs down that was filled before). In each cell one step takes 2 s after
the workers have started, so every queue is full when the trial begins to count.
"""

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

from clock_cells import REGIMES, STEADY, Cell, Outcome, run

from loadtune import __version__
from loadtune.host import read_host

TOLERANCE = 0.03
WORKERS, PREFETCH = (1, 2, 4, 8), (2, 4, 8)
QUICK = ((8, 8, "loader"), (8, 2, "compute"), (4, 8, "balanced"))
LINGER_S, QUICK_LINGER_S = 6.0, 3.0

HEAD = (
    "workers | prefetch | slow side | made | trained | truth | claimed | error | same seconds | every batch counted | "
    "s | tries"
)


def row(o: Outcome) -> str:
    cells = [o.cell.num_workers, o.cell.prefetch_factor, o.cell.regime]
    rates = [f"{value:.1f}" for value in (o.made, o.trained, o.truth, o.claimed)]
    tries = f"{o.num_tries}{'' if o.steady else ', unsteady'}"
    errors = [f"{o.error:+.1%}", f"{o.claimed / o.same_s - 1:+.1%}", f"{o.counted / o.truth - 1:+.1%}"]
    return f"| {' | '.join(map(str, [*cells, *rates, *errors, f'{o.trial_s:.1f}' + ', noisy' * o.noisy, tries]))} |"


def same_error(o: Outcome) -> float:
    return abs(o.claimed / o.same_s - 1)


def verdict(outcomes: Sequence[Outcome]) -> str:
    errors = [abs(o.error) for o in outcomes]
    counted = max(abs(o.counted / o.truth - 1) for o in outcomes)
    beyond = sum(error > TOLERANCE for error in errors)
    return (
        f"Error of {len(errors)} cells: worst {max(errors):.1%}, median {statistics.median(errors):.1%}; "
        f"{beyond} beyond {TOLERANCE:.0%}. Over the trial's own seconds: worst {max(map(same_error, outcomes)):.1%}. "
        f"Counting every batch: worst {counted:.1%}."
    )


def note(outcomes: Sequence[Outcome], load: float) -> str:
    host, today = read_host(), datetime.now(UTC).date()
    table = "\n".join([f"| {HEAD} |", "|" + "---|" * (HEAD.count("|") + 1), *map(row, outcomes)])
    return (
        f"# The clock against a known truth on a CPU, {today}\n\n"
        f"host: {host.cpu_name}, {host.num_usable_cores} cores, {platform.platform()}, load {load:.1f} before. "
        f"Python: {host.python}. loadtune: {__version__}. torch: {host.torch}.\n\n"
        f"Command: `python benchmarks/{' '.join([Path(__file__).name, *sys.argv[1:]])}`.\n\n"
        f"{verdict(outcomes)}\n\nRates are samples/s. {' '.join((__doc__ or '').split('clock.md]')[1].split())}\n\n"
        "`same seconds` is the error against the logs over the trial's own seconds: what the clock adds. The rest of "
        "`error` is what differs between those seconds and the whole span. `every batch counted` is a clock's that "
        "starts at the first batch and takes batches out of a full queue for throughput. `tries`: a cell is measured "
        f"again where the logs of the trial's seconds and of those after it differ by more than {STEADY:.1%}, which is "
        f"other programs' doing; the clock is not asked.\n\n{table}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--note", type=Path)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    cells = [Cell(*cell) for cell in (QUICK if given.quick else product(WORKERS, PREFETCH, REGIMES))]
    outcomes = []
    print(f"| {HEAD} |")
    for outcome in run(cells, QUICK_LINGER_S if given.quick else LINGER_S):
        outcomes.append(outcome)
        print(row(outcome), flush=True)
    print(verdict(outcomes))
    if given.note:
        given.note.write_text(note(outcomes, load), encoding="utf-8")
    sys.exit(any(abs(outcome.error) > TOLERANCE for outcome in outcomes))


if __name__ == "__main__":
    main()
