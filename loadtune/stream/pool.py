"""The two ways to load: worker processes (`Pool`) or the training process itself (`InProcess`).

Both are torch's own iterators, so that fetching, collating, pinning, timeouts, errors and the end of workers are
torch's. What differs: indices come from an `IndexStream`, the base seed is given, workers may start later, and a pool
on trial reports what goes wrong as `PoolFailedError` instead of raising it into the loop.
"""

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.util import get_temp_dir
from typing import Any, ClassVar

import torch
from torch.utils.data import DataLoader

from loadtune.stream import torch_private as private
from loadtune.stream.batches import IndexStream
from loadtune.stream.counters import Switch
from loadtune.stream.random_states import read_states, write_states
from loadtune.stream.sample_table import SampleTable
from loadtune.stream.settings import Settings, start_method
from loadtune.stream.shm_cleanup import answer_for, remove_segments
from loadtune.stream.start import DeferredContext, Starter
from loadtune.stream.worker_rows import RowWriter, SampleError, watch_fetcher

# Workers that were told to terminate do so at once; this is for a machine that is too busy to let them.
_TERMINATE_S = 1.0


class PoolFailedError(Exception):
    """A pool on trial failed to start, died, hung or raised. Its message says which; `__cause__` is torch's error."""


class _Indices:
    """Stands for the caller's sampler: iterating it draws nothing, so that only the stream does."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def _view(loader: DataLoader[Any], settings: Settings, **changes: Any) -> Any:
    """The loader as torch's iterators read it, with these settings. The caller's own object is left as it is."""
    view: dict[str, Any] = {
        "generator": torch.Generator(),  # torch draws a base seed from it, which `_Fed._base_seed` ignores
        "num_workers": settings.num_workers,
        "pin_memory": settings.pin_memory,
        "prefetch_factor": settings.prefetch_factor,
        "in_order": settings.in_order,
        "persistent_workers": loader.persistent_workers and settings.num_workers > 0,
    }
    if settings.num_workers == 0:
        view |= {"timeout": 0, "multiprocessing_context": None}
    return private.LoaderView(loader, _Indices(), **view | changes)


def plain_iterator(loader: DataLoader[Any], own: Settings, *, before: Any = None) -> Any:
    """Torch's own iterator over the loader. ``before``: the last epoch's, whose persistent workers go on."""
    view = _view(loader, own, _index_sampler=loader._index_sampler, generator=loader.generator)
    if before is not None and own.num_workers:
        before._reset(view)
        return before
    made = (private.MultiProcessIterator if own.num_workers else private.SingleProcessIterator)(view)
    made.settings = own
    return made


def single_batch(loader: DataLoader[Any], own: Settings, indices: Any) -> Iterator[Any]:
    """Torch's own iterator over one batch, in the training process."""
    return private.SingleProcessIterator(_view(loader, replace(own, num_workers=0), _index_sampler=[indices]))  # type: ignore[no-any-return]


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
        *,
        on_trial: bool,
        deferred: bool,
        hang_s: float,
        sample_error: SampleError | None = None,
    ) -> None:
        """``on_trial``: not the caller's own settings. ``deferred``: workers start in `poll`, else now, as torch's do.

        ``hang_s``: seconds without a batch after which a pool on trial counts as hung.
        """
        self._shutdown, self._pid = True, os.getpid()
        self.settings, self.stream, self.on_trial = settings, stream, on_trial
        self._given_seed, self._hang_s, self._table = base_seed, hang_s, table
        self._trial_pids: tuple[int, ...] | None = None
        self._asked_s: float | None = None
        self._hang_watch: threading.Thread | None = None
        self._is_hung, self._ended = False, threading.Event()
        self._others_error: RuntimeError | None = None
        self._polled_s, self._polled_for_s = time.monotonic(), 0.0
        self._workers: list[Any] = []
        self.issued, self.is_fed, self._got = {}, not deferred, 0
        self.rows = table.reserve(settings.num_workers)
        self._starter: Starter | None = None
        self._num_acknowledged, self.start_s, self.num_delivered = 0, None, 0
        begun = time.monotonic()
        get_temp_dir()  # for the sockets of workers too; in folders of their own those of killed ones would stay
        context = loader.multiprocessing_context
        later = DeferredContext(context) if deferred else None
        view = _view(
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
        self._profile_name = f"enumerate(DataLoader)#{private.MultiProcessIterator.__name__}.__next__"
        if later is not None:
            self._workers = []
            self._starter = Starter(later.processes, start_method(context), self._started)
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
            self._reset(_view(loader, self.settings))

    # What torch calls

    def _next_index(self) -> Any:
        if not self.is_fed:
            raise StopIteration
        position, indices = self.stream.draw()
        self.issued[self._send_idx] = position
        return indices

    def _get_data(self) -> Any:
        if not self.on_trial:
            data = super()._get_data()
        else:
            self._asked_s = time.monotonic()
            try:
                with self._failing("its workers gave no batch"):
                    if self._hang_watch is None:
                        watch = self._watch_for_hang
                        self._hang_watch = threading.Thread(target=watch, name="loadtune-hang", daemon=True)
                        self._hang_watch.start()
                    data = super()._get_data()
            finally:
                self._asked_s = None
        self._got = data[0]
        return data

    def _try_get_data(self, *timeout: float) -> Any:
        if not self.on_trial:
            return super()._try_get_data(*timeout)
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
        except PoolFailedError:
            raise
        except Exception as error:
            if not self.on_trial or error is self.stream.error or error is self._others_error:
                raise
            if self._is_hung:
                raise PoolFailedError(f"its workers gave no batch for {self._hang_s:.0f} s") from None
            raise PoolFailedError(message) from error

    @contextlib.contextmanager
    def _watching_workers(self) -> Iterator[None]:
        """While the loop waits here, a worker's death ends the wait at once. torch does so wherever the loop is."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if self._trial_pids is None:
            self._trial_pids = tuple(worker.pid for worker in self._workers)
        private.set_worker_pids(id(self), self._trial_pids)
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
        pids = [worker.pid for worker in self._workers]
        answer_for(pids)
        if patience_s is None:
            self._shutdown_workers()
        else:
            with private.waiting_for_workers(patience_s / max(1, len(self._workers))):
                self._shutdown_workers()
            deadline = time.monotonic() + _TERMINATE_S
            for worker in self._workers:  # told to terminate one right after the other, waited for together
                worker.join(max(0.0, deadline - time.monotonic()))
            remove_segments(pids)

    def _shutdown_workers(self) -> None:
        if self._shutdown or self._pid != os.getpid():  # a process that was forked from this one has no say
            return
        self._ended.set()
        pids = [worker.pid for worker in self._workers]
        super()._shutdown_workers()
        for worker in self._workers:
            worker.kill()  # one that torch's SIGTERM did not end, as where it is stopped; the interpreter waits for all
        if self._shutdown:
            self._table.release(self.rows)
            self._task_info = {}
            remove_segments(pids)  # of the batch that a killed worker was in the middle of


class InProcess(_Fed, private.SingleProcessIterator):  # type: ignore[misc]
    """The training process loads each batch when the loop asks for it."""

    start_s: ClassVar[float] = 0.0

    def __init__(
        self,
        loader: DataLoader[Any],
        settings: Settings,
        stream: IndexStream,
        base_seed: int,
        table: SampleTable,
        *,
        on_trial: bool,
        private_random: bool,
        sample_error: SampleError | None = None,
    ) -> None:
        """``private_random``: the caller loads in workers, so loading here must not draw from the random numbers of the
        training process."""
        self.settings, self.stream, self.on_trial = settings, stream, on_trial
        self._given_seed = base_seed
        self.issued, self.is_fed, self.num_delivered = {}, True, 0
        self.rows = range(0)
        super().__init__(_view(loader, settings))
        self._profile_name = f"enumerate(DataLoader)#{private.SingleProcessIterator.__name__}.__next__"
        self._dataset_fetcher: Any = watch_fetcher(self._dataset_fetcher, table, sample_error)
        self._random = _PrivateRandom(base_seed) if private_random else contextlib.nullcontext()

    def _next_index(self) -> Any:
        return self._drawn

    def _next_data(self) -> Any:
        # Before the random numbers change: samplers draw from those of the training process.
        position, self._drawn = self.stream.draw()
        self.issued[position] = position
        try:
            with self._random:
                data = super()._next_data()
        except Exception as error:
            if self.on_trial:
                raise PoolFailedError(f"{type(error).__name__} was raised in the training process") from error
            self._done()
            raise
        except BaseException:  # Ctrl-C: the batch is gone, as in torch
            self._done()
            raise
        self._done()
        return data

    def _done(self) -> None:
        self.stream.delivered(self.issued.popitem()[0])
        self.num_delivered += 1

    def begin_epoch(self, loader: DataLoader[Any]) -> None:
        """Nothing is kept from one epoch to the next."""
        self.issued.clear()

    def kill(self) -> None: ...

    def close(self, patience_s: float | None = None) -> None: ...


class _PrivateRandom:
    """Random numbers of torch, numpy and Python apart from the training process's own, seeded as a worker's are."""

    def __init__(self, seed: int) -> None:
        self._seed, self._inside = seed, None

    def __enter__(self) -> None:
        self._outside = read_states()
        if self._inside is None:
            random.seed(self._seed)
            torch.default_generator.manual_seed(self._seed)  # and no GPU's
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(self._seed % (1 << 32))
        else:
            write_states(self._inside)

    def __exit__(self, *raised: object) -> None:
        self._inside = read_states()
        write_states(self._outside)
