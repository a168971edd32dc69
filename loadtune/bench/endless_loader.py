"""A DataLoader over the workload's dataset whose batches never end, and which worker made what of them."""

import dataclasses
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from loadtune.bench.prefetch_queue import Depth, end_workers, queue_depth
from loadtune.bench.worker_ledger import TimedDataset, WorkerLedger
from loadtune.records import LoaderConfig, WorkerShare
from loadtune.workload import Batch, TracedDataset, Workload


@dataclass(slots=True)
class _Waited:
    """For the batches of one worker; grows in every step."""

    num_batches: int = 0
    wait_s: float = 0.0
    max_wait_s: float = 0.0


class EndlessLoader:
    """Batches without end: where an epoch ends the next begins, and what that costs is the loader's.

    Given a `sampler`, an epoch is what that one draws; otherwise it is the dataset, shuffled.
    """

    def __init__(self, workload: Workload, config: LoaderConfig, sampler: Iterable[int] | None = None) -> None:
        self._ledger = WorkerLedger(config.num_workers) if config.num_workers else None
        self._waits = [_Waited() for _ in range(config.num_workers)]
        self._num_handed_out = self._position = 0
        dataset: Dataset[Any] = TracedDataset(workload.dataset, workload.dataset_length)
        self._loader: DataLoader[Any] = DataLoader(
            dataset if self._ledger is None else TimedDataset(dataset, self._ledger),
            shuffle=sampler is None,
            sampler=sampler,
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
            self._position = 0
            self._iterator = iter(self._loader)
            batch = next(self._iterator)
        self._num_handed_out += 1
        self._position += 1
        return batch

    def depth(self) -> Depth | None:
        """Where in the prefetch queue batches stand. None: there is no queue, or it does not tell."""
        return queue_depth(self._iterator)

    def num_ahead(self) -> float | None:
        """Batches made and not handed out, those in the making by how far they have come. None: there is no worker."""
        return None if self._ledger is None else self._ledger.num_made(time.monotonic()) - self._num_handed_out

    def waited(self, seconds: float) -> None:
        """Book the wait for the batch that was just handed out with the worker that made it: they take turns."""
        if self._waits:
            waits = self._waits[(self._position - 1) % len(self._waits)]
            waits.num_batches += 1
            waits.wait_s += seconds
            waits.max_wait_s = max(waits.max_wait_s, seconds)

    def shares(self) -> tuple[WorkerShare, ...]:
        """What each worker did so far. Empty: there are none."""
        if self._ledger is None:
            return ()
        made = (self._ledger.read(worker) for worker in range(len(self._waits)))
        return tuple(
            dataclasses.replace(m, num_batches=w.num_batches, wait_s=w.wait_s, max_wait_s=w.max_wait_s)
            for w, m in zip(self._waits, made, strict=True)
        )

    def close(self) -> None:
        """End the workers."""
        iterator, self._iterator = self._iterator, None
        end_workers(iterator)
