"""Is a trial's samples/s true? Sleeping loaders and steps through the real bench and stopping rule, against their own log.

    python benchmarks/clock.py [--quick] [--note benchmarks/results/DATE-HOST-clock.md]

A cell is a number of workers, a prefetch factor, and which side is the slower one; both sides are meant for 800/s
where they are the slow one. Samples log when they were made, steps when they were done. After the stopping rule has
seen enough the same loader goes on, unmeasured, so that the truth spans a multiple of what the trial saw.

Truth is the lesser of two rates over that span, as the logs have them: samples made (true from the first moment where
the loader is the slow side; too high while a queue fills that the steps do not empty) and samples trained on (true
where the step is the slow side; too high while a queue runs down that was filled before). In each cell one step takes 2
s after the workers have started, so every queue is full when the trial begins to count.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import product
from pathlib import Path

import numpy as np
from clock_workload import FOLDER, Log, Times

from loadtune.bench import BenchClient
from loadtune.host import MonotonicClock, read_host
from loadtune.records import (
    Device,
    LoaderConfig,
    Measurement,
    Recipe,
    TrialConfig,
    Window,
    WorkloadSpec,
    samples_per_s,
)
from loadtune.study.stopping import StoppingRule
from loadtune.study.trial import run_trial
from loadtune.testing import FakeClock, FakeSensor

TOLERANCE = 0.03
BATCH_SIZE = 32
TRUE_PER_S = 800.0
ONCE_S = 2.0
"""The first step."""
TRIAL_S = 3.0
"""A trial's timed part at the default time budget."""
# The slower side's share of a batch's time at 800/s: (loader, step).
REGIMES = {"loader": (1.0, 0.4), "compute": (0.5, 1.0), "balanced": (1.0, 1.0)}
WORKERS, PREFETCH = (1, 2, 4, 8), (2, 4, 8)
QUICK = ((8, 8, "loader"), (8, 2, "compute"), (4, 8, "balanced"), (1, 2, "loader"))
LINGER_S, QUICK_LINGER_S = 5.0, 3.0


@dataclass(frozen=True)
class Cell:
    num_workers: int
    prefetch_factor: int
    regime: str

    @property
    def loader(self) -> LoaderConfig:
        return LoaderConfig(
            batch_size=BATCH_SIZE, num_workers=self.num_workers, prefetch_factor=self.prefetch_factor
        )

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
    naive: float
    """Samples ÷ seconds of the first windows, as a tool reads that counts prefetched batches: as many seconds, from the
    first batch on."""
    made: float
    same: float
    trained: float
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
    """The real rule, which then lets the run go on without looking."""

    linger_s: float = 0.0
    all: list[Window] = field(default_factory=list)
    _enough_at: float | None = None

    def add(self, window: Window) -> bool:
        self.all.append(window)
        if self._enough_at is None and not StoppingRule.add(self, window):
            self._enough_at = window.end_s
        return self._enough_at is None or window.end_s < self._enough_at + self.linger_s


def measure(bench: BenchClient, folder: Path, cell: Cell, linger_s: float) -> Outcome:
    made, trained = Log(folder, "samples"), Log(folder, "steps")
    made.clear()
    trained.clear()
    Times(folder).set(*cell.times, ONCE_S)
    rule = Lingering(num_workers=cell.num_workers, max_s=TRIAL_S, linger_s=linger_s)
    config = TrialConfig(loader=cell.loader, recipe=Recipe())
    found = run_trial(bench, FakeSensor(FakeClock()), MonotonicClock(), config, rule)
    if not isinstance(found, Measurement):
        raise SystemExit(f"{cell}: {found.message}")
    begun, ended = found.windows[0].start_s, rule.all[-1].end_s
    first = [window for window in rule.all if window.start_s < rule.all[0].start_s + TRIAL_S]
    return Outcome(
        cell=cell,
        claimed=found.samples_per_s,
        naive=sum(w.num_samples for w in first) / sum(w.seconds for w in first),
        made=rate(made, begun, ended),
        trained=rate(trained, begun, ended),
        same=min(rate(made, begun, found.windows[-1].end_s),rate(trained, begun, found.windows[-1].end_s)),
        trial_s=sum(w.seconds for w in found.windows),
        noisy=found.noisy,
    )


def rate(log: Log, begun: float, ended: float) -> float:
    entries = log.read()
    within = (entries[:, 0] > begun) & (entries[:, 0] <= ended)
    return float(entries[within, 1].sum()) / (ended - begun)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--quick", action="store_true")
    given.add_argument("--note", type=Path)
    args = given.parse_args()
    cells = [Cell(*c) for c in (QUICK if args.quick else product(WORKERS, PREFETCH, REGIMES))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Times(folder)
        os.environ |= {FOLDER: name, "OMP_NUM_THREADS": "1"}
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
        spec = WorkloadSpec(dataset="clock_workload:SleepingSamples", model="clock_workload:SleepingStep")
        with BenchClient(spec, Device(kind="cpu", name="cpu"), log_path=folder / "bench.log") as bench:
            bench.describe()
            for cell in cells:
                o = measure(bench, folder, cell, QUICK_LINGER_S if args.quick else LINGER_S)
                print(f"{cell.num_workers:2} {cell.prefetch_factor:2} {cell.regime:9} claimed {o.claimed:7.1f} made {o.made:7.1f} trained {o.trained:7.1f} naive {o.naive:7.1f} error {o.error:+.1%} same {o.claimed/o.same-1:+.1%} {o.trial_s:.1f}s {'noisy' if o.noisy else ''}", flush=True)


if __name__ == "__main__":
    main()
