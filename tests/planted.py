"""One trial of a planted workload by the real bench, timed and judged as the stages do it."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtune.bench import BenchClient
from loadtune.findings import Findings
from loadtune.host import MonotonicClock, Sampler, read_host
from loadtune.records import (
    ComputePoint,
    Device,
    Finalist,
    LoaderConfig,
    Measurement,
    Recipe,
    TrialConfig,
    TuneConfig,
    Verdict,
    Winner,
    WorkloadSpec,
)
from loadtune.stages.bounds import bounds
from loadtune.stages.run import TRIAL_SHARE, Run
from loadtune.stages.timing import timed

TESTS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Plant:
    """What is slow, and in which configuration it shows."""

    dataset: str
    model: str
    loader: LoaderConfig


@dataclass(frozen=True)
class Judged:
    """The trial, and what was made of it."""

    run: Measurement
    verdict: Verdict


def judged(plant: Plant, device: Device, folder: Path) -> Judged:
    """Time it and the bounds beside it, and judge."""
    spec = WorkloadSpec(dataset=f"planted_workloads:{plant.dataset}", model=f"planted_workloads:{plant.model}")
    config = TrialConfig(loader=plant.loader, recipe=Recipe())
    host, clock = read_host(), MonotonicClock()
    with ExitStack() as open_:
        open_.enter_context(pytest.MonkeyPatch.context()).setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
        bench = open_.enter_context(BenchClient(spec, device, log_path=folder / "bench.log"))
        sensor = open_.enter_context(Sampler(device, lambda: bench.pid, host.num_usable_cores))
        found = Findings(TuneConfig(workload=spec), host, device, clock, "0")
        run = Run(bench, sensor, clock, found, folder, read_host)
        facts = bench.describe()
        point = bench.time_compute(config.recipe, config.batch_size, 1.0)
        measured = timed(run, config, TRIAL_SHARE, None)
        assert isinstance(point, ComputePoint), point
        assert isinstance(measured, Measurement), measured
        rate = measured.samples_per_s
        found.finalists = (Finalist(config=config, runs=(measured,)),)
        found.best = Winner(
            config=config,
            samples_per_s=rate,
            half_width_fraction=None,
            speedup=None,
            compute_fraction=rate / point.samples_per_s,
        )
        bounds(run, facts)
        assert found.verdict is not None
        return Judged(measured, found.verdict)
