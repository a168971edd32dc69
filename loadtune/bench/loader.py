"""Train on real batches from a fresh DataLoader and stream windows until the controller has seen enough."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from loadtune.bench.line import Line
from loadtune.bench.prefetch_queue import batches_ready, end_workers
from loadtune.bench.training import Trainer
from loadtune.bench.windows import WindowRule
from loadtune.records import LoaderConfig, Window
from loadtune.workload import Batch, TracedDataset, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderRun:
    """What one run of the loader came to."""

    windows: tuple[Window, ...]
    first_batch_s: float
    num_skipped_steps: int


@dataclass(slots=True)
class _Counts:
    """Of one window, while it grows."""

    steps: int = 0
    samples: int = 0
    wait_s: float = 0.0


class EndlessLoader:
    """Batches without end: where an epoch ends the next begins, and what that costs is the loader's."""

    def __init__(self, workload: Workload, config: LoaderConfig) -> None:
        self.has_queue = config.num_workers > 0
        self._loader: DataLoader[Any] = DataLoader(
            TracedDataset(workload.dataset, workload.dataset_length),
            shuffle=True,
            drop_last=True,
            generator=torch.Generator().manual_seed(workload.spec.seed),
            **config.kwargs(),
        )
        self._iterator: Iterator[Batch] | None = None

    def next_batch(self) -> Batch:
        """The next batch; the first call starts the workers."""
        if self._iterator is None:
            self._iterator = iter(self._loader)
        batch: Batch | None = next(self._iterator, None)
        if batch is None:  # the epoch is over; drop_last and the length check leave no epoch without a batch
            self._iterator = iter(self._loader)
            batch = next(self._iterator)
        return batch

    def num_ready(self) -> float | None:
        """Batches in the prefetch queue. None: there is no queue."""
        return batches_ready(self._iterator) if self.has_queue else None

    def close(self) -> None:
        """End the workers."""
        iterator, self._iterator = self._iterator, None
        end_workers(iterator)


def train_on_loader(
    trainer: Trainer, workload: Workload, config: LoaderConfig, window_s: float, line: Line
) -> LoaderRun:
    """Time what follows the first batch. The trainer has to be warm: nothing slow may happen while the queue fills."""
    loader = EndlessLoader(workload, config)
    try:
        line.enter("first batch")
        started = time.monotonic()
        batch = loader.next_batch()
        first_batch_s = time.monotonic() - started
        line.enter("training")
        trainer.step(trainer.to_device(batch))  # uncounted: the wait for this batch lies before the first window
        del batch
        trainer.synchronize()
        halvings = trainer.num_halvings()
        windows = _stream(trainer, loader, WindowRule(window_s, config.num_workers), line)
        skipped = trainer.num_halvings() - halvings
    finally:
        loader.close()
    num_steps = sum(window.num_steps for window in windows)
    # A scale that fell to 0 cannot be subtracted from: then nothing was learnt any more.
    num_skipped = min(num_steps, round(skipped)) if math.isfinite(skipped) else num_steps
    return LoaderRun(windows=windows, first_batch_s=first_batch_s, num_skipped_steps=num_skipped)


def _stream(trainer: Trainer, loader: EndlessLoader, rule: WindowRule, line: Line) -> tuple[Window, ...]:
    """Window after window, each handed over as it ends; a window that the stop cuts short is dropped."""
    windows: list[Window] = []
    start, ready = time.monotonic(), loader.num_ready()
    while (counts := _train_window(trainer, loader, rule, start, line)) is not None:
        trainer.synchronize()
        end, ready_then = time.monotonic(), loader.num_ready()
        window = Window(
            start_s=start,
            seconds=end - start,
            num_steps=counts.steps,
            num_samples=counts.samples,
            wait_s=counts.wait_s,
            queue_start=ready,
            queue_end=ready_then,
        )
        windows.append(window)
        line.window(window)
        start, ready = end, ready_then
    return tuple(windows)


def _train_window(
    trainer: Trainer, loader: EndlessLoader, rule: WindowRule, start: float, line: Line
) -> _Counts | None:
    """Train until the rule ends the window. None: the controller has seen enough."""
    counts = _Counts()
    while not rule.ends(time.monotonic() - start, counts.steps):
        if line.stop_asked():
            return None
        asked = time.monotonic()
        batch = loader.next_batch()
        counts.wait_s += time.monotonic() - asked
        trainer.step(trainer.to_device(batch))
        counts.steps += 1
        counts.samples += len(batch[0])
        line.pulse()
    return counts
