"""A pinning thread that cannot keep up: a short run tells what a long one trains, not what was pinned before."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from loop_rig import LINE, SleepingTrainer

from loadtune.records.config import LoaderConfig
from loadtune.records.measurement import samples_per_s
from loadtune.stream.torch_private import Depth
from loadtune.training.loop import TimedLoop, WindowRule

MAKE_S, PIN_S, STEP_S = 0.002, 0.04, 0.01


class PinningLoader:
    """Stands for an `EndlessLoader`: one thread makes batches, one pins them; so many may wait."""

    num_workers = 1
    config = LoaderConfig(batch_size=1, num_workers=1, pin_memory=True, prefetch_factor=24)

    def __init__(self, most: int) -> None:
        self._made: queue.Queue[int] = queue.Queue()
        self._pinned: queue.Queue[int] = queue.Queue()
        self._places = threading.Semaphore(most)
        self._ended = threading.Event()
        self._num_made = self._num_handed_out = self.num_pinned = 0
        self._threads = [threading.Thread(target=work) for work in (self._make, self._pin)]
        for thread in self._threads:
            thread.start()

    def _make(self) -> None:
        while not self._ended.is_set():
            if self._places.acquire(timeout=0.1):
                time.sleep(MAKE_S)
                self._num_made += 1
                self._made.put(0)

    def _pin(self) -> None:
        while not self._ended.is_set():
            try:
                batch = self._made.get(timeout=0.1)
            except queue.Empty:
                continue
            time.sleep(PIN_S)
            self.num_pinned += 1
            self._pinned.put(batch)

    def next_batch(self) -> list[torch.Tensor]:
        self._pinned.get(timeout=10)
        self._num_handed_out += 1
        self._places.release()
        return [torch.zeros(1)]

    def depth(self) -> Depth:
        return Depth(unpinned=self._made.qsize(), ready=self._pinned.qsize())

    def num_ahead(self) -> float:
        return self._num_made - self._num_handed_out

    def waited(self, seconds: float) -> None: ...

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def make_loader() -> Iterator[Callable[[int], Any]]:
    with contextlib.ExitStack() as stack:
        yield lambda most: stack.enter_context(contextlib.closing(PinningLoader(most)))


def test_batches_that_were_pinned_before_are_no_throughput(make_loader: Callable[[int], Any]) -> None:
    """The queue stays full, so that the workers seem to keep up, and the steps hardly wait."""
    loader = make_loader(64)
    while loader.depth().ready < 64:
        time.sleep(PIN_S)
    trainer: Any = SleepingTrainer(step_s=STEP_S)
    loop, rule = TimedLoop(trainer, loader, LINE), WindowRule(0.2, 1)
    first, before = loop.window(rule), loader.num_pinned
    told = [window for window in (loop.window(rule), loop.window(rule)) if window is not None]
    num_pinned = loader.num_pinned - before  # in the same time, however busy the machine is
    assert first is not None
    assert first.least_unpinned == 0, "the thread had pinned all there was"
    assert all((window.least_unpinned or 0) > 0 for window in told)
    assert sum(window.num_samples for window in told) > 1.3 * num_pinned
    assert samples_per_s(told) * sum(window.seconds for window in told) == pytest.approx(num_pinned, abs=2)
