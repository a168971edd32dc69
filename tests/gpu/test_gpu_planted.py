"""Planted causes are named on a real GPU: a slow loader, a slow step, a slow copy, slow pinning."""

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from loadtune.decide.search import model_job
from loadtune.host.machine import choose_device, machine_probes, read_host
from loadtune.host.telemetry import Sampler
from loadtune.model.answers import bottleneck
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig, TuneConfig, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.measurement import ComputePoint, Measurement
from loadtune.records.result import Bottleneck, Finalist
from loadtune.run.state import Run, State
from loadtune.training.client import TrainingClient

pytestmark = pytest.mark.gpu

TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Plant:
    """What is slow, and in which configuration it shows."""

    dataset: str
    model: str
    loader: LoaderConfig


def judged(plant: Plant, device: Device, folder: Path) -> Bottleneck:
    """Time the planted configuration, one with half of its workers, and the step without a loader."""
    spec = WorkloadSpec(dataset=f"planted_workloads:{plant.dataset}", model=f"planted_workloads:{plant.model}")
    config = TrialConfig(loader=plant.loader, recipe=Recipe())
    half = replace(config, loader=replace(plant.loader, num_workers=plant.loader.num_workers // 2))
    host = read_host()
    with ExitStack() as open_:
        open_.enter_context(pytest.MonkeyPatch.context()).setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
        training = open_.enter_context(TrainingClient(spec, device, log_path=folder / "training.log"))
        sensor = open_.enter_context(Sampler(machine_probes(device, lambda: training.pid)))
        state = State(TuneConfig(workload=spec), host, device, "0")
        run = Run(state, time.monotonic, training, sensor, folder, read_host)
        facts = training.describe()
        point = training.time_compute(config.recipe, config.batch_size, 1.0)
        assert isinstance(point, ComputePoint), point
        measured = list[tuple[TrialConfig, Measurement]]()
        for each in (half, config):
            outcome = run.timed(each)
            assert isinstance(outcome, Measurement), outcome
            measured.append((each, outcome))
        job = model_job(facts, host, device, {"fp32": config.recipe}, [point])
        num_workers = (0, half.loader.num_workers, config.loader.num_workers)
        return bottleneck(job, measured, Finalist(config=config, runs=(outcome,)), num_workers)


FOUR = LoaderConfig(batch_size=64, num_workers=4, pin_memory=True)
PINNED = LoaderConfig(batch_size=64, num_workers=8, pin_memory=True)
PAGEABLE = LoaderConfig(batch_size=64, num_workers=8)


@pytest.mark.parametrize(
    ("plant", "resource", "part"),
    [
        pytest.param(Plant("SlowSamples", "Linear", FOUR), "workers", "waiting", id="slow-loader"),
        pytest.param(Plant("Samples", "SlowStep", FOUR), "device", "computing", id="slow-step"),
        pytest.param(Plant("LargeSamples", "Linear", PAGEABLE), "main", "copying", id="slow-copy"),
        pytest.param(Plant("LargeSamples", "Linear", PINNED), "pinning", "copying", id="slow-pin"),
    ],
)
def test_what_was_planted_is_named(plant: Plant, resource: str, part: str, tmp_path: Path) -> None:
    found = judged(plant, choose_device(read_host(), "cuda"), tmp_path)
    first = found.limits[0]
    print(f"\n{plant.dataset} {plant.model}: {found}")
    assert first.resource == resource
    assert max(first.shares, key=first.shares.__getitem__) == part
