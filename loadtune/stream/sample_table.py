"""Which samples each process is loading right now, in memory that outlives the process. Needs no torch.

The controller makes the table and hands it to the training process, whose workers share it. So whoever has to say why
a process hung or died can still read which samples it was loading, also after SIGKILL. A process pays one memory write
a sample for it and looks at no clock: how long a sample has been loading is seen by whoever watches (`Stillness`).
"""

import contextlib
import math
import mmap
import os
import threading
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import reduction
from typing import Any, TypeAlias

from loadtune.units import counted

NUM_BEGUN, NUM_ENDED, BEGAN_S, FIRST_S, NUM_TIMED, MADE_S, MAX_MADE_S, CPU_S, READY_S, DRAWS = range(10)
"""Fields of a row that `worker_rows` keeps, as its `WorkerTimes` names them."""
_PID, _BATCH_SIZE, INDEX, _FIRST = range(10, 14)
_ROW = 20
_MAX_KEPT = _ROW - _FIRST
_NUM_BYTES = 1 << 20  # 6,551 workers; what is not written takes no memory
_NAMED = 3
_HEADER, _TRAINING_PROCESS, _FIRST_WORKER = range(3)

Row: TypeAlias = "memoryview[float]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """What one process is loading."""

    worker: int | None
    """The number of its row: of one pool's workers, their number in the loader. None: the training process itself."""
    pid: int
    index: int | None
    """Of the sample. None: the dataset reads whole batches by itself (`__getitems__`), so it may be any of them."""
    batch: tuple[int, ...]
    """The batch's first indices, 7 at the most."""
    batch_size: int
    num_begun: int
    """Batches that this process began, this one included."""


class SampleTable:
    """A row of numbers for the training process and one for each worker of its loader. Each writes its own row alone.

    Goes to workers by fork as well as by pickle, where they are spawned.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """``descriptor``: of a table that another process made; it is kept. None: a new one."""
        self._descriptor = _new_memory() if descriptor is None else descriptor
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._memory = mmap.mmap(self._descriptor, _NUM_BYTES)
        numbers = memoryview(self._memory).cast("d")
        self._numbers = numbers[: len(numbers) // _ROW * _ROW]
        self._reserved: list[range] = []
        self._lock = threading.Lock()  # pools end in threads of their own

    def __reduce__(self) -> Any:
        return _reopened, (reduction.DupFd(self._descriptor),)

    def fileno(self) -> int:
        return self._descriptor

    def close_descriptor(self) -> None:
        """The table stays readable, and can be handed to no further process."""
        self._close()

    def reserve(self, num_workers: int) -> range:
        """Rows for the workers of a pool, cleared; several pools may be there at a time."""
        with self._lock:
            first = 0
            for rows in self._reserved:
                if rows.start - first >= num_workers:
                    break
                first = rows.stop
            reserved = range(first, first + num_workers)
            if self._end(reserved.stop) > len(self._numbers):
                raise ValueError(f"{reserved.stop} workers are more than this table has rows for.")
            self._clear(reserved if self._reserved else range(int(self._numbers[_HEADER * _ROW])))
            self._reserved = sorted([*self._reserved, reserved], key=lambda rows: rows.start)
            self._count_rows()
            return reserved

    def release(self, rows: range) -> None:
        """These workers are gone. The last ones' rows stay readable until others are reserved."""
        with self._lock:
            self._reserved = [kept for kept in self._reserved if kept != rows]
            if self._reserved:
                self._clear(rows)
                self._count_rows()

    def _count_rows(self) -> None:
        self._numbers[_HEADER * _ROW] = max((rows.stop for rows in self._reserved), default=0)

    def _clear(self, rows: range) -> None:
        begin = (_FIRST_WORKER + rows.start) * _ROW
        self._numbers[begin : self._end(rows.stop)] = array("d", bytes(8 * len(rows) * _ROW))

    @staticmethod
    def _end(stop: int) -> int:
        return (_FIRST_WORKER + stop) * _ROW

    def row(self, worker: int | None) -> Row:
        """Of this worker. None: of the training process."""
        number = _TRAINING_PROCESS if worker is None else _FIRST_WORKER + worker
        return self._numbers[number * _ROW : (number + 1) * _ROW]

    @contextlib.contextmanager
    def reading(self) -> Iterator[Callable[[Sequence[Any]], None]]:
        """The training process reads samples: what this gives is called with their indices before."""
        row = self.row(None)

        def note(indices: Sequence[Any]) -> None:
            if len(indices) == 1 and isinstance(indices[0], int) and row[_BATCH_SIZE] == 1:
                row[INDEX] = indices[0]  # quick, because it is timed with the sample
            else:
                begin_batch(row, indices)

        begin_batch(row, ())
        try:
            yield note
        finally:
            end_batch(row)

    def read(self) -> tuple[Loading, ...]:
        """What is being loaded now, or was when its process ended."""
        workers = [None, *range(int(self._numbers[_HEADER * _ROW]))]
        read = ((worker, self.row(worker).tolist()) for worker in workers)
        return tuple(_loading(worker, row) for worker, row in read if row[_BATCH_SIZE])


