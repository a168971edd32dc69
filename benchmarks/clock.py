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
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

from clock_workload import FOLDER, Log, Times

from loadtune import __version__
from loadtune.bench import BenchClient
from loadtune.host import MonotonicClock, read_host
from loadtune.records import Device, LoaderConfig, Measurement, Recipe, TrialConfig, Window, WorkloadSpec
from loadtune.study.stopping import StoppingRule
from loadtune.study.trial import run_trial
from loadtune.testing import FakeClock, FakeSensor

TOLERANCE = 0.03
BATCH_SIZE, TRUE_PER_S = 64, 800.0
ONCE_S = 2.0
"""The first step after the workers have started."""
TRIAL_S = 3.0
"""A trial's timed part at the default time budget."""
# What loader and step take for a batch, in units of a batch's time at 800/s.
REGIMES = {"loader": (1.0, 0.4), "compute": (0.5, 1.0), "balanced": (1.0, 1.0)}
WORKERS, PREFETCH = (1, 2, 4, 8), (2, 4, 8)
QUICK = ((8, 8, "loader"), (8, 2, "compute"), (4, 8, "balanced"))
LINGER_S, QUICK_LINGER_S = 6.0, 3.0


@dataclass(frozen=True)
class Cell:
    num_workers: int
    prefetch_factor: int
    regime: str

    @property
    def config(self) -> TrialConfig:
        loader = LoaderConfig(batch_size=BATCH_SIZE, num_workers=self.num_workers, prefetch_factor=self.prefetch_factor)
        return TrialConfig(loader=loader, recipe=Recipe())

    @property
    def times(self) -> tuple[float, float]:
        """Seconds a worker sleeps for a sample, and a step for a batch."""
        loader, step = REGIMES[self.regime]
        return loader * self.num_workers / TRUE_PER_S, step * BATCH_SIZE / TRUE_PER_S


@dataclass(frozen=True)
class Outcome:
    """Samples/s of one cell."""

    cell: Cell
    claimed: float
    counted: float
    """Of a clock that takes every batch for throughput: from the first batch on, for as many seconds as a trial has."""
    made: float
    trained: float
    same_s: float
    """Truth by the same logs over no more than the seconds that the trial counted."""
    trial_s: float
    noisy: bool

    @property
    def truth(self) -> float:
        return min(self.made, self.trained)

    @property
    def error(self) -> float:
        return self.claimed / self.truth - 1


@dataclass
class Lingering(StoppingRule):
    """The real rule; once it has enough the run goes on for a while, unlooked at."""

    linger_s: float = 0.0
    all: list[Window] = field(default_factory=list)
    _enough_at: float | None = None

    def add(self, window: Window) -> bool:
        self.all.append(window)
        if self._enough_at is None and not StoppingRule.add(self, window):
            self._enough_at = window.end_s
        return self._enough_at is None or window.end_s < self._enough_at + self.linger_s


def measure(bench: BenchClient, folder: Path, cell: Cell, linger_s: float) -> Outcome:
    logs = Log(folder, "samples"), Log(folder, "steps")
    for log in logs:
        log.clear()
    Times(folder).set(*cell.times, ONCE_S)
    rule = Lingering(num_workers=cell.num_workers, max_s=TRIAL_S, linger_s=linger_s)
    found = run_trial(bench, FakeSensor(FakeClock()), MonotonicClock(), cell.config, rule)
    if not isinstance(found, Measurement):
        raise SystemExit(f"{cell}: {found.message}")
    begun, counted_until = found.windows[0].start_s, found.windows[-1].end_s
    made, trained = (log.per_s(begun, rule.all[-1].end_s) for log in logs)
    first = [window for window in rule.all if window.start_s < rule.all[0].start_s + TRIAL_S]
    return Outcome(
        cell=cell,
        claimed=found.samples_per_s,
        counted=sum(w.num_samples for w in first) / sum(w.seconds for w in first),
        made=made,
        trained=trained,
        same_s=min(log.per_s(begun, counted_until) for log in logs),
        trial_s=counted_until - begun,
        noisy=found.noisy,
    )


def run(cells: Sequence[Cell], linger_s: float) -> Iterator[Outcome]:
    here = str(Path(__file__).parent)
    with tempfile.TemporaryDirectory() as name:
        Times(Path(name))
        # One thread: OpenMP's barriers take 50 ms a step where other programs have the cores, and no step here is work.
        os.environ |= {FOLDER: name, "OMP_NUM_THREADS": "1"}
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        spec = WorkloadSpec(dataset="clock_workload:SleepingSamples", model="clock_workload:SleepingStep")
        with BenchClient(spec, Device(kind="cpu", name="cpu"), log_path=Path(name) / "bench.log") as bench:
            bench.time_compute(Recipe(), BATCH_SIZE, 0.01)  # warm, so that no cell's long step falls into a warm-up
            for cell in cells:
                yield measure(bench, Path(name), cell, linger_s)


HEAD = (
    "workers | prefetch | slow side | made | trained | truth | claimed | error | same seconds | every batch counted | s"
)


def row(o: Outcome) -> str:
    cells = [o.cell.num_workers, o.cell.prefetch_factor, o.cell.regime]
    rates = [f"{value:.1f}" for value in (o.made, o.trained, o.truth, o.claimed)]
    errors = [f"{o.error:+.1%}", f"{o.claimed / o.same_s - 1:+.1%}", f"{o.counted / o.truth - 1:+.1%}"]
    return f"| {' | '.join(map(str, [*cells, *rates, *errors, f'{o.trial_s:.1f}' + ', noisy' * o.noisy]))} |"


def verdict(outcomes: Sequence[Outcome]) -> str:
    errors = [abs(o.error) for o in outcomes]
    counted = max(abs(o.counted / o.truth - 1) for o in outcomes)
    beyond = sum(error > TOLERANCE for error in errors)
    return (
        f"Error of {len(errors)} cells: worst {max(errors):.1%}, median {statistics.median(errors):.1%}; "
        f"{beyond} beyond {TOLERANCE:.0%}. Counting every batch: worst {counted:.1%}."
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
        f"starts at the first batch and takes batches out of a full queue for throughput.\n\n{table}\n"
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
