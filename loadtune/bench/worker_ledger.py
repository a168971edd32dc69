"""What each worker made and is making, by its own clock, in memory that it shares with the training process.

The queue's length alone does not tell how much was made: workers that are in step finish together, so it jumps by as
many batches as there are workers, and two looks at it may fall before and after a jump. Nor does the wait alone tell a
slow worker: batches are handed out in turn, and of workers that are all alike and in step the loop waits for the same
one round after round.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

from loadtune.records import WorkerShare


@dataclass(slots=True)
class _Row:
    """One worker's account, as a row of the shared table holds it."""

    num_begun: float = 0.0
    num_ended: float = 0.0
    began_s: float = 0.0
    """When it began the batch it is making, on the clock that all processes share."""
    num_timed: float = 0.0
    """Batches that count: not the first of a process, which opens files and is no measure of the rest."""
    made_s: float = 0.0
    max_made_s: float = 0.0


_BEGUN, _ENDED, _BEGAN_S, _TIMED, _MADE_S, _MAX_MADE_S = range(len(_Row.__slots__))


class WorkerLedger:
    """A row for each worker, which writes it alone; whoever reads while it writes may be a batch off."""

    def __init__(self, num_workers: int) -> None:
        self._rows = torch.zeros(num_workers, len(_Row.__slots__), dtype=torch.float64)
        torch.Tensor.share_memory_(self._rows)  # type: ignore[no-untyped-call]

    def begin(self, worker: int, now: float) -> None:
        """A worker begins a batch."""
        row = self._rows.numpy()[worker]
        row[_BEGAN_S] = now
        row[_BEGUN] += 1

    def end(self, worker: int, now: float, *, counts: bool) -> None:
        """It has made it. `counts`: its time is one to compare."""
        row = self._rows.numpy()[worker]
        seconds = now - row[_BEGAN_S]
        row[_ENDED] += 1
        if counts:
            row[_TIMED] += 1
            row[_MADE_S] += seconds
            row[_MAX_MADE_S] = max(row[_MAX_MADE_S], seconds)

    def num_ended(self) -> int:
        """Batches whose samples are all there; the worker may still be putting them together."""
        return int(self._rows[:, _ENDED].sum())

    def num_made(self, now: float) -> float:
        """Batches made until now by all of them; one in the making counts by how far it should have come."""
        rows = [_Row(*row) for row in self._rows.tolist()]
        made_s, num_timed = sum(row.made_s for row in rows), sum(row.num_timed for row in rows)
        usual_s = made_s / num_timed if num_timed else None
        return sum(_made(row, now, usual_s) for row in rows)

    def read(self, worker: int) -> WorkerShare:
        """What this worker made until now."""
        row = _Row(*self._rows[worker].tolist())
        return WorkerShare(num_made=int(row.num_timed), made_s=row.made_s, max_made_s=row.max_made_s)


def _made(row: _Row, now: float, usual_s: float | None) -> float:
    own_s = row.made_s / row.num_timed if row.num_timed else usual_s
    if row.num_begun <= row.num_ended or not own_s:
        return row.num_ended
    return row.num_ended + min(1.0, max(0.0, now - row.began_s) / own_s)


class TimedDataset(Dataset[Any]):
    """A dataset whose batches are timed in the worker that makes them: two looks at the clock, whatever the batch size.

    A class of the module, so that it pickles where workers are spawned. Samples are fetched as PyTorch's own fetcher
    does, all at once where the dataset offers that.
    """

    def __init__(self, dataset: Any, ledger: WorkerLedger) -> None:
        self._dataset, self._ledger = dataset, ledger
        self._has_begun = False

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        worker = get_worker_info()
        assert worker is not None, "made for workers: their absence has no ledger"
        self._ledger.begin(worker.id, time.monotonic())
        fetch_many = getattr(self._dataset, "__getitems__", None)
        samples: list[Any] = fetch_many(indices) if fetch_many else [self._dataset[index] for index in indices]
        self._ledger.end(worker.id, time.monotonic(), counts=self._has_begun)
        self._has_begun = True  # in this process
        return samples