def begin_batch(row: Row, indices: Sequence[Any]) -> None:
    """This process begins to load these samples; it then writes the index of each to ``row[INDEX]``, if it can tell.

    Indices that are no numbers are not kept.
    """
    kept = array("d", [index if isinstance(index, int) else math.nan for index in indices[:_MAX_KEPT]])
    row[INDEX] = kept[0] if len(indices) == 1 else math.nan
    row[_FIRST : _FIRST + len(kept)] = kept
    row[_PID] = os.getpid()
    row[NUM_BEGUN] += 1
    row[_BATCH_SIZE] = len(indices)


def end_batch(row: Row) -> None:
    """It is loading nothing any more."""
    row[_BATCH_SIZE] = 0


def _loading(worker: int | None, row: Sequence[float]) -> Loading:
    size = int(row[_BATCH_SIZE])
    return Loading(
        worker=worker,
        pid=int(row[_PID]),
        index=None if math.isnan(row[INDEX]) else int(row[INDEX]),
        batch=tuple(int(index) for index in row[_FIRST : _FIRST + min(size, _MAX_KEPT)] if not math.isnan(index)),
        batch_size=size,
        num_begun=int(row[NUM_BEGUN]),
    )


def _new_memory() -> int:
    descriptor = os.memfd_create("loadtune-samples")
    os.ftruncate(descriptor, _NUM_BYTES)
    return descriptor


def _reopened(duplicate: Any) -> SampleTable:
    return SampleTable(duplicate.detach())


@dataclass(slots=True)
class Stillness:
    """Since when each process has been loading the same sample, seen from outside by looking now and then."""

    _since: dict[Loading, float] = field(default_factory=dict)

    def look(self, loading: Iterable[Loading], now: float) -> None:
        self._since = {each: self._since.get(each, now) for each in loading}

    def longest(self, now: float, least_s: float) -> tuple[tuple[Loading, ...], float]:
        """(Who has been at one sample for at least so many seconds, the longest first, seconds of that one)."""
        still = sorted(
            (each for each in self._since if now - self._since[each] >= least_s), key=self._since.__getitem__
        )
        return tuple(still), now - self._since[still[0]] if still else 0.0


def samples_text(loading: Loading) -> str:
    """``dataset[41] (in a batch of 8: 7, 300, 41, …)``, or ``one of dataset[7], dataset[300], … (a batch of 8)``."""
    if loading.index is None and not loading.batch:  # keys that are no numbers
        return "a sample" if loading.batch_size == 1 else f"a batch of {loading.batch_size}"
    if loading.index is None:
        named = ", ".join(f"dataset[{index}]" for index in loading.batch[:_NAMED])
        return f"one of {named}{', …' if loading.batch_size > _NAMED else ''} (a batch of {loading.batch_size})"
    if loading.batch_size == 1:
        return f"dataset[{loading.index}]"
    listed = ", ".join(map(str, loading.batch)) + (", …" if loading.batch_size > len(loading.batch) else "")
    return f"dataset[{loading.index}] (in a batch of {loading.batch_size}: {listed})"


def did_not_return_text(still: Sequence[Loading], seconds: float) -> str:
    """``dataset[41] did not return for 28 s, in a worker``: without a full stop. `still` is not empty."""
    named = "; ".join(samples_text(each) for each in still[:2]) + ("; …" if len(still) > 2 else "")
    workers = sum(each.worker is not None for each in still)
    in_workers = "in a worker" if workers == 1 else f"in {counted(workers, 'worker')}"
    where = in_workers if workers else "in the training process"
    return f"{named} did not return for {seconds:.0f} s, {where}"
