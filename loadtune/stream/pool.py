"""The two ways to load: worker processes (`Pool`) or the training process itself (`InProcess`).

Both are torch's own iterators, so that fetching, collating, pinning, timeouts, errors and the end of workers are
torch's. What differs: indices come from an `IndexStream`, the base seed is given, workers may start later, and a pool
on trial reports what goes wrong as `PoolFailedError` instead of raising it into the loop.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.util import get_temp_dir
from typing import Any, ClassVar

import torch
from torch.utils.data import DataLoader

from loadtune.stream import torch_private as private
from loadtune.stream.batches import IndexStream
from loadtune.stream.sample_table import SampleTable
from loadtune.stream.settings import Settings, Switch, start_method
from loadtune.stream.shm_cleanup import answer_for, remove_segments
from loadtune.stream.worker_rows import RowWriter, SampleError, watch_fetcher

_KILL_S = 1.0
"""Killed workers end at once; this is for a machine that is too busy to let them."""
_FORK_SLICE_S = 0.05
"""Seconds that one step of the loop may spend on forking workers, one worker at least."""


class PoolFailedError(Exception):
    """A pool on trial failed to start, died, hung or raised. Its message says which; `__cause__` is torch's error."""


class _Fed:
    """What both ways share: where indices and the base seed come from."""

    # torch's constructor assigns a seed that it draws; this one is always the seed that was given.
    _base_seed = property(lambda self: self._given_seed, lambda self, drawn: None)

    settings: Settings
    switch: Switch | None = None
    """That asked for it, until its first batch was delivered. None: it was there from the beginning."""
    issued: dict[int, int]
    """Torch's number of a batch → its position in the stream, of the batches that were not delivered."""


