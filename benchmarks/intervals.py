"""Do the intervals keep their word? Coverage as used, A/A through the whole confirmation, and what can be told apart.

    python benchmarks/intervals.py [--quick] [--simulations N] [--real N [--device cuda]] [--note FILE]

Simulations of known truth through the tuner's own stopping rule and confirmation; needs no torch and no GPU. `--real N`
adds N comparisons of one configuration with itself on this machine, which are reported and not judged. Ends with 1
where a promise is not kept: 93% or more of the intervals of nominally 95% hold the truth, and of identical
configurations nominally 5% are called different (upper 95% confidence limit at most 7%).
"""

import argparse
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from intervals_confirm import Alike, alike, power, power_in
from intervals_coverage import Coverage, cover, given_up
from intervals_grid import (
    ALIKE,
    BEYOND,
    GAINS,
    MAX_S,
    NUM_FINALISTS,
    NUM_RUNS,
    PROMISED,
    QUICK,
    QUICK_ALIKE,
    SHARES,
    TIME_BUDGETS_S,
)
from intervals_note import Power, alike_table, coverage_table, failures, given_up_table, power_table, real_table
from intervals_real import CASES, RealComparison, real_comparisons
from intervals_steps import StepTimes

from loadtune import __version__

SEED = 20261121


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Everything that was simulated and run; empty what was not."""

    covered: Sequence[Coverage] = ()
    beyond: Sequence[Coverage] = ()
    alike: Sequence[Alike] = ()
    given_up: Sequence[tuple[StepTimes, Sequence[float]]] = ()
    by_runs: Sequence[Power] = ()
    by_budget: Sequence[Power] = ()
    real: Sequence[RealComparison] = ()


Map = Callable[..., Iterable[Any]]
"""`map`, or that of a pool of processes."""


def quick(num: int) -> Results:
    """Some of the cases that carry a promise, in this process: for CI."""
    return Results(covered=_cover(map, QUICK, MAX_S[:1], num), alike=_alike(map, QUICK_ALIKE, num))


def full(num: int) -> Results:
    """Every case, over all cores."""
    with ProcessPoolExecutor() as pool:
        return Results(
            covered=_cover(pool.map, PROMISED, MAX_S, num),
            beyond=_cover(pool.map, BEYOND, MAX_S, num),
            alike=_alike(pool.map, ALIKE, num),
            given_up=_given_up(pool.map, num),
            by_runs=_power_by_runs(pool.map, num),
            by_budget=_power_by_budget(pool.map, num),
        )


def _cover(run: Map, processes: Sequence[StepTimes], lengths: Sequence[float], num: int) -> list[Coverage]:
    cases = [(steps, max_s, num, SEED + at) for at, steps in enumerate(processes) for max_s in lengths]
    return list(run(cover, *zip(*cases, strict=True)))


def _given_up(run: Map, num: int) -> list[tuple[StepTimes, Sequence[float]]]:
    cases = [(steps, share, num, SEED) for steps in QUICK for share in SHARES]
    shares = iter(list(run(given_up, *zip(*cases, strict=True))))
    return [(steps, [next(shares) for _ in SHARES]) for steps in QUICK]


def _alike(run: Map, cases: Sequence[tuple[int, str]], num: int) -> list[Alike]:
    drawn = [(number, schedule, num, SEED + at) for at, (number, schedule) in enumerate(cases)]
    return list(run(alike, *zip(*drawn, strict=True)))


def _power_by_runs(run: Map, num: int) -> list[Power]:
    rows = [(number, num_runs) for number in (min(NUM_FINALISTS), max(NUM_FINALISTS)) for num_runs in NUM_RUNS]
    cases = [(number, num_runs, gain, num, SEED) for number, num_runs in rows for gain in GAINS]
    shares = iter(list(run(power, *zip(*cases, strict=True))))
    return [
        Power(row=(str(number), str(num_runs)), shares=tuple(next(shares) for _ in GAINS)) for number, num_runs in rows
    ]


def _power_by_budget(run: Map, num: int) -> list[Power]:
    cases = [(budget_s, 3, gain, num, SEED) for budget_s in TIME_BUDGETS_S for gain in GAINS]
    told = iter(list(run(power_in, *zip(*cases, strict=True))))
    rows = []
    for budget_s in TIME_BUDGETS_S:
        own = [next(told) for _ in GAINS]
        row = (f"{budget_s:.0f} s", f"{own[0][1]:.1f}")
        rows.append(Power(row=row, shares=tuple(share for share, _ in own)))
    return rows


def report(results: Results, num: int) -> str:
    by_runs, by_budget = ("finalists", "runs each"), ("time budget", "runs of the winner")
    parts = [
        ("Coverage", _ON_COVERAGE, results.covered, coverage_table),
        ("Where nothing is promised", _ON_BEYOND, results.beyond, coverage_table),
        ("Given up early", _ON_GIVEN_UP, results.given_up, partial(given_up_table, SHARES)),
        ("Identical configurations", _ON_ALIKE, results.alike, alike_table),
        ("Told apart, by number of runs", _ON_POWER, results.by_runs, partial(power_table, by_runs, GAINS)),
        ("Told apart, by time budget", _ON_BUDGET, results.by_budget, partial(power_table, by_budget, GAINS)),
        ("Real runs of one configuration against itself", _ON_REAL, results.real, real_table),
    ]
    text = "\n\n".join(f"## {title}\n\n{on}\n\n{table(rows)}" for title, on, rows, table in parts if rows)
    return "\n".join([*_verdict(results, num), "", text, ""])


def _verdict(results: Results, num: int) -> list[str]:
    if not results.covered:
        return ["Nothing was simulated."]
    broken = failures(results.covered, results.alike)
    kept = ["Not kept:", *(f"- {each}" for each in broken)] if broken else ["Every promise is kept."]
    return [f"{num:,} simulations a line. {kept[0]}", *kept[1:]]


_ON_COVERAGE = (
    "Intervals of nominally 95%, windows cut by the bench's rule, runs ended by the stopping rule; at the default time "
    f"budget a run may take {MAX_S[0]:.1f} s; {MAX_S[1]:.1f} s are those of a budget half as large again. At least 93% "
    "have to hold the truth."
)
_ON_BEYOND = (
    "Nothing is promised here. A run of three to five correlated steps does not know its own error, and the windows of "
    "slow rounds cut them. All of these are marked noisy, and the confirmation uses the spread between runs."
)
_ON_GIVEN_UP = (
    "Share of the search's runs that end as hopeless, by what their true rate is of the incumbent's. Only those below "
    "80% may."
)
_ON_ALIKE = (
    "6.5% between runs, 5% between windows. A winner is picked among the finalists and compared with the user's own, "
    "which ties never favour. Nominally 5% are called different; the upper 95% confidence limit may be 7% at most. The "
    "allowance is for having picked the fastest. A difference of three times its interval ends a confirmation early."
)
_ON_POWER = (
    "Share of confirmations in which one finalist that is really faster wins and is called different from the user's "
    "own, all others being as fast as that. The confirmation makes three runs each at the most."
)
_ON_BUDGET = (
    "The same with three finalists, or as many as can be run twice, and as many runs as the confirmation makes in that "
    "budget, each 5.5 s beside its timed part, as ResNet-50 on an H200. A second run each is what an interval takes; "
    "more time than three take adds none."
)
_ON_REAL = (
    "CPU: ResNet-18 at 32×32 pixels, a batch of 16, one worker. GPU: ResNet-50, a batch of 128, 8 workers, pinned, "
    "fp16. The real bench with a fresh loader each run, three runs each in turn, runs ended by the stopping rule in "
    "2 s. Samples/s of each run. Reported, not judged."
)


def note(text: str, command: str) -> str:
    head = [
        f"# How honest the intervals are, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"Host: {_cpu_name()}, {os.cpu_count()} cores, {platform.platform()}. Python {platform.python_version()}, "
        f"numpy {np.__version__}, scipy {scipy.__version__}, loadtune {__version__}.",
        "",
        f"Command: `{command}`.",
        "",
        "",
    ]
    return "\n".join(head) + text


def _cpu_name() -> str:
    from loadtune.host import read_host

    return read_host().cpu_name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few cases, in seconds")
    parser.add_argument("--simulations", type=int, default=2000, help="of each case; 0: only the real runs")
    parser.add_argument("--real", type=int, default=0, metavar="N", help="comparisons on this machine")
    parser.add_argument("--within-s", type=float, default=math.inf, help="begin no comparison after so many seconds")
    parser.add_argument("--device", choices=CASES, default="cpu", help="of the real comparisons")
    parser.add_argument("--note", type=Path, help="file to keep the note in")
    given = parser.parse_args()
    simulated = Results() if given.simulations == 0 else (quick if given.quick else full)(given.simulations)
    real = real_comparisons(given.real, given.device, time.monotonic() + given.within_s)
    results = replace(simulated, real=list(real))
    text = report(results, given.simulations)
    if given.note is not None:
        given.note.write_text(note(text, " ".join(["python", *sys.argv])))
    print(text)
    return 1 if failures(results.covered, results.alike) else 0


if __name__ == "__main__":
    sys.exit(main())
