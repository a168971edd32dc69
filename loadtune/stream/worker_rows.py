"""What each worker loads and has loaded, by its own clocks, in a table that it shares with the training process. Not
the dataset is wrapped but torch's fetcher: user code sees its own dataset.
"""

import functools
import math
import pickle
import random
import statistics
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from loadtune.stream import torch_private as private
from loadtune.stream.looks import Looks
from loadtune.stream.sample_table import Row, SampleTable, begin_batch

_WATCHED = 8
"""Batches of each worker whose random numbers are looked at."""

_FEWEST_WORKERS, _FEWEST_BATCHES, _SLOW, _ERRORS = 3, 8, 1.5, 4
"""For a worker that is called slow: workers, batches of each, times as long, standard errors of its mean."""

SampleError = Callable[[BaseException, object], None]
"""Called in the process that loads, with an exception and the index of the sample that raised it."""


@dataclass(frozen=True, slots=True)
class Notes:
    """Where those that load note what they do."""

    table: SampleTable
    sample_error: SampleError | None
    looks: Looks | None


def begin_worker(notes: Notes, first_row: int, own: Any, again: Any, collate_fn: Any, worker_id: int) -> None:
    """A ``worker_init_fn``: the worker notes in its row what it loads, then runs the caller's ``own``, and `load_again`
    as ``again``. Either may be None."""
    row, fetch = notes.table.row(first_row + worker_id), private.FETCHERS[0].fetch
    for fetcher in private.FETCHERS:
        fetcher.fetch = watched(fetcher.fetch, row, notes.sample_error)
    if notes.looks is not None:
        notes.looks.watch(first_row + worker_id, private.dataset_of_worker(), collate_fn)
    if own is not None:
        own(worker_id)
    if again is not None:
        again(row, fetch)
    row.ready_s = time.monotonic()


def load_again(index: Any, is_batch: bool, collate_fn: Any, times: int, row: Row, fetch: Any) -> None:
    """A worker loads a sample that was delivered: is it the same each time, and in each worker? Errors tell nothing."""
    states, info = read_states(), torch.utils.data.get_worker_info()
    with suppress(Exception):
        fetcher = private.FETCHERS[0](info.dataset, is_batch, collate_fn, False)  # type: ignore[union-attr]
        loaded = [fetch(fetcher, index[:1] if is_batch else index) for _ in range(times)]
        plain = tree_map_only(torch.Tensor, lambda each: each.detach().flatten().view(torch.uint8).numpy(), loaded)
        digests = [1.0 + zlib.crc32(pickle.dumps(each)) for each in plain]
        row.draws, row.digest = float(len({*digests}) > 1), digests[0]
    write_states(states)


def is_random(workers: Sequence[Row], *, by_worker: bool = True) -> bool | None:
    """Whether it matters when, and `by_worker` by which of them, a sample is loaded. None: they do not show it."""
    digests = {worker.digest for worker in workers}
    if (by_worker and len(digests - {0.0}) > 1) or any(worker.draws for worker in workers):
        return True
    return False if len(workers) > 1 and 0.0 not in digests else None


def watched(fetch: Any, row: Row, sample_error: SampleError | None) -> Any:
    """``fetch(self, index)`` with the times around it and each sample's index noted."""

    @functools.wraps(fetch)
    def fetch_and_note(self: Any, index: Any) -> Any:
        indices = index if self.auto_collation and isinstance(index, list | tuple) else (index,)
        is_first = not row.num_ended  # which opens files and is no measure of the others
        states = read_states() if row.num_ended < _WATCHED and not row.draws else None
        row.began_s = begun = time.monotonic()
        begin_batch(row, indices)
        try:
            asks_for_each = isinstance(self, private.FETCHERS[0]) and not getattr(self.dataset, "__getitems__", None)
            is_batch = self.auto_collation and isinstance(index, list)
            data = fetch(self, _noting(index, row) if asks_for_each and is_batch else index)
        except Exception as error:
            row.num_begun -= isinstance(error, StopIteration)  # a stream has no more of them
            if sample_error is not None and not math.isnan(row.index):
                sample_error(error, int(row.index))
            raise
        finally:
            row.batch_size = 0
        seconds = time.monotonic() - begun
        if states is not None and not same_states(states, read_states()):
            row.draws = 1.0
        row.num_ended += 1
        row.cpu_s = time.process_time()
        if is_first:
            row.first_s = seconds
        else:
            row.num_timed += 1
            row.made_s += seconds
            row.made_s2 += seconds**2
        return data

    return fetch_and_note


def _noting(indices: Iterable[Any], row: Row) -> Iterator[Any]:
    for index in indices:
        if isinstance(index, int):
            row.index = index
        yield index


def slow_worker(workers: Sequence[Row]) -> tuple[int, float] | None:
    """The worker that takes clearly longer for a batch than the others: (its number, how many times as long as the
    median worker). Batches are dealt in turn, so the others wait for it. None: there is none, or too little is known.
    """
    if len(workers) < _FEWEST_WORKERS or any(worker.num_timed < _FEWEST_BATCHES for worker in workers):
        return None
    means = [worker.made_s / worker.num_timed for worker in workers]
    number, usual_s = max(range(len(means)), key=means.__getitem__), statistics.median(means)
    slow = workers[number]
    error_s = math.sqrt(max(0.0, slow.made_s2 / slow.num_timed - means[number] ** 2) / slow.num_timed)
    times = means[number] / max(1e-9, usual_s)
    return (number, times) if times >= _SLOW and means[number] - usual_s > _ERRORS * error_s else None


def num_made(workers: Iterable[Row], now: float) -> float:
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


def read_states() -> Any:
    """Of the random numbers of a process: torch's on the CPU, Python's and numpy's. Some 20 µs."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def write_states(states: Any) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


def same_states(first: Any, second: Any) -> bool:
    """Whether nothing was drawn between two readings."""
    same = torch.equal(first[0], second[0]) and first[1] == second[1]
    return same and all(map(np.array_equal, first[2], second[2]))
