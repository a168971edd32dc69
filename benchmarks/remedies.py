"""Remedies of one workload after another, predicted and measured: the table of a run's remedies.

    python benchmarks/remedies.py [WORKLOAD …] [--time-budget 150] [--remedies auto|all] [--fix NAME=VALUE …] [--small]
        [--only REMEDY …] [--out FOLDER]

Workloads are those of `workloads.py`. ``--fix`` fixes settings, so that the search ends early and the time goes into
the remedies: *best* is then the best of what is left. ``--only`` tries no other remedies.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import get_args

from workloads import SPECS, spec_of

from loadtune.changes import REMEDIES
from loadtune.options import fixed_of, one_of
from loadtune.records.config import RemedyMode, TuneConfig, YourSettings
from loadtune.records.result import TriedRemedy, TuningResult
from loadtune.report.wording import settings_text
from loadtune.statistics.interval import Interval
from loadtune.tuner import tune_config


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["fake-resnet50"], metavar="WORKLOAD")
    parser.add_argument("--time-budget", type=float, default=150.0)
    parser.add_argument("--remedies", default="auto")
    parser.add_argument("--fix", nargs="*", default=[])
    parser.add_argument("--only", nargs="*", default=list(REMEDIES), choices=list(REMEDIES))
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--num-workers", type=int)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    for name in set(REMEDIES) - set(given.only):
        del REMEDIES[name]
    with tempfile.TemporaryDirectory() as folder:
        for name in given.workloads:
            assert name in SPECS, f"{name} is none of {', '.join(SPECS)}"
            config = TuneConfig(
                workload=spec_of(name, small=given.small, folder=None),
                yours=YourSettings(batch_size=given.batch_size, num_workers=given.num_workers),
                time_budget_s=given.time_budget,
                remedies=one_of("--remedies", given.remedies, get_args(RemedyMode)),
                fix=fixed_of(given.fix),
                out=str(given.out or folder),
            )
            show(name, tune_config(config, None, None))
    return 0


def show(name: str, result: TuningResult) -> None:
    best, found = result.best, result.remedies
    print(f"\n## {name}, {result.device.name}, {result.seconds:.0f} s\n")
    if best is None or found is None:
        print("\n".join(("nothing confirmed", *result.notes)), flush=True)
        return
    half, share = best.half_width_fraction or 0.0, best.compute_fraction
    settings = settings_text(best.config)
    print(f"best: {best.samples_per_s:,.0f}/s ± {half:.0%}, {_percent(share)} of compute ({settings})\n")
    print("| remedy | workers | predicted | measured | kept | what changes |\n|---|---|---|---|---|---|")
    for each in found.tried:
        print(row(each))
    if found.samples_per_s is not None:
        print(
            f"\nwith those kept: {found.samples_per_s.value:,.0f}/s ± {found.samples_per_s.half_width or 0:,.0f}/s, "
            f"{_interval(found.gain)}"
        )
    print("".join(f"\nnote: {note}" for note in result.notes), flush=True)


def row(each: TriedRemedy) -> str:
    cells = (
        each.title,
        each.config.loader.num_workers,
        _interval(each.predicted),
        _interval(each.gain) if each.gain is not None else each.reason,
        "yes" if each.kept else "no",
        each.changes,
    )
    return f"| {' | '.join(map(str, cells))} |"


def _interval(found: Interval | None) -> str:
    if found is None:
        return "–"
    return f"{found.value:.2f}" if found.low is None else f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


if __name__ == "__main__":
    sys.exit(main())
