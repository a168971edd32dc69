"""torch.compile on a real GPU, through the real training: sizes compile one by one, never in a window; nothing
stays."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from cli_rig import is_alive
from training_rig import Windows

from loadtune.host.machine import choose_device, read_host
from loadtune.host.processes import ProcessTree
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig, WorkloadSpec
from loadtune.records.measurement import ComputePoint, TrainingRun, Window
from loadtune.records.memory import BatchTry
from loadtune.stream.shm_cleanup import group_members
from loadtune.training import TrainingClient

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

PLAIN = Recipe(precision="fp16", memory_format="channels_last")
COMPILED = replace(PLAIN, compile=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compile")


@pytest.fixture(scope="module")
def training(folder: Path) -> Iterator[TrainingClient]:
    spec, device = WorkloadSpec(model="resnet18"), choose_device(read_host(), "cuda")
    with TrainingClient(spec, device, log_path=folder / "training.log") as client:
        yield client


@pytest.fixture(scope="module")
def point(training: TrainingClient) -> ComputePoint:
    found = training.time_compute(COMPILED, 64, 0.5)
    assert isinstance(found, ComputePoint), found
    return found


def step_s(windows: tuple[Window, ...]) -> float:
    return max(window.seconds / window.num_steps for window in windows)


def test_it_is_compiled_before_it_is_timed(training: TrainingClient, point: ComputePoint) -> None:
    assert (point.compile_s or 0.0) > 10 * step_s(point.windows)
    again = training.time_compute(COMPILED, 64, 0.2)
    assert isinstance(again, ComputePoint)
    assert again.compile_s == 0.0


def test_a_trial_at_a_new_size_ends_without_compiling_in_a_window(
    training: TrainingClient, point: ComputePoint
) -> None:
    loader = LoaderConfig(batch_size=96, num_workers=4, pin_memory=True)
    windows = Windows(6)
    run = training.time_training(TrialConfig(loader=loader, recipe=COMPILED), 0.4, windows)
    assert isinstance(run, TrainingRun), run
    assert len(windows) == 6
    assert step_s(windows) < (point.compile_s or 0.0) / 4
    known = training.time_compute(COMPILED, 96, 0.2)
    assert isinstance(known, ComputePoint)
    assert known.compile_s == 0.0, "the trial had it compiled, before its loader began"


def test_the_memory_probe_is_told_of_it(training: TrainingClient, point: ComputePoint) -> None:
    """The allocator's requests are recorded as of any step."""
    asked = BatchTry(recipe=COMPILED, batch_size=128, verify=True, trace=True, partial_batch_size=32)
    report = training.try_batch(asked)
    assert report.fits, report.failure
    assert report.allocations is not None
    plain = training.try_batch(replace(asked, recipe=PLAIN))
    print(f"peak {report.peak_bytes} compiled, {plain.peak_bytes} not")
    assert 0.5 < (report.peak_bytes or 0) / (plain.peak_bytes or 1) < 1.5


def test_an_oom_in_compiled_code_is_one_and_the_bench_goes_on(tmp_path: Path) -> None:
    """2,500 images take 12 GB of activations at the least, and 2^31 elements of none."""
    spec, device = WorkloadSpec(model="resnet18"), choose_device(read_host(), "cuda")
    with TrainingClient(spec, device, log_path=tmp_path / "training.log", max_memory_bytes=8 << 30) as client:
        assert client.try_batch(BatchTry(recipe=COMPILED, batch_size=32)).fits
        too_large = client.try_batch(BatchTry(recipe=COMPILED, batch_size=2500))
        assert too_large.failure is not None
        assert too_large.failure.kind == "oom", too_large.failure
        assert client.try_batch(BatchTry(recipe=COMPILED, batch_size=32)).fits


def test_compile_workers_count_as_other_and_end_with_the_bench(tmp_path: Path) -> None:
    spec, device = WorkloadSpec(model="resnet18"), choose_device(read_host(), "cuda")
    with TrainingClient(spec, device, log_path=tmp_path / "training.log") as client:
        assert isinstance(client.time_compute(COMPILED, 32, 0.2), ComputePoint)
        assert client.pid is not None
        group, root = client.pid, psutil.Process(client.pid)
        found = [root, *root.children(recursive=True)]
        print(f"{len(found) - 1} processes beside the training")
        tree = ProcessTree(lambda: group)
        tree.look()
        assert tree.last
        assert tree.workers == []
        assert any(Path(tempfile.gettempdir()).glob("loadtune-*/compiled/*"))
    assert not group_members(group)
    assert not any(is_alive(process.pid) for process in found), "one left the group"
