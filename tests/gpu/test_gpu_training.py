"""The training on a real GPU: OOM is clean, memory comes back, windows abut, the device is the one asked for."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from training_rig import Windows

from loadtune.host.machine import choose_device, read_host
from loadtune.records.config import LoaderConfig, OptimizerName, Precision, Recipe, TrialConfig, WorkloadSpec
from loadtune.records.measurement import PAGE_LOCK_SHARE, TrainingRun
from loadtune.records.memory import BatchTry
from loadtune.training.client import TrainingClient
from loadtune.training.memory import page_lock_s
from loadtune.training.steps import ResidentModel, Trainer
from loadtune.workload.build import build_workload

pytestmark = pytest.mark.gpu

FAST = Recipe(precision="fp16", memory_format="channels_last", fused_optimizer=True)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingClient]:
    device = choose_device(read_host(), None)
    assert device.kind == "cuda"
    log: Path = tmp_path_factory.mktemp("training") / "training.log"
    with TrainingClient(WorkloadSpec(model="resnet18"), device, log_path=log) as client:
        yield client


def free_bytes() -> int:
    return read_host().gpus[0].free_bytes


def test_it_describes_what_is_there(training: TrainingClient) -> None:
    facts = training.describe()
    assert facts.precisions == ("fp32", "fp16", "bf16")
    assert facts.memory_capacity_bytes > 0
    assert facts.input_shape == (3, 224, 224)


def test_an_oom_is_clean_and_the_next_size_fits(training: TrainingClient) -> None:
    fits = training.try_batch(BatchTry(recipe=FAST, batch_size=64))
    assert fits.fits
    assert fits.reserved_peak_bytes >= fits.peak_bytes
    before = free_bytes()
    too_large = training.try_batch(BatchTry(recipe=FAST, batch_size=200_000))
    assert too_large.failure.kind == "oom"
    assert training.try_batch(BatchTry(recipe=FAST, batch_size=64)).fits
    assert abs(free_bytes() - before) < 1024**3


def test_training_streams_windows_that_abut(training: TrainingClient) -> None:
    loader = LoaderConfig(batch_size=64, num_workers=4, pin_memory=True)
    windows = Windows(4)
    run = training.time_training(TrialConfig(loader=loader, recipe=FAST), 0.2, windows)
    assert isinstance(run, TrainingRun)
    assert run.peak_allocated_bytes
    assert len(windows) == 4
    for one, two in pairwise(windows):
        assert two.start_s == pytest.approx(one.end_s, abs=1e-6)
        assert one.queue_end is not None
    for w in windows:
        assert w.num_samples == 64 * w.num_steps
        assert None not in (w.copy_s, w.compute_s, w.num_pinned, w.least_unpinned)
        assert 0 < w.copy_s < w.seconds
        assert 0 < w.compute_s < w.seconds
        assert abs(w.num_pinned - w.num_steps) <= 2 * 4  # as many as four workers keep ahead
        assert (w.num_taken, w.least_untaken) == (None, None)
    assert run.batch_s > 0


def test_without_a_pinning_thread_the_training_process_takes_batches(training: TrainingClient) -> None:
    config = TrialConfig(loader=LoaderConfig(batch_size=64, num_workers=4), recipe=FAST)
    windows = Windows(4)
    assert isinstance(training.time_training(config, 0.2, windows), TrainingRun)
    assert len(windows) == 4
    for w in windows:
        assert (w.num_pinned, w.least_unpinned) == (None, None)
        assert None not in (w.num_taken, w.least_untaken)
        assert abs(w.num_taken - w.num_steps) <= 2 * 4  # as many as may be set aside


def test_the_allocator_books_what_locking_takes() -> None:
    device = torch.device("cuda")
    torch.zeros(1, device=device)
    before, began = page_lock_s(device), time.monotonic()
    torch.empty((1 << 28) + 1, dtype=torch.uint8, pin_memory=True)
    after, took_s = page_lock_s(device), time.monotonic() - began
    assert took_s / 2 < after - before <= took_s


def test_blocks_of_one_size_are_locked_once(training: TrainingClient) -> None:
    """By a run that is long enough to fill its queue; the same again finds them, whatever was run in between."""
    config = TrialConfig(loader=LoaderConfig(batch_size=96, num_workers=2, pin_memory=True), recipe=FAST)
    between = [replace(config.loader, batch_size=24), replace(config.loader, pin_memory=False)]
    first, again = Windows(20), Windows(6)
    assert isinstance(training.time_training(config, 0.2, first), TrainingRun)
    for loader in between:
        assert isinstance(training.time_training(replace(config, loader=loader), 0.2, Windows(6)), TrainingRun)
    assert isinstance(training.time_training(config, 0.2, again), TrainingRun)
    locks = [window.page_lock_s for window in (*first, *again)]
    assert None not in locks
    locked_s = sum(window.page_lock_s or 0.0 for window in again)
    assert locked_s < PAGE_LOCK_SHARE * sum(window.seconds for window in again)


@pytest.mark.parametrize(
    ("precision", "optimizer", "fused"),
    [("fp16", "sgd", False), ("fp16", "adamw", False), ("fp16", "adamw", True), ("bf16", "sgd", False)],
)
def test_a_scaler_waits_for_the_device_unless_the_optimizer_is_fused(
    precision: Precision, optimizer: OptimizerName, fused: bool
) -> None:
    """PyTorch itself says where the host waits."""
    recipe = Recipe(precision=precision, fused_optimizer=fused)
    workload = build_workload(WorkloadSpec(model="resnet18", optimizer=optimizer))
    model = ResidentModel(workload, torch.device("cuda", 0))
    trainer = Trainer(model, recipe, workload)
    batch = trainer.to_device((torch.zeros(8, 3, 64, 64), torch.zeros(8, dtype=torch.long)))
    for _ in range(3):
        trainer.step(batch)
    expected = pytest.raises(RuntimeError, match="synchroniz") if recipe.waits_each_step else nullcontext()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with expected:
            trainer.step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        model.drop()


def test_closing_gives_the_memory_back(tmp_path: Path) -> None:
    device = choose_device(read_host(), None)
    before = free_bytes()
    with TrainingClient(WorkloadSpec(model="resnet18"), device, log_path=tmp_path / "training.log") as client:
        client.describe()
        assert free_bytes() < before
    assert abs(free_bytes() - before) < 64 * 1024**2
