"""The check of a stored winner over a fake machine that did, or did not, lose speed."""

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeSensor, FakeTraining, Surface, fake_facts, fake_host
from pipeline_rig import GPU, tune_fake

from loadtune import __version__
from loadtune.checking import Check, check_baseline, same_device
from loadtune.errors import DeviceError, WorkloadError
from loadtune.records.config import Fixed, TuneConfig
from loadtune.records.facts import Device
from loadtune.records.measurement import TrialFailure
from loadtune.records.result import TuningResult
from loadtune.run import Run
from loadtune.run.state import State


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> TuningResult:
    return tune_fake(FakeTraining(), tmp_path_factory.mktemp("stored"))


def checked(
    stored: TuningResult, training: FakeTraining, *, tolerance: float = 0.1, cores: int = 16, **how: Any
) -> Check:
    host, sensor, clock = fake_host(num_usable_cores=cores), FakeSensor(training.clock), training.clock
    run = Run(State(stored.config, host, GPU, __version__), clock, training, sensor, Path(), lambda: host)
    measuring = nullcontext(run.measuring)
    return check_baseline(stored, tolerance_fraction=tolerance, measuring_of=lambda stored: measuring, **how)


def test_what_is_told_of_a_run_is_of_one_kind_with_the_baselines_figure(tmp_path: Path) -> None:
    """Workers that start in each epoch make an epoch of few samples far slower than training is meanwhile."""
    facts = dataclasses.replace(fake_facts(Surface()), dataset_length=3000)
    fix = (Fixed(name="persistent_workers", value=False), Fixed(name="num_workers", value=8))
    stored, told = tune_fake(FakeTraining(facts=facts), tmp_path, TuneConfig(fix=fix)), list[str]()
    training = FakeTraining(facts=facts, seed=7)
    assert stored.best is not None
    assert not stored.best.config.loader.persistent_workers
    checked(stored, training, tell=told.append)
    shares = [int(line.split()[2].rstrip("%")) for line in told if line.startswith("run ")]
    assert shares
    assert all(85 < share < 115 for share in shares)


def test_a_slower_way_to_the_device_fell_and_compute_did_not(stored: TuningResult) -> None:
    check = checked(stored, FakeTraining(Surface(pinned_per_s=2600.0), seed=7), cores=12)
    assert check.outcome == "fell", check.reason
    assert check.comparison is not None
    assert check.comparison.ratio is not None
    assert check.comparison.ratio.value == pytest.approx(2 / 3, abs=0.08)
    assert [change.name for change in check.comparison.changes] == ["num_usable_cores"]
    sides = (check.comparison.before, check.comparison.after)
    before, after = (int(side.figures["share of compute-only"].rstrip("%")) for side in sides)
    assert after / before == pytest.approx(2 / 3, abs=0.08)


def test_an_unquiet_machine_cannot_tell_and_keeps_to_its_time(stored: TuningResult) -> None:
    training = FakeTraining(between_runs=0.3, seed=1)
    started = training.clock.now()
    check = checked(stored, training, tolerance=0.02, time_budget_s=40.0)
    assert check.outcome == "unclear"
    assert check.result is not None
    runs = check.result.finalists[0].runs
    assert len(runs) > 3
    longest = max(run.seconds for run in runs)
    assert training.clock.now() - started <= 40.0 + longest / 4  # a run is begun if the longest so far would fit
    assert "--tolerance" in check.reason


def test_compiling_is_no_part_of_the_time(tmp_path: Path) -> None:
    fix = (Fixed(name="precision", value="bf16"), Fixed(name="compile", value=True))
    stored = tune_fake(FakeTraining(), tmp_path, TuneConfig(fix=fix, time_budget_s=1200.0))
    training = FakeTraining(Surface(compile_s=70.0), seed=7)
    check = checked(stored, training)
    assert check.outcome == "held", check.reason
    assert check.result is not None
    assert check.result.finalists[0].config.recipe.compile
    assert 70.0 < check.result.seconds < 70.0 + 60.0


class Unbuilt(FakeTraining):
    def describe(self):  # type: ignore[no-untyped-def]
        raise WorkloadError("no module named mine")


OOM = TrialFailure(kind="oom", phase="training", message="out of memory at a batch of 256")


@pytest.mark.parametrize(
    ("training", "told"),
    [
        (FakeTraining(fail=lambda config: OOM), "Run 1 failed (oom): out of memory"),
        (Unbuilt(), "no module named mine"),
    ],
)
def test_what_does_not_run_here_cannot_tell(stored: TuningResult, training: FakeTraining, told: str) -> None:
    check = checked(stored, training)
    assert (check.outcome, check.comparison, check.result) == ("unclear", None, None)
    assert told in check.reason


def test_the_very_gpu_is_taken_or_one_of_its_name_and_no_other_device(stored: TuningResult) -> None:
    host = fake_host(num_gpus=2)
    second = dataclasses.replace(stored, device=dataclasses.replace(GPU, uuid=host.gpus[1].uuid))
    assert same_device(second, host).uuid == host.gpus[1].uuid
    elsewhere = dataclasses.replace(stored, device=dataclasses.replace(GPU, uuid="GPU-of-another-machine"))
    assert same_device(elsewhere, host).name == GPU.name
    for device, there in (
        (Device(kind="cuda", uuid="GPU-1", name="NVIDIA H200"), "Fake GPU"),
        (Device(kind="cpu", name="Xeon"), "Fake CPU"),
    ):
        with pytest.raises(DeviceError, match=f"measured on {device.name}, and this machine has {there}"):
            same_device(dataclasses.replace(stored, device=device), host)
