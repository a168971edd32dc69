"""How long each worker takes to make a batch, by its own clock, in memory that it shares with the training process.

The wait alone does not tell a slow worker: batches are handed out in turn, and workers that are all alike, started
together, make the loop wait for the same one of them round after round.
"""

import time
from typing import Any

import torch
from torch.utils.data import Dataset, get_worker_info

from loadtune.records import WorkerShare

_NUM_FIELDS = 3  # batches made, seconds they took, seconds of the longest


class WorkerLedger:
    """A row for each worker, which writes it alone; whoever reads may be a batch behind."""

    def __init__(self, num_workers: int) -> None:
        self._rows = torch.zeros(num_workers, _NUM_FIELDS, dtype=torch.float64)
        torch.Tensor.share_memory_(self._rows)  # type: ignore[no-untyped-call]

    def add(self, worker: int, seconds: float) -> None:
        row = self._rows.numpy()[worker]
        row += (1, seconds, max(0.0, seconds - row[2]))

    def read(self, worker: int) -> WorkerShare:
        """What this worker made until now."""
        num_made, made_s, max_made_s = self._rows[worker].tolist()
        return WorkerShare(num_made=int(num_made), made_s=made_s, max_made_s=max_made_s)


class TimedDataset(Dataset[Any]):
    """A dataset whose batches are timed in the worker that makes them: one clock a batch, whatever its size.

    A class of the module, so that it pickles where workers are spawned. Samples are fetched as PyTorch's own fetcher
    does, all at once where the dataset offers that.
    """

    def __init__(self, dataset: Any, ledger: WorkerLedger) -> None:
        self._dataset, self._ledger = dataset, ledger
        self._begun = False

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        started = time.monotonic()
        fetch_many = getattr(self._dataset, "__getitems__", None)
        samples: list[Any] = fetch_many(indices) if fetch_many else [self._dataset[index] for index in indices]
        worker = get_worker_info()
        if worker is not None and self._begun:
            self._ledger.add(worker.id, time.monotonic() - started)
        self._begun = True  # in this worker: a worker's first batch opens files and is no measure of the rest
        return samples
