"""What each worker loads and has loaded, by its own clocks, in a table that it shares with the training process.

The dataset is not wrapped: within a worker, torch's fetcher is. User code sees its own dataset, also in
``get_worker_info()``.
"""

import functools
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from loadtune.stream import torch_private as private
from loadtune.stream.sample_table import (
    BEGAN_S,
    CPU_S,
    DRAWS,
    FIRST_S,
    INDEX,
    MADE_S,
    MAX_MADE_S,
    NUM_ENDED,
    NUM_TIMED,
    READY_S,
    Row,
    SampleTable,
    begin_batch,
    end_batch,
)

_WATCHED = 8
"""Batches of each worker whose random numbers are looked at."""

SampleError = Callable[[BaseException, object], None]
"""Called in the process that loads, with an exception and the index of the sample that raised it."""


@dataclass(frozen=True, slots=True)
class RowWriter:
    """A ``worker_init_fn``: the worker notes in its row what it loads, then runs the caller's own function."""

    table: SampleTable
    first_row: int
    worker_init_fn: Callable[[int], Any] | None
    sample_error: SampleError | None = None

    def __call__(self, worker_id: int) -> None:
        row = self.table.row(self.first_row + worker_id)
        for fetcher in private.FETCHERS:
            fetcher.fetch = _watched(fetcher.fetch, row, self.sample_error)
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)
        row[READY_S] = time.monotonic()


def watch_fetcher(fetcher: Any, table: SampleTable, sample_error: SampleError | None = None) -> Any:
    """Let this one fetcher of the training process note what it loads in the table's row for that process."""
    fetcher.fetch = functools.partial(_watched(type(fetcher).fetch, table.row(None), sample_error), fetcher)
    return fetcher


def _watched(fetch: Any, row: Row, sample_error: SampleError | None) -> Any:
    """``fetch(self, index)`` with the times around it and each sample's index noted."""

    @functools.wraps(fetch)
    def watched(self: Any, index: Any) -> Any:
        indices = index if self.auto_collation and isinstance(index, list | tuple) else (index,)
        first = not row[NUM_ENDED]  # which opens files and is no measure of the others
        states = read_states() if row[NUM_ENDED] < _WATCHED and not row[DRAWS] else None
        row[BEGAN_S] = begun = time.monotonic()
        begin_batch(row, indices)
        try:
            if _reads_one_by_one(self, index):
                index = _noting(index, row)
            data = fetch(self, index)
        except Exception as error:
            if sample_error is not None and (at := row[INDEX]) == at:
                sample_error(error, int(at))
            raise
        finally:
            end_batch(row)
        seconds = time.monotonic() - begun
        if states is not None and not same_states(states, read_states()):
            row[DRAWS] = 1.0
        row[NUM_ENDED] += 1
        row[CPU_S] = time.process_time()
        if first:
            row[FIRST_S] = seconds
        else:
            row[NUM_TIMED] += 1
            row[MADE_S] += seconds
            row[MAX_MADE_S] = max(row[MAX_MADE_S], seconds)
        return data

    return watched


def _reads_one_by_one(fetcher: Any, index: Any) -> bool:
    """Whether torch's fetcher asks the dataset for each of these samples in turn."""
    is_batch = fetcher.auto_collation and isinstance(index, list)
    return is_batch and isinstance(fetcher, private.FETCHERS[0]) and not getattr(fetcher.dataset, "__getitems__", None)


def _noting(indices: Iterable[Any], row: Row) -> Iterator[Any]:
    for index in indices:
        if isinstance(index, int):
            row[INDEX] = index
        yield index


class WorkerTimes(NamedTuple):
    """Of one worker since it started: the first fields of its row, in their order."""

    num_begun: float
    num_ended: float
    """Batches fetched and collated; one may still be on its way to the training process."""
    began_s: float
    """When it began its newest batch, on the clock that all processes share (``time.monotonic``)."""
    first_s: float
    """Seconds in which it fetched and collated its first batch. 0: it has none yet."""
    num_timed: float
    """Batches but the first."""
    made_s: float
    """Seconds in which it fetched and collated those, waiting included."""
    max_made_s: float
    cpu_s: float
    """CPU seconds of the process at the end of its newest batch, start-up included: compare two readings."""
    ready_s: float
    """When it was ready for its first batch, on the clock that all processes share. 0: not yet, or no worker."""
    draws: float
    """1 where one of its first 8 batches drew random numbers of torch, Python or numpy, else 0."""


def worker_times(table: SampleTable, rows: range) -> list[WorkerTimes]:
    """Of the workers with these rows. Whoever reads while one writes may be a batch off."""
    return [WorkerTimes(*table.row(number).tolist()[: len(WorkerTimes._fields)]) for number in rows]


def num_made(workers: Iterable[WorkerTimes], now: float) -> float:
    """Batches made until now by all of them; one in the making counts by how far it should have come."""
    workers = list(workers)
    num_timed = sum(worker.num_timed for worker in workers)
    usual_s = sum(worker.made_s for worker in workers) / num_timed if num_timed else 0.0
    made = 0.0
    for worker in workers:
        own_s = worker.made_s / worker.num_timed if worker.num_timed else usual_s
        is_making = worker.num_begun > worker.num_ended and own_s > 0
        made += worker.num_ended + (min(1.0, max(0.0, now - worker.began_s) / own_s) if is_making else 0.0)
    return made


# Random numbers of a process: torch's on the CPU, Python's and numpy's


def read_states() -> Any:
    """Some 20 µs."""
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()


def write_states(states: Any) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        sys.modules["numpy"].random.set_state(states[2])


def same_states(first: Any, second: Any) -> bool:
    """Whether nothing was drawn between two readings."""
    if not torch.equal(first[0], second[0]) or first[1] != second[1]:
        return False
    mine, other = first[2], second[2]
    if mine is None or other is None:
        return True  # numpy was not there yet
    return mine[2:] == other[2:] and bool((mine[1] == other[1]).all())
