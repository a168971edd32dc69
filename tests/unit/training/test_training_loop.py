"""The timed loop over real DataLoaders: what was planted as slow is what the window's fields name."""

import contextlib
import multiprocessing
import os
import tempfile
import time
from operator import itemgetter
from typing import Any

import pytest
import torch
from loop_rig import LINE, SleepingTrainer
from torch.utils.data import DataLoader, Dataset, IterableDataset
from workload_rig import workload_of

from loadtune.records.config import LoaderConfig
from loadtune.records.measurement import Window
from loadtune.stream.torch_private import Depth
from loadtune.training.loop import EndlessLoader, Marks, TimedLoop
from loadtune.workload.loaders import LoaderParts

SLOW_S, QUICK_S = 0.02, 0.001


class Sleeping(Dataset[Any]):
    """A sample is a sleep."""

    def __init__(self, sample_s: float, *, length: int = 4096) -> None:
        self.sample_s, self.length = sample_s, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.sample_s)
        return torch.zeros(2), 0


def run(
    trainer: SleepingTrainer,
    dataset: Sleeping,
    num_workers: int,
    num_windows: int,
    window_s: float = 0.2,
    prefetch_factor: int = 2,
) -> list[Window]:
    workload = workload_of(dataset)
    config = LoaderConfig(batch_size=2, num_workers=num_workers, prefetch_factor=prefetch_factor)
    with contextlib.closing(EndlessLoader(workload, config)) as loader:
        loader.next_batch()
        loop = TimedLoop(trainer, loader, LINE)
        windows = [loop.window(window_s) for _ in range(num_windows)]
        return [window for window in windows if window is not None]


@pytest.mark.parametrize(
    ("slow", "copy_s", "step_s", "sample_s"),
    [
        ("copy_s", SLOW_S, QUICK_S, 0.0),
        ("compute_s", QUICK_S, SLOW_S, 0.0),
        ("wait_s", QUICK_S, QUICK_S, SLOW_S / 2),  # two samples a batch
    ],
)
def test_the_slow_part_is_named_and_the_parts_add_up(slow: str, copy_s: float, step_s: float, sample_s: float) -> None:
    (window,) = run(SleepingTrainer(copy_s, step_s), Sleeping(sample_s), num_workers=0, num_windows=1)
    parts = {part: getattr(window, part) for part in ("copy_s", "compute_s", "wait_s")}
    assert max(parts, key=lambda part: parts[part]) == slow
    assert parts[slow] > 0.9 * window.num_steps * SLOW_S  # a sleep never ends early
    assert sum(parts.values()) == pytest.approx(window.seconds, rel=0.02)


class Refused:
    """A batch whose shared memory is not to be had."""

    def __reduce__(self) -> Any:
        return os.close, (-1,)


class EndsItsWorker(IterableDataset[Any]):
    """After its first batch, and once it may."""

    def __init__(self) -> None:
        self.ends = multiprocessing.Event()

    def __iter__(self) -> Any:
        yield Refused()
        self.ends.wait()
        os._exit(3)


