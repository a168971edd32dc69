"""The timed loop over real DataLoaders: what was planted as slow is what the window's fields name."""

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from loop_rig import LINE, SleepingTrainer
from torch.utils.data import Dataset, get_worker_info
from workload_rig import workload_of

from loadtune.bottleneck import late_batches
from loadtune.records.config import LoaderConfig
from loadtune.records.measurement import Window, WorkerShare, samples_per_s
from loadtune.training.endless_loader import EndlessLoader
from loadtune.training.loop import Marks, TimedLoop, WindowRule

SLOW_S, QUICK_S = 0.02, 0.001
TAKE_S = 0.03


class Sleeping(Dataset[Any]):
    """A sample is a sleep, a longer one in the worker that is slow."""

    def __init__(self, sample_s: float, *, slow_worker: int | None = None, length: int = 4096) -> None:
        self.sample_s, self.slow_worker, self.length = sample_s, slow_worker, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        worker = get_worker_info()
        slow = worker is not None and worker.id == self.slow_worker
        time.sleep(self.sample_s * (4 if slow else 1))
        return torch.zeros(2), 0


class Unwieldy(dict[str, torch.Tensor]):
    """A batch's part that takes long to rebuild for whoever takes it from a worker."""

    def __reduce__(self) -> Any:
        return _rebuilt, (dict(self),)

    def __copy__(self) -> "Unwieldy":
        return Unwieldy(self)


def _rebuilt(parts: dict[str, torch.Tensor]) -> Unwieldy:
    time.sleep(TAKE_S)
    return Unwieldy(parts)