class Pool(_Fed, private.MultiProcessIterator):  # type: ignore[misc]
    """Worker processes. Gets indices while `is_fed`."""

    def __init__(
        self,
        loader: DataLoader[Any],
        settings: Settings,
        stream: IndexStream,
        base_seed: int,
        table: SampleTable,
        sample_error: SampleError | None,
        *,
        on_trial: bool,
        deferred: bool,
        hang_s: float,
    ) -> None:
        """``on_trial``: not the caller's own settings. ``deferred``: workers start in `poll`, else now, as torch's do.

        ``hang_s``: seconds without a batch after which a pool on trial counts as hung.
        """
        self._shutdown, self._pid = True, os.getpid()
        self.settings, self.stream, self.on_trial = settings, stream, on_trial
        self._given_seed, self._hang_s, self._table = base_seed, hang_s, table
        self._asked_s: float | None = None
        self._hang_watch: threading.Thread | None = None
        self._is_hung, self._ended = False, threading.Event()
        self._others_error: RuntimeError | None = None
        self._polled_s, self._polled_for_s = time.monotonic(), 0.0
        self._workers: list[Any] = []
        self.issued, self.is_fed, self._got = {}, not deferred, 0
        self.rows = table.reserve(settings.num_workers)
        self._starter: _Starter | None = None
        self._num_acknowledged, self.start_s, self.num_delivered = 0, None, 0
        begun = time.monotonic()
        get_temp_dir()  # for the sockets of workers too; in folders of their own those of killed ones would stay
        context = loader.multiprocessing_context
        later = _DeferredContext(context) if deferred else None
        view = private.view(
            loader,
            settings,
            worker_init_fn=RowWriter(table, self.rows.start, loader.worker_init_fn, sample_error),
            **({"multiprocessing_context": later} if later else {}),
        )
        try:
            super().__init__(view)
        except Exception:
            with contextlib.suppress(Exception):  # torch's own end asks for what its constructor did not come to make
                self.close()
            table.release(self.rows)
            raise
        if later is not None:
            self._workers = []
            self._starter = _Starter(later.processes, start_method(context), self._started)
        else:
            self.start_s = time.monotonic() - begun
        if on_trial or deferred:  # whose death must not raise in whatever the training process does just then
            private.remove_worker_pids(id(self))
            self._worker_pids_set = False

    def _started(self, process: Any) -> None:
        self._workers.append(process)
        # A worker answers this once its dataset is there and worker_init_fn has run.
        self._index_queues[len(self._workers) - 1].put(private.ResumeIteration(self._shared_seed))

    def is_ready(self, limit_s: float) -> bool:
        """Start what one step may; whether all workers wait for indices. Raises PoolFailedError.

        ``limit_s``: for workers on trial to be ready, counted from the start of the last.
        """
        if self._starter is None:
            return True
        starter = self._starter
        started = starter.poll()
        if starter.error is not None:
            raise PoolFailedError("its workers did not start") from starter.error
        while not self._data_queue.empty():
            self._data_queue.get()
            self._num_acknowledged += 1
        now = time.monotonic()
        if started and self._num_acknowledged == self._num_workers:
            self._starter, self.start_s = None, now - starter.begun_s
            return True
        for worker in list(self._workers):
            if not worker.is_alive():
                reason = RuntimeError(f"DataLoader worker (pid(s) {worker.pid}) exited unexpectedly")
                raise PoolFailedError("a worker ended while it started") from reason
        # A loop that does something else for minutes asks nobody; that is no time in which workers were slow.
        self._polled_for_s += min(1.0, now - self._polled_s) if started else 0.0
        self._polled_s = now
        if self.on_trial and self._polled_for_s > limit_s:
            raise PoolFailedError(f"its workers were not ready {limit_s:.0f} s after they were started")
        return False

    def feed(self) -> None:
        """From now on indices go to this pool."""
        self.is_fed = True
        if not self.on_trial and not self._worker_pids_set:  # as torch's constructor does
            private.set_worker_pids(id(self), tuple(worker.pid for worker in self._workers))
            self._worker_pids_set = True
        for _ in range(self.settings.num_ahead - self._tasks_outstanding):
            self._try_put_index()

    def begin_epoch(self, loader: DataLoader[Any]) -> None:
        """The same workers go on with the next epoch, as torch's persistent ones do."""
        self.issued.clear()
        self.is_fed = True
        with self._failing("they did not go on with the next epoch"):
            self._reset(private.view(loader, self.settings))

    # What torch calls

    def _next_index(self) -> Any:
        if not self.is_fed:
            raise StopIteration
        position, indices = self.stream.draw()
        self.issued[self._send_idx] = position
        return indices

    def _get_data(self) -> Any:
        self._asked_s = time.monotonic()
        try:
            with self._failing("its workers gave no batch"):
                if self.on_trial and self._hang_watch is None:
                    self._hang_watch = threading.Thread(target=self._watch_for_hang, name="loadtune-hang", daemon=True)
                    self._hang_watch.start()
                data = super()._get_data()
        finally:
            self._asked_s = None
        self._got = data[0]
        return data

    def _try_get_data(self, *timeout: float) -> Any:
        with self._watching_workers():
            return super()._try_get_data(*timeout)

    def _watch_for_hang(self) -> None:
        """In a thread: taking a batch asks its worker for the shared memory, and that wait has no time limit. It ends
        with the worker."""
        while not self._ended.wait(self._hang_s / 4):
            asked_s = self._asked_s
            if asked_s is not None and time.monotonic() - asked_s > self._hang_s:
                self._is_hung = True
                for worker in self._workers:
                    worker.kill()
                return

    def _process_data(self, data: Any, *worker: Any) -> Any:
        number = next(iter(self.issued)) if self._in_order else self._got
        if self.on_trial and isinstance(data, torch._utils.ExceptionWrapper):
            with self._failing(f"{data.exc_type.__name__} was raised in a worker"):
                data.reraise()  # type: ignore[no-untyped-call]
        self.stream.delivered(self.issued.pop(number))
        self.num_delivered += 1
        return super()._process_data(data, *worker)

    @contextlib.contextmanager
    def _failing(self, message: str) -> Iterator[None]:
        """Of a pool on trial: turn what is raised into PoolFailedError."""
        try:
            yield
        except Exception as error:
            known = isinstance(error, PoolFailedError) or error is self.stream.error or error is self._others_error
            if known or not self.on_trial:
                raise
            if self._is_hung:
                raise PoolFailedError(f"its workers gave no batch for {self._hang_s:.0f} s") from None
            raise PoolFailedError(message) from error

    @contextlib.contextmanager
    def _watching_workers(self) -> Iterator[None]:
        """While the loop waits here for workers on trial, the death of one ends the wait at once. torch raises the
        death of others wherever the loop is."""
        if not self.on_trial or threading.current_thread() is not threading.main_thread():
            yield
            return
        private.set_worker_pids(id(self), tuple(worker.pid for worker in self._workers))
        try:
            private.error_if_any_worker_fails()
            yield
        except RuntimeError as error:
            # torch looks at the workers of all loaders: those of another one may have died.
            if str(error).startswith("DataLoader worker") and all(worker.is_alive() for worker in self._workers):
                self._others_error = error
            raise
        finally:
            private.remove_worker_pids(id(self))

    # Its end

    def kill(self) -> None:
        """End workers that may hang, and the pool with them."""
        if self._worker_pids_set:  # torch would raise their death in the loop
            private.remove_worker_pids(id(self))
            self._worker_pids_set = False
        if self._starter is not None:
            self._starter.abandon()
        for worker in self._workers:
            worker.kill()
        self._workers_done_event = threading.Event()  # nobody reads the shared one, whose lock the killed may hold
        self.close()

    def close(self, patience_s: float | None = None) -> None:
        """End the workers as torch does, which waits up to 5 s for each to finish the batch it is making.

        ``patience_s``: how long to wait for all of them instead. Give it in the main thread only: it changes a time
        limit that all loaders of the process share.
        """
        if self._starter is not None:
            self._starter.abandon()
        each_s = None if patience_s is None else patience_s / max(1, len(self._workers))
        with contextlib.nullcontext() if each_s is None else private.waiting_for_workers(each_s):
            self._shutdown_workers()

    def _shutdown_workers(self) -> None:
        if self._shutdown or self._pid != os.getpid():  # a process that was forked from this one has no say
            return
        self._ended.set()
        pids = [worker.pid for worker in self._workers]
        answer_for(pids)
        super()._shutdown_workers()
        for worker in self._workers:
            worker.kill()  # one that torch's SIGTERM did not end, as where it is stopped; the interpreter waits for all
        deadline = time.monotonic() + _KILL_S
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        if self._shutdown:
            self._table.release(self.rows)
            self._task_info = {}
            remove_segments(pids)  # of the batch that a killed worker was in the middle of