def test_a_death_that_pytorch_saw_as_it_handled_another_error_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells a death once; what was raised then is lost where something else raises, as tempfile did."""
    dataset = EndsItsWorker()

    def dies_meanwhile() -> Any:
        dataset.ends.set()
        with contextlib.suppress(RuntimeError):
            time.sleep(60)
        raise FileNotFoundError

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", dies_meanwhile)
    parts = LoaderParts.of(
        DataLoader(dataset, 1, num_workers=1, collate_fn=itemgetter(0), multiprocessing_context="fork")
    )
    config = LoaderConfig(batch_size=1, num_workers=1)
    with (
        contextlib.closing(EndlessLoader(workload_of(None, loader=parts), config)) as loader,
        pytest.raises(RuntimeError, match="exited unexpectedly with exit code 3"),
    ):
        loader.next_batch()


def test_windows_have_whole_rounds_of_accumulated_gradients_and_their_skipped_steps() -> None:
    """One update of six batches is skipped; the first batch came before the first window."""
    trainer = SleepingTrainer(step_s=QUICK_S, halvings=lambda steps: float(steps >= 5))
    trainer.accumulate = 6
    windows = run(trainer, Sleeping(0.0), num_workers=0, num_windows=3, window_s=0.002)
    assert [window.num_steps % 6 for window in windows] == [0, 0, 0]
    assert [window.num_skipped_steps for window in windows] == [6, 0, 0]


def test_a_step_that_is_the_wall_finds_its_batches_ready() -> None:
    windows = run(SleepingTrainer(step_s=SLOW_S), Sleeping(0.0), num_workers=1, num_windows=3)
    assert windows[-1].queue_end > 1  # of the two that one worker keeps ahead
    assert windows[-1].least_unpinned is None  # nothing pins without a GPU


def test_a_dataset_of_few_batches_reads_as_fast_as_its_steps() -> None:
    """Of 18 batches 16 are prefetched: where an epoch ends there is nothing to make, and such windows read almost 0."""
    trainer, dataset = SleepingTrainer(step_s=SLOW_S), Sleeping(QUICK_S, length=36)
    windows = run(trainer, dataset, num_workers=2, num_windows=6, window_s=0.1, prefetch_factor=8)
    made = [window.num_steps + (window.queue_end or 0.0) - (window.queue_start or 0.0) for window in windows]
    assert sum(made) > 18, "more than one pass"
    assert all(number > 0 for number in made), made


class Scripted:
    """Stands for an `EndlessLoader` whose queue is looked at as a window begins, around each batch, and at its end."""

    config = LoaderConfig(batch_size=1, num_workers=1)

    def __init__(self, *depths: Depth) -> None:
        self._depths = iter(depths)

    def depth(self) -> Depth:
        return next(self._depths)

    def num_ahead(self) -> float:
        return 0.0

    def next_batch(self) -> Any:
        return [torch.zeros(1)]


def two_steps(*depths: Depth) -> Window:
    trainer = SleepingTrainer()
    trainer.accumulate = 2
    return TimedLoop(trainer, Scripted(*depths), LINE).window(0.0)


def test_what_the_pinning_thread_did_is_told_from_looks_before_each_batch() -> None:
    """One batch more was trained on than pinned. Right after a batch was handed out the thread may be at the last."""
    counts = ((9, 3), (5, 3), (0, 2), (4, 3), (0, 2), (9, 2))
    window = two_steps(*(Depth(unpinned, ready) for unpinned, ready in counts))
    assert (window.num_pinned, window.least_unpinned) == (1, 4)
    assert (window.num_taken, window.least_untaken) == (None, None)


def test_what_the_training_process_took_itself_is_told_from_looks_before_and_after_each_batch() -> None:
    """It had set two batches aside that came before their turn, and has one now."""
    counts = ((6, 4), (6, 4), (5, 3), (5, 3), (3, 2), (9, 8))
    window = two_steps(*(Depth(unpinned=None, ready=ready, untaken=untaken) for ready, untaken in counts))
    assert (window.num_taken, window.least_untaken) == (1, 2)
    assert (window.num_pinned, window.least_unpinned) == (None, None)


class FakeDevice:
    """A stream: work is queued by the host and done in order; an event is passed when all before it is done."""

    def __init__(self) -> None:
        self.host_s = 0.0
        self.busy_until_s = 0.0

    def launch(self, seconds: float) -> None:
        self.busy_until_s = max(self.busy_until_s, self.host_s) + seconds

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, self.busy_until_s)

    def record_event(self, event: object) -> "FakeEvent":
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self.device, self.passed_s = device, max(device.busy_until_s, device.host_s)

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert max(self.passed_s, end.passed_s) <= self.device.host_s, "read before the device had passed it"
        return (end.passed_s - self.passed_s) * 1000


@pytest.mark.parametrize(
    ("wait", "copy", "compute"),
    [
        (0.001, 0.01, 0.04),  # the host runs ahead
        (0.1, 0.01, 0.04),  # the loader is the bottleneck
        (0.001, 0.04, 0.01),
    ],
)
def test_parts_are_the_devices_own(monkeypatch: pytest.MonkeyPatch, wait: float, copy: float, compute: float) -> None:
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: None)  # torch without CUDA has none
    device = FakeDevice()
    marks = Marks(device)
    for _ in range(10):
        device.host_s += wait
        marks.end_part()
        device.launch(copy)
        marks.end_part()
        device.launch(compute)
        marks.end_part()
    device.synchronize()
    parts = marks.cut()
    assert parts == pytest.approx({"copy_s": 10 * copy, "compute_s": 10 * compute})
