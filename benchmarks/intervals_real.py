"""Identical configurations compared on this machine, by the real bench and the real confirmation.

In: how many comparisons, on which device. Out: what each said. Two names for one configuration take turns, a fresh
loader each run.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from loadtune.bench import BenchClient
from loadtune.host import MonotonicClock, choose_device, read_host
from loadtune.records import LoaderConfig, Measurement, Recipe, TrialConfig, TrialFailure, WorkloadSpec
from loadtune.study.confirm import between_run_spread, confirm, finalists
from loadtune.study.stopping import StoppingRule
from loadtune.study.trial import run_trial
from loadtune.study.winner import speedup
from loadtune.testing import FakeClock, FakeSensor

TIMED_S, PATIENCE_S = 2.0, 600.0


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained again and again."""

    workload: WorkloadSpec
    config: TrialConfig


CASES = {
    "cpu": Case(
        WorkloadSpec(model="resnet18", image_size=32, num_classes=10),
        TrialConfig(loader=LoaderConfig(batch_size=16, num_workers=1), recipe=Recipe()),
    ),
    "cuda": Case(
        WorkloadSpec(model="resnet50"),
        TrialConfig(
            loader=LoaderConfig(batch_size=128, num_workers=8, pin_memory=True),
            recipe=Recipe(precision="fp16", memory_format="channels_last"),
        ),
    ),
}
"""By the kind of device."""


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


def real_comparisons(num: int, kind: str, until_s: float) -> Iterator[RealComparison]:
    """One after the other, in one bench; none begins after `until_s` of the monotonic clock."""
    if num == 0:
        return
    case, device = CASES[kind], choose_device(read_host(), kind)
    with (
        tempfile.TemporaryDirectory() as folder,
        BenchClient(case.workload, device, log_path=Path(folder) / "bench.log") as bench,
    ):
        bench.describe()
        for _ in range(num):
            if time.monotonic() < until_s:
                yield _compare(bench, case.config)


def _compare(bench: BenchClient, config: TrialConfig) -> RealComparison:
    clock = MonotonicClock()
    names = _named(config, 100_001), _named(config, 100_002)

    def run(name: TrialConfig) -> Measurement | TrialFailure:
        batch_s = config.batch_size * bench.describe().sample_s
        rule = StoppingRule(num_workers=config.loader.num_workers, max_s=TIMED_S, batch_s=batch_s)
        return run_trial(bench, FakeSensor(FakeClock()), clock, config, rule)

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


def _named(config: TrialConfig, batch_size: int) -> TrialConfig:
    """A name for it that the confirmation can tell from another: only the size differs, and is never used."""
    return replace(config, loader=replace(config.loader, batch_size=batch_size))