class InProcess(_Fed, private.SingleProcessIterator):  # type: ignore[misc]
    """The training process loads each batch when the loop asks for it, where the caller has no workers."""

    start_s: ClassVar[float] = 0.0

    def __init__(
        self,
        loader: DataLoader[Any],
        settings: Settings,
        stream: IndexStream,
        base_seed: int,
        table: SampleTable,
        sample_error: SampleError | None,
    ) -> None:
        self.settings, self.stream, self._given_seed = settings, stream, base_seed
        self.issued, self.is_fed, self.num_delivered = {}, True, 0
        self.rows = range(0)
        super().__init__(private.view(loader, settings))
        self._dataset_fetcher: Any = watch_fetcher(self._dataset_fetcher, table, sample_error)

    def _next_index(self) -> Any:
        return self._drawn

    def _next_data(self) -> Any:
        position, self._drawn = self.stream.draw()
        self.issued[position] = position
        try:
            return super()._next_data()
        finally:  # after an error or Ctrl-C the batch is gone, as in torch
            self.stream.delivered(self.issued.popitem()[0])
            self.num_delivered += 1

    def begin_epoch(self, loader: DataLoader[Any]) -> None:
        """Nothing is kept from one epoch to the next."""
        self.issued.clear()

    def is_ready(self, limit_s: float) -> bool:
        return True

    def feed(self) -> None: ...

    def kill(self) -> None: ...

    def close(self, patience_s: float | None = None) -> None: ...


# Starting workers without blocking the loop: torch's iterator starts all of them in its constructor


class _DeferredContext:
    """A multiprocessing context whose processes are made and not started: torch's constructor returns at once."""

    def __init__(self, context: Any) -> None:
        """``context``: of the loader. None: torch's default."""
        self._context = context or torch.multiprocessing
        self.processes: list[Any] = []

    def Queue(self) -> Any:
        return self._context.Queue()

    def Event(self) -> Any:
        return self._context.Event()

    def Process(self, **arguments: Any) -> "_Unstarted":
        self.processes.append(self._context.Process(daemon=True, **arguments))
        return _Unstarted()


class _Unstarted:
    """What torch's constructor asks of a process that it has just started."""

    daemon = True
    pid = os.getpid()  # it is registered as a worker's for a moment, where None is refused

    def start(self) -> None:
        """Later, by `_Starter`."""


class _Starter:
    """Starts the processes of one pool: by fork a few in each step of the loop, else in a thread.

    Under forkserver and spawn a start pickles the dataset, which holds the interpreter lock, and waits for the new
    process to read it; the thread waits instead of the loop. A fork is fast, and a process must not be forked while
    another thread is in the middle of something, so the loop's own thread does it.
    """

    def __init__(self, processes: list[Any], method: str, started: Callable[[Any], None]) -> None:
        """``started``: called with each process when it runs, perhaps in the thread."""
        self._waiting, self._started = list(processes), started
        self._abandoned = False
        self.begun_s = time.monotonic()
        self.error: Exception | None = None
        self._thread: threading.Thread | None = None
        if method != "fork":
            self._thread = threading.Thread(target=self._start_all, name="loadtune-start-workers", daemon=True)
            self._thread.start()

    def poll(self) -> bool:
        """Start what a step may. Whether all run."""
        deadline = time.monotonic() + _FORK_SLICE_S
        while self._thread is None and self._waiting and self.error is None:
            self._start_one()
            if time.monotonic() > deadline:
                break
        return not self._waiting and (self._thread is None or not self._thread.is_alive())

    def abandon(self) -> None:
        """Start no more; waits for the one that is being started."""
        self._abandoned = True
        if self._thread is not None:
            self._thread.join()
        self._waiting.clear()

    def _start_all(self) -> None:
        while self._waiting and self.error is None and not self._abandoned:
            self._start_one()

    def _start_one(self) -> None:
        process = self._waiting[0]
        try:
            process.start()
            self._started(process)
        except Exception as error:
            self.error = error
        finally:
            del self._waiting[0]
