"""Identical configurations compared on this machine's CPU, by the real bench and the real confirmation.

In: how many comparisons. Out: what each said. Two names for one configuration take turns, a fresh loader each run.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadtune.bench import BenchClient
from loadtune.host import MonotonicClock
from loadtune.records import Device, LoaderConfig, Measurement, Recipe, TrialConfig, TrialFailure, WorkloadSpec
from loadtune.study.confirm import between_run_spread, confirm, finalists
from loadtune.study.stopping import StoppingRule
from loadtune.study.trial import run_trial
from loadtune.study.winner import speedup
from loadtune.testing import FakeClock, FakeSensor

WORKLOAD = WorkloadSpec(model="resnet18", image_size=32, num_classes=10)
BATCH_SIZE, NUM_WORKERS = 16, 1
TIMED_S, PATIENCE_S = 2.0, 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RealComparison:
    """Of two that are one: samples/s of each run, and what the confirmation makes of them."""

    first_per_s: tuple[float, ...]
    second_per_s: tuple[float, ...]
    ratio: float
    low: float
    high: float
    relative_sd: float
    """Between runs, pooled."""

    @property
    def different(self) -> bool:
        return not self.low <= 1.0 <= self.high


def real_comparisons(num: int) -> Iterator[RealComparison]:
    """One after the other, in one bench."""
    if num == 0:
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        BenchClient(WORKLOAD, Device(kind="cpu", name="CPU"), log_path=Path(folder) / "bench.log") as bench,
    ):
        bench.describe()
        for _ in range(num):
            yield _compare(bench)


def _compare(bench: BenchClient) -> RealComparison:
    clock = MonotonicClock()
    names = _config(1000), _config(1001)

    def run(name: TrialConfig) -> Measurement | TrialFailure:
        rule = StoppingRule(num_workers=NUM_WORKERS, max_s=TIMED_S)
        return run_trial(bench, FakeSensor(FakeClock()), clock, _config(BATCH_SIZE), rule)

    found = finalists(list(confirm(names, run, clock, clock.now() + PATIENCE_S, yours=names[1])))
    first, second = found
    ratio, low, high = speedup(first, second, found, 1)
    spread = between_run_spread([f.runs for f in found])
    assert ratio is not None
    assert low is not None
    assert high is not None
    assert spread is not None
    return RealComparison(
        first_per_s=tuple(run.samples_per_s for run in first.runs),
        second_per_s=tuple(run.samples_per_s for run in second.runs),
        ratio=ratio,
        low=low,
        high=high,
        relative_sd=spread.relative_sd,
    )


def _config(batch_size: int) -> TrialConfig:
    """What is trained, and, by other sizes, two names for it that the confirmation can tell apart."""
    return TrialConfig(loader=LoaderConfig(batch_size=batch_size, num_workers=NUM_WORKERS), recipe=Recipe())
