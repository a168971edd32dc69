"""Which samples each process is loading right now, in memory that outlives the process. Needs no torch. How long a
sample has been loading is seen by whoever watches (`Stillness`).
"""

import contextlib
import ctypes
import math
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import reduction
from typing import Any, ClassVar

from loadtune.units import counted

_MAX_KEPT = 7
NUM_ROWS = 6_500
_NAMED = 3
_HEADER, _TRAINING_PROCESS, _FIRST_WORKER = range(3)


class Row(ctypes.Structure):
    """What one process loads and has loaded since it started, by its own clocks. It alone writes it."""

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
    made_s2: float
    """The sum of the squares of those."""
    cpu_s: float
    """CPU seconds of the process at the end of its newest batch, start-up included: compare two readings."""
    ready_s: float
    """When it was ready for its first batch, on the clock that all processes share. 0: not yet, or no worker."""
    draws: float
    """1 where its first 8 batches drew random numbers of torch, Python or numpy, or `load_again` any at all, else 0."""
    digest: float
    """Of what `load_again` loaded. 0: nothing."""
    pid: float
    batch_size: float
    """Of the batch that it loads now. 0: none."""
    index: float
    """Of the sample that it loads now; NaN where it cannot tell."""
    batch: Any
    """That batch's first indices."""


_DOUBLES = ctypes.c_double * _MAX_KEPT
Row._fields_ = [(name, _DOUBLES if name == "batch" else ctypes.c_double) for name in Row.__annotations__]


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


class SharedMemory:
    """Goes to workers by fork and by pickle. What is not written takes no memory."""

    _NUM_BYTES: ClassVar[int]

    def __init__(self, descriptor: int | None = None) -> None:
        """``descriptor``: of memory that another process made; it is kept. None: new memory."""
        if descriptor is None:
            descriptor = os.memfd_create("loadtune-samples")
            os.ftruncate(descriptor, self._NUM_BYTES)
        self._descriptor = descriptor
        self.close_descriptor = weakref.finalize(self, os.close, descriptor)
        """The memory stays readable, and can be handed to no further process."""
        self._memory = mmap.mmap(descriptor, self._NUM_BYTES)

    def __reduce__(self) -> Any:
        return _reopened, (type(self), reduction.DupFd(self._descriptor))

    def fileno(self) -> int:
        return self._descriptor


def _reopened(kind: type[SharedMemory], duplicate: Any) -> SharedMemory:
    return kind(duplicate.detach())


class SampleTable(SharedMemory):
    """A row for the training process and one for each worker of its loader."""

    _NUM_BYTES = ctypes.sizeof(Row) * NUM_ROWS

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(descriptor)
        self._rows = (Row * NUM_ROWS).from_buffer(self._memory)
        self._reserved: list[range] = []
        self._lock = threading.Lock()  # pools end in threads of their own

    def reserve(self, num_workers: int) -> range:
        """Rows for the workers of a pool, cleared, after those of the pools that are there."""
        with self._lock:
            first = self._reserved[-1].stop if self._reserved else 0
            rows = range(first, first + num_workers)
            if rows.stop > NUM_ROWS - _FIRST_WORKER:
                raise ValueError(f"{rows.stop} workers are more than this table has rows for.")
            self._clear(rows if self._reserved else range(int(self._rows[_HEADER].num_begun)))
            self._reserved.append(rows)
            self._rows[_HEADER].num_begun = rows.stop
            return rows

    def release(self, rows: range) -> None:
        """These workers are gone. The last ones' rows stay readable until others are reserved."""
        with self._lock:
            self._reserved = [each for each in self._reserved if each != rows]
            if self._reserved:
                self._clear(rows)
                self._rows[_HEADER].num_begun = self._reserved[-1].stop

    def _clear(self, rows: range) -> None:
        for worker in rows:
            ctypes.memset(ctypes.byref(self.row(worker)), 0, ctypes.sizeof(Row))

    def row(self, worker: int | None) -> Row:
        """Of this worker, as it is from now on. None: of the training process."""
        return self._rows[_TRAINING_PROCESS if worker is None else _FIRST_WORKER + worker]

    def rows(self, workers: range) -> list[Row]:
        """As they are now. Whoever reads while one writes may be a batch off."""
        return [Row.from_buffer_copy(self.row(worker)) for worker in workers]

    @contextlib.contextmanager
    def reading(self) -> Iterator[Callable[[Sequence[Any]], None]]:
        """The training process reads samples: what this gives is called with their indices before."""
        row = self.row(None)

        def note(indices: Sequence[Any]) -> None:
            if len(indices) == 1 and isinstance(indices[0], int) and row.batch_size == 1:
                row.index = indices[0]  # quick, because it is timed with the sample
            else:
                begin_batch(row, indices)

        begin_batch(row, ())
        try:
            yield note
        finally:
            row.batch_size = 0

    def read(self) -> tuple[Loading, ...]:
        """What is being loaded now, or was when its process ended."""
        workers = [None, *range(int(self._rows[_HEADER].num_begun))]
        rows = ((worker, Row.from_buffer_copy(self.row(worker))) for worker in workers)
        return tuple(
            Loading(
                worker=worker,
                pid=int(row.pid),
                index=None if math.isnan(row.index) else int(row.index),
                batch=tuple(int(each) for each in row.batch[: int(row.batch_size)] if not math.isnan(each)),
                batch_size=int(row.batch_size),
            )
            for worker, row in rows
            if row.batch_size
        )


def begin_batch(row: Row, indices: Sequence[Any]) -> None:
    """This process begins to load these samples. Indices that are no numbers are not kept."""
    kept = [index if isinstance(index, int) else math.nan for index in indices[:_MAX_KEPT]]
    row.index = kept[0] if len(indices) == 1 else math.nan
    row.batch[: len(kept)] = kept
    row.pid = os.getpid()
    row.num_begun += 1
    row.batch_size = len(indices)


@dataclass(slots=True)
class Stillness:
    """Since when each process has been loading the same sample, seen from outside by looking now and then."""

    _since: dict[Loading, float] = field(default_factory=dict)

    def look(self, loading: Iterable[Loading], now: float) -> None:
        self._since = {each: self._since.get(each, now) for each in loading}

    def longest(self, now: float, least_s: float) -> tuple[tuple[Loading, ...], float]:
        """(Who has been at one sample for at least so many seconds, the longest first, seconds of that one)."""
        by_age = sorted(self._since, key=self._since.__getitem__)
        still = tuple(each for each in by_age if now - self._since[each] >= least_s)
        return still, now - self._since[still[0]] if still else 0.0


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
