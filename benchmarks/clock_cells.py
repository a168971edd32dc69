"""One cell of the clock's benchmark: a trial by the real rule in a real bench, and what loader and step logged."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clock_workload import FOLDER, Log, Times

from loadtune.bench import BenchClient
from loadtune.host import MonotonicClock
from loadtune.records import Device, LoaderConfig, Measurement, Recipe, TrialConfig, Window, WorkloadSpec
from loadtune.study.stopping import StoppingRule
from loadtune.study.trial import run_trial
from loadtune.testing import FakeClock, FakeSensor

STEADY, MAX_TRIES = 0.015, 4
"""How far the logs of a trial's own seconds and of those after it may differ: half of what is judged by them."""
BATCH_SIZE, TRUE_PER_S = 64, 800.0
ONCE_S = 2.0
"""The first step after the workers have started."""
TRIAL_S = 3.0
"""A trial's timed part at the default time budget."""
# What loader and step take for a batch, in units of a batch's time at 800/s.
REGIMES = {"loader": (1.0, 0.4), "compute": (0.5, 1.0), "balanced": (1.0, 1.0)}


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
    later_s: float
    """Likewise, over those that came after."""
    trial_s: float
    noisy: bool
    num_tries: int = 1

    @property
    def truth(self) -> float:
        return min(self.made, self.trained)

    @property
    def steady(self) -> bool:
        """By the logs alone: loader and step went on as they did while the trial counted."""
        return abs(self.same_s / self.later_s - 1) <= STEADY

    @property
    def error(self) -> float:
        return self.claimed / self.truth - 1


class Lingering(StoppingRule):
    """The real rule; once it has enough the run goes on for a while, unlooked at."""

    def __init__(self, cell: Cell, linger_s: float) -> None:
        super().__init__(num_workers=cell.num_workers, max_s=TRIAL_S)
        self._linger_s = linger_s
        self.all: list[Window] = []
        self._enough_at: float | None = None

    def add(self, window: Window) -> bool:
        self.all.append(window)
        if self._enough_at is None and not StoppingRule.add(self, window):
            self._enough_at = window.end_s
        return self._enough_at is None or window.end_s < self._enough_at + self._linger_s


def measure(bench: BenchClient, folder: Path, cell: Cell, linger_s: float) -> Outcome:
    logs = Log(folder, "samples"), Log(folder, "steps")
    for log in logs:
        log.clear()
    Times(folder).set(*cell.times, ONCE_S)
    rule = Lingering(cell, linger_s)
    found = run_trial(bench, FakeSensor(FakeClock()), MonotonicClock(), cell.config, rule)
    if not isinstance(found, Measurement):
        raise SystemExit(f"{cell}: {found.message}")
    begun, counted_until, ended = found.windows[0].start_s, found.windows[-1].end_s, rule.all[-1].end_s
    made, trained = (log.per_s(begun, ended) for log in logs)
    first = [window for window in rule.all if window.start_s < rule.all[0].start_s + TRIAL_S]
    return Outcome(
        cell=cell,
        claimed=found.samples_per_s,
        counted=sum(w.num_samples for w in first) / sum(w.seconds for w in first),
        made=made,
        trained=trained,
        same_s=min(log.per_s(begun, counted_until) for log in logs),
        later_s=min(log.per_s(counted_until, ended) for log in logs),
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
                yield steady(lambda cell=cell: measure(bench, Path(name), cell, linger_s))


def steady(measured: Callable[[], Outcome]) -> Outcome:
    """Again where other programs took the machine in between; the last of a few, steady or not."""
    for num_tries in range(1, MAX_TRIES + 1):
        outcome = replace(measured(), num_tries=num_tries)
        if outcome.steady:
            break
    return outcome