class LongToTake(Sleeping):
    """Quickly made, slowly taken over."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), Unwieldy(part=torch.zeros(1))


def run(
    trainer: SleepingTrainer,
    dataset: Sleeping,
    num_workers: int,
    num_windows: int,
    window_s: float = 0.2,
    prefetch_factor: int = 2,
) -> tuple[list[Window], tuple[WorkerShare, ...]]:
    workload = workload_of(dataset)
    config = LoaderConfig(batch_size=2, num_workers=num_workers, prefetch_factor=prefetch_factor)
    loader = EndlessLoader(workload, config)
    try:
        loader.next_batch()
        stand_in: Any = trainer
        loop = TimedLoop(stand_in, loader, LINE)
        windows = [loop.window(WindowRule(window_s, num_workers)) for _ in range(num_windows)]
        return [window for window in windows if window is not None], loader.shares()
    finally:
        loader.close()


@pytest.mark.parametrize(
    ("slow", "copy_s", "step_s", "sample_s"),
    [
        ("copy_s", SLOW_S, QUICK_S, 0.0),
        ("compute_s", QUICK_S, SLOW_S, 0.0),
        ("idle_s", QUICK_S, QUICK_S, SLOW_S / 2),  # two samples a batch
    ],
)
def test_the_slow_part_is_named_and_the_parts_add_up(slow: str, copy_s: float, step_s: float, sample_s: float) -> None:
    (window,), _ = run(SleepingTrainer(copy_s, step_s), Sleeping(sample_s), num_workers=0, num_windows=1)
    parts = {part: getattr(window, part) for part in ("copy_s", "compute_s", "idle_s")}
    assert max(parts, key=lambda part: parts[part]) == slow
    assert parts[slow] > 0.9 * window.num_steps * SLOW_S  # a sleep never ends early
    assert sum(parts.values()) == pytest.approx(window.seconds, rel=0.02)
    assert (window.wait_s > window.seconds / 2) == (slow == "idle_s")


def test_windows_have_whole_rounds_of_accumulated_gradients_and_their_skipped_steps() -> None:
    """One update of six batches is skipped; the first batch came before the first window."""
    trainer = SleepingTrainer(step_s=QUICK_S, halvings=lambda steps: float(steps >= 5))
    trainer.accumulate = 6
    windows, _ = run(trainer, Sleeping(0.0), num_workers=0, num_windows=3, window_s=0.002)
    assert [window.num_steps % 6 for window in windows] == [0, 0, 0]
    assert [window.num_skipped_steps for window in windows] == [6, 0, 0]


def test_a_slow_worker_is_named_and_equally_slow_ones_are_not() -> None:
    """Both loaders are the wall, and in both the loop may wait for one worker of each round alone."""
    _, one_slow = run(
        SleepingTrainer(), Sleeping(SLOW_S / 2, slow_worker=2), num_workers=3, num_windows=3, window_s=0.4
    )
    found = late_batches(one_slow)
    assert found is not None
    assert found.by == "worker"
    _, all_slow = run(SleepingTrainer(), Sleeping(2 * SLOW_S), num_workers=3, num_windows=3, window_s=0.4)
    assert sum(share.wait_s for share in all_slow) > 0
    assert late_batches(all_slow) is None
    assert all(share.num_made >= 4 and share.made_s >= 3.9 * SLOW_S * share.num_made for share in all_slow)


def test_a_step_that_is_the_wall_finds_its_batches_ready() -> None:
    windows, _ = run(SleepingTrainer(step_s=SLOW_S), Sleeping(0.0), num_workers=1, num_windows=3)
    assert windows[-1].queue_end is not None
    assert windows[-1].queue_end > 1  # of the two that one worker keeps ahead
    assert windows[-1].least_unpinned is None  # nothing pins without a GPU


def test_a_dataset_of_few_batches_reads_as_fast_as_its_steps() -> None:
    """Of 18 batches 16 are prefetched: where an epoch ends there is nothing to make, and such windows read almost 0."""
    trainer, dataset = SleepingTrainer(step_s=SLOW_S), Sleeping(QUICK_S, length=36)
    windows, _ = run(trainer, dataset, num_workers=2, num_windows=6, window_s=0.1, prefetch_factor=8)
    made = [window.num_steps + (window.queue_end or 0.0) - (window.queue_start or 0.0) for window in windows]
    assert sum(made) > 18, "more than one pass"
    assert all(number > 0 for number in made), made


def test_batches_that_pile_up_before_a_training_process_that_takes_them_slowly_are_no_throughput() -> None:
    """Two workers make 40 batches a second, of which the training process takes 30: a queue of 48 fills for seconds."""
    windows = run(SleepingTrainer(step_s=QUICK_S), LongToTake(0.025), 2, 4, window_s=0.4, prefetch_factor=24)[0]
    trained = sum(w.num_samples for w in windows) / sum(w.seconds for w in windows)
    by_the_queue = samples_per_s([replace(window, num_taken=None) for window in windows])
    assert (windows[-1].queue_end or 0.0) > (windows[0].queue_start or 0.0) + 5
    assert by_the_queue > 1.15 * trained
    assert samples_per_s(windows) == pytest.approx(trained, rel=0.05)
    assert all(w.num_pinned is None and w.least_unpinned is None for w in windows)


class FakeDevice:
    """A stream: work is queued by the host and done in order; an event is passed when all before it is done."""

    def __init__(self) -> None:
        self.host_s = 0.0
        self.busy_until_s = 0.0

    def launch(self, seconds: float) -> None:
        self.busy_until_s = max(self.busy_until_s, self.host_s) + seconds

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, self.busy_until_s)

    def marks(self) -> Marks:
        return Marks(lambda: FakeEvent(self), FakeEvent.seconds_to)


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self.device, self.passed_s = device, max(device.busy_until_s, device.host_s)

    def seconds_to(self, end: "FakeEvent") -> float:
        assert max(self.passed_s, end.passed_s) <= self.device.host_s, "read before the device had passed it"
        return end.passed_s - self.passed_s


def train(device: FakeDevice, marks: Marks, steps: int, *, wait: float, copy: float, compute: float) -> None:
    for _ in range(steps):
        device.host_s += wait
        marks.copying()
        device.launch(copy)
        marks.stepping()
        device.launch(compute)
        marks.stepped()


@pytest.mark.parametrize(
    ("wait", "copy", "compute", "idle"),
    [
        (0.001, 0.01, 0.04, 0.001),  # the host runs ahead: only before the first step the device has nothing to do
        (0.1, 0.01, 0.04, 0.1 + 9 * (0.1 - 0.05)),  # the loader is the wall: its wait, less what the device still did
        (0.001, 0.04, 0.01, 0.001),
    ],
)
def test_parts_are_the_devices_own_and_add_up_to_the_window(
    wait: float, copy: float, compute: float, idle: float
) -> None:
    device = FakeDevice()
    marks = device.marks()
    train(device, marks, 10, wait=wait, copy=copy, compute=compute)
    device.synchronize()
    parts = marks.cut()
    assert parts["copy_s"] == pytest.approx(10 * copy)
    assert parts["compute_s"] == pytest.approx(10 * compute)
    assert parts["idle_s"] == pytest.approx(idle)
    assert sum(parts.values()) == pytest.approx(device.host_s)
