"""What each worker made and is making, by its own clock, in memory that it shares with the training process.

The queue's length alone does not tell how much was made: workers that are in step finish together, so it jumps by as
many batches as there are workers, and two looks at it may fall before and after a jump. Nor does the wait alone tell a
slow worker: batches are handed out in turn, and of workers that are all alike and in step the loop waits for the same
one round after round.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.utils.data import Dataset, get_worker_info

from loadtune.bench.sample_table import (
    BEGAN_S,
    INDEX,
    MADE_S,
    MAX_MADE_S,
    NUM_ENDED,
    NUM_TIMED,
    Row,
    SampleTable,
    begin_batch,
    end_batch,
)
from loadtune.records import WorkerShare
from loadtune.workload import note_index

_TIMES = slice(0, 6)


class _Row(NamedTuple):
    """What a worker's row of the shared table says of its batches, in the order of the table's fields."""

    num_begun: float
    num_ended: float
    began_s: float
    """When it began the batch it is making, on the clock that all processes share."""
    num_timed: float
    """Batches that count: not the first of a process, which opens files and is no measure of the rest."""
    made_s: float
    max_made_s: float


class WorkerLedger:
    """A row for each worker, which writes it alone; whoever reads while it writes may be a batch off."""

    def __init__(self, num_workers: int, table: SampleTable | None = None) -> None:
        """``table``: where the rows lie, cleared for this loader. None: one that nobody else reads."""
        self.table = SampleTable() if table is None else table
        self.table.begin(num_workers)
        self._num_workers = num_workers

    def begin(self, worker: int | None, indices: Sequence[int], now: float) -> Row:
        """A worker begins a batch, or without workers the training process; its row."""
        row = self.table.row(worker)
        row[BEGAN_S] = now
        begin_batch(row, indices)
        return row

    def end(self, row: Row, now: float, *, counts: bool) -> None:
        """It has made it. `counts`: its time is one to compare."""
        seconds = now - row[BEGAN_S]
        end_batch(row)
        row[NUM_ENDED] += 1
        if counts:
            row[NUM_TIMED] += 1
            row[MADE_S] += seconds
            row[MAX_MADE_S] = max(row[MAX_MADE_S], seconds)

    def num_ended(self) -> int:
        """Batches whose samples are all there; the worker may still be putting them together."""
        return sum(int(row.num_ended) for row in self._rows())

    def num_made(self, now: float) -> float:
        """Batches made until now by all of them; one in the making counts by how far it should have come."""
        rows = self._rows()
        made_s, num_timed = sum(row.made_s for row in rows), sum(row.num_timed for row in rows)
        usual_s = made_s / num_timed if num_timed else None
        return sum(_made(row, now, usual_s) for row in rows)

    def read(self, worker: int) -> WorkerShare:
        """What this worker made until now."""
        row = self._row(worker)
        return WorkerShare(num_made=int(row.num_timed), made_s=row.made_s, max_made_s=row.max_made_s)

    def _rows(self) -> list[_Row]:
        return [self._row(worker) for worker in range(self._num_workers)]

    def _row(self, worker: int) -> _Row:
        return _Row(*self.table.row(worker)[_TIMES].tolist())


def _made(row: _Row, now: float, usual_s: float | None) -> float:
    own_s = row.made_s / row.num_timed if row.num_timed else usual_s
    if row.num_begun <= row.num_ended or not own_s:
        return row.num_ended
    return row.num_ended + min(1.0, max(0.0, now - row.began_s) / own_s)


class TimedDataset(Dataset[Any]):
    """The user's dataset, whose batches are timed and named where they are loaded: two looks at the clock a batch.

    A class of the module, so that it pickles where workers are spawned. Samples are fetched as PyTorch's own fetcher
    does, all at once where the dataset offers that. An exception carries the index of its sample, also out of a worker.
    """

    def __init__(self, dataset: Dataset[Any], length: int, ledger: WorkerLedger) -> None:
        self._dataset, self._length, self._ledger = dataset, length, ledger
        self._has_begun = False

    def __len__(self) -> int:
        return self._length

    def __getitems__(self, indices: list[int]) -> list[Any]:
        worker = get_worker_info()
        row = self._ledger.begin(None if worker is None else worker.id, indices, time.monotonic())
        fetch_many = getattr(self._dataset, "__getitems__", None)
        try:
            samples: list[Any] = fetch_many(indices) if fetch_many else _fetch(self._dataset, indices, row)
        except Exception:
            end_batch(row)
            raise
        self._ledger.end(row, time.monotonic(), counts=self._has_begun)
        self._has_begun = True  # in this process
        return samples


def _fetch(dataset: Dataset[Any], indices: list[int], row: Row) -> list[Any]:
    samples: list[Any] = []
    try:
        for index in indices:
            row[INDEX] = index
            samples.append(dataset[index])
    except Exception as error:
        note_index(error, index)
        raise
    return samples
