"""A DataLoader over the workload's dataset whose batches never end, and which worker made what of them."""

import dataclasses
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from loadtune.bench.prefetch_queue import Depth, end_workers, queue_depth, raise_worker_end
from loadtune.bench.sample_table import SampleTable
from loadtune.bench.worker_ledger import TimedDataset, WorkerLedger
from loadtune.records import LoaderConfig, WorkerShare
from loadtune.workload import Batch, Workload


@dataclass(slots=True)
class _Waited:
    """For the batches of one worker; grows in every step."""

    num_batches: int = 0
    wait_s: float = 0.0
    max_wait_s: float = 0.0


class EndlessShuffle(Sampler[int]):
    """The whole dataset in a random order, then in another, without end.

    The last batches of an epoch leave the workers nothing to make: the queue runs down, the next epoch's first batches
    fill it again, and a window that sees the one without the other is wrong (of a dataset of 20 batches, 52 samples/s
    where 867 trained). What an epoch's end costs is timed apart.
    """

    def __init__(self, length: int, seed: int) -> None:
        self._length, self._seed = length, seed

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed)
        while True:
            yield from torch.randperm(self._length, generator=generator).tolist()


class EndlessLoader:
    """Batches without end, and without the end of an epoch.

    Given a `sampler`, an epoch is what that one draws: where it ends the next begins, and that costs what it costs.
    Loaders of another `number` read in another order, as epochs do, because files that the last one has read come from
    memory.
    """

    def __init__(
        self,
        workload: Workload,
        config: LoaderConfig,
        sampler: Iterable[int] | None = None,
        *,
        number: int = 0,
        table: SampleTable | None = None,
    ) -> None:
        """``table``: says which samples are being loaded, to whoever else can read it."""
        self.config = config
        ledger = WorkerLedger(config.num_workers, table)
        self._ledger = ledger if config.num_workers else None
        self._waits = [_Waited() for _ in range(config.num_workers)]
        self._num_handed_out = self._position = 0
        seed = workload.spec.seed + number
        self._loader: DataLoader[Any] = DataLoader(
            TimedDataset(workload.dataset, workload.dataset_length, ledger),
            sampler=EndlessShuffle(workload.dataset_length, seed) if sampler is None else sampler,
            drop_last=True,
            generator=torch.Generator().manual_seed(seed),
            **config.kwargs(),
        )
        self._iterator: Iterator[Batch] | None = None

    @property
    def num_workers(self) -> int:
        return self.config.num_workers

    def start(self) -> Iterator[Batch]:
        """Start the workers, where they are not running."""
        if self._iterator is None:
            self._iterator = iter(self._loader)
        return self._iterator

    def next_batch(self) -> Batch:
        """The next batch; the first call starts the workers."""
        batch = self._next(self.start())
        if batch is None:  # the sampler's epoch is over; drop_last and the length check leave none without a batch
            self._position = 0
            self._iterator = iter(self._loader)
            batch = next(self._iterator)
        self._num_handed_out += 1
        self._position += 1
        return batch

    def _next(self, batches: Iterator[Batch]) -> Batch | None:
        """None: there is no further one."""
        try:
            return next(batches, None)
        except (OSError, EOFError) as error:
            if self._waits and not str(error).startswith("Caught "):  # as an exception out of a worker does
                raise_worker_end()
            raise

    def any_made(self) -> bool:
        """Whether a worker has read all samples of a batch. Without workers: always, nothing is made ahead."""
        return self._ledger is None or self._ledger.num_ended() > 0

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
