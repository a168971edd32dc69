"""The two ways to load: worker processes (`Pool`) or the training process itself (`InProcess`).

Both are torch's own iterators, so fetching, collating, pinning, timeouts, errors and the end of workers are torch's.
Indices come from an `IndexStream`, the base seed is given, and workers may start later. What goes wrong in a pool on
trial is reported as `PoolFailedError`, and not raised into the loop.
"""

import contextlib
import heapq
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.util import get_temp_dir
from types import SimpleNamespace
from typing import Any

import torch

from loadtune.errors import harmless, raised_by_handler
from loadtune.stream import torch_private as private
from loadtune.stream.shm_cleanup import answer_for, remove_segments
from loadtune.stream.trust import gets_number
from loadtune.stream.worker_rows import Notes, begin_worker, load_again, watched

READY_LIMIT_S, HANG_S = 120.0, 60.0
"""A pool on trial is withdrawn whose workers take longer to start, or that gives no batch for so long."""
_KILL_S = 1.0  # killed workers end at once; this is for a machine that is too busy to let them
_FORK_SLICE_S = 0.05  # that one step of the loop may spend on forking workers, one worker at least


class IndexStream:
    """Draws numbered index batches in the sampler's order, for all pools of an epoch; those taken back come first.

    Whoever iterates it skips batches, as toolkits do that go on in the middle of an epoch.
    """

    def __init__(self, sampler: Any, own_ahead: int, may_ask_ahead: Callable[[], bool]) -> None:
        """``sampler``: of index batches, or of indices where there are no batches.

        ``own_ahead``: batches that the caller's settings draw before they are delivered. ``may_ask_ahead``: whether the
        sampler gives the same where more are drawn. Its end is always drawn when the caller's settings draw it: many
        samplers count epochs there.
        """
        self._sampler, self._own_ahead, self._may_ask_ahead = sampler, own_ahead, may_ask_ahead
        self._again: list[tuple[int, Any]] = []
        self.num_delivered = self.num_samples = 0
        """Batches and samples in all epochs. A batch that was asked for by a single index counts as one sample."""
        self.last: Any = None
        """The index batch that was delivered last."""
        self.told_workers: int | None = None
        self.known: list[Any] | None = None
        self.times = 2
        """The index batch that was delivered first, and how often workers on trial load from it. None: they do not."""
        self.error: Exception | None = None
        """What the caller's sampler raised. None: nothing. No pool is to blame for it."""
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Forget what was drawn and draw from the beginning of the next epoch."""
        self._again.clear()
        self._num_drawn = self._num_gone = 0
        self.has_more, self.is_short = True, False
        """Whether the sampler has not ended; and whether a batch was refused that may be drawn after others."""
        self._iterator = iter(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> "IndexStream":
        return self

    def __next__(self) -> Any:
        indices = self.draw(as_asked=True)[1]
        self._num_gone += 1
        return indices

    def draw(self, *, as_asked: bool = False) -> tuple[int, Any]:
        """The next position in the epoch and its index batch. Raises StopIteration at the epoch's end and
        where a sampler must not be asked further ahead. ``as_asked``: the loop waits for this one."""
        if self._again:
            return heapq.heappop(self._again)
        is_due = as_asked or self._num_drawn - self._num_gone < self._own_ahead
        if not is_due and (not self._may_ask_ahead() or self._is_next_the_end()):
            self.is_short = True
            raise StopIteration
        return self._draw_next()

    def _draw_next(self) -> tuple[int, Any]:
        try:
            indices = next(self._iterator)
        except StopIteration:
            self.has_more = False
            raise
        except Exception as error:
            self.error = error
            raise
        self._num_drawn += 1
        return self._num_drawn - 1, indices

    def _is_next_the_end(self) -> bool:
        with contextlib.suppress(Exception):  # of a sampler that has no length, or needs its loader for it
            return self._num_drawn >= len(self._sampler)
        return False

    def keep_up(self) -> None:
        """Draw what the caller's settings would have drawn by now, whoever loads it."""
        with contextlib.suppress(StopIteration):
            while self.has_more and self._num_drawn - self._num_gone < self._own_ahead:
                self.take_back([self._draw_next()])

    def is_at_end(self) -> bool:
        """Whether the loop, which asks for one batch more, has come to the end. A sampler may act there."""
        if self.has_more:
            with contextlib.suppress(StopIteration):
                self.take_back([self.draw(as_asked=True)])
        return not self._again

    def delivered(self, drawn: tuple[int, Any]) -> None:
        """This batch reached the loop, or its exception did."""
        self.last = drawn[1]
        self._num_gone += 1
        if self.known == []:
            self.known.append(drawn[1])
        self.num_delivered += 1
        self.num_samples += len(self.last) if isinstance(self.last, list | tuple) else 1
        self.keep_up()

    def take_back(self, drawn: Iterable[tuple[int, Any]]) -> None:
        """Nobody loads these any more; they are drawn again."""
        for each in drawn:
            heapq.heappush(self._again, each)


class PoolFailedError(Exception):
    """A pool on trial failed to start, died, hung or raised. Its message says which; `__cause__` is torch's error."""

    num_workers = 0
    """Of the pool."""


class RandomSamplesError(PoolFailedError):
    """Nothing failed, but what its workers load may depend on their number."""


class _Fed:
    """What both ways share: where indices and the base seed come from."""

    # torch's constructor assigns a seed that it draws; this one is always the seed that was given.
    _base_seed = property(lambda self: self._given_seed, lambda self, drawn: None)

    def __init__(self, view: Any, stream: IndexStream, base_seed: int) -> None:
        self.stream, self._given_seed = stream, base_seed
        self.issued: dict[int, tuple[int, Any]] = {}
        """Torch's number of a batch → what was drawn for it, of the batches that were not delivered."""
        self.num_delivered, self.cpu_s = 0, 0.0
        """And CPU seconds of the training process in loading them; workers note their own."""
        view.generator.manual_seed(base_seed & (1 << 63) - 1)  # DataPipes shuffle by what torch draws from it
        super().__init__(view)  # type: ignore[call-arg]


class Pool(_Fed, private.MultiProcessIterator):  # type: ignore[misc]
    """Worker processes. Gets indices while `is_fed`."""

    _task_info: dict[int, Any]

    def __init__(
        self, loader: Any, num_workers: int, stream: IndexStream, base_seed: int, notes: Notes, *, deferred: bool
    ) -> None:
        """``deferred``: workers start in `is_ready`, else now, as torch's do."""
        self._shutdown, self._pid = True, os.getpid()
        self._on_trial = num_workers != loader.num_workers
        self._table = notes.table
        self._polled_s, self._polled_for_s = time.monotonic(), 0.0
        self._workers: list[Any] = []
        self.is_fed, self._got, self._num_acknowledged = not deferred, 0, 0
        self.rows = self._table.reserve(num_workers)
        get_temp_dir()  # for the sockets of workers too; in folders of their own those of killed ones would stay
        self._starter = _Starter(loader.multiprocessing_context) if deferred else None
        init, again = loader.worker_init_fn, None
        if self._on_trial and gets_number(init, loader.num_workers):
            init = partial(init, num_workers=stream.told_workers or num_workers)  # as if it had been typed
        if self._on_trial and stream.known:
            again = partial(load_again, stream.known[0], loader._auto_collation, loader.collate_fn, stream.times)
        view = private.view(
            loader,
            num_workers,
            stream,
            multiprocessing_context=self._starter or loader.multiprocessing_context,
            worker_init_fn=partial(begin_worker, notes, self.rows.start, init, again, loader.collate_fn),
        )
        try:
            super().__init__(view, stream, base_seed)
        except Exception:
            with contextlib.suppress(Exception):  # torch's own end asks for what its constructor did not come to make
                self.close()
            self._table.release(self.rows)
            raise
        if self._on_trial or deferred:  # whose death must not raise in whatever the training process does just then
            private.remove_worker_pids(id(self))
            self._worker_pids_set = False
        if self._starter is not None:
            self._workers = []
            self._starter.begin(self._started)

    def _started(self, process: Any) -> None:
        self._workers.append(process)
        # A worker answers this once its dataset is there and worker_init_fn has run.
        self._index_queues[len(self._workers) - 1].put(private.ResumeIteration(self._shared_seed))

    def is_ready(self) -> bool:
        """Start what one step may; whether all workers wait for indices. Raises PoolFailedError."""
        if self._starter is None:
            return True
        started = self._starter.poll()
        if self._starter.error is not None:
            raise PoolFailedError("its workers did not start") from self._starter.error
        while not self._data_queue.empty():
            self._data_queue.get()
            self._num_acknowledged += 1
        now = time.monotonic()
        if started and self._num_acknowledged == self._num_workers:
            self._starter = None
            return True
        for worker in list(self._workers):
            if not worker.is_alive():
                reason = RuntimeError(f"DataLoader worker (pid(s) {worker.pid}) exited unexpectedly")
                raise PoolFailedError("a worker ended while it started") from reason
        # A loop that does something else for minutes asks nobody; that is no time in which workers were slow.
        self._polled_for_s += min(1.0, now - self._polled_s) if started else 0.0
        self._polled_s = now
        if self._on_trial and self._polled_for_s > READY_LIMIT_S:
            raise PoolFailedError(f"its workers were not ready {READY_LIMIT_S:.0f} s after they were started")
        return False

    def feed(self) -> None:
        """From now on indices go to this pool."""
        self.is_fed = True
        if not self._on_trial and not self._worker_pids_set:  # as torch's constructor does
            private.set_worker_pids(id(self), tuple(worker.pid for worker in self._workers))
            self._worker_pids_set = True
        self.stream.is_short = False
        for _ in range(self._prefetch_factor * self._num_workers - len(self._task_info)):  # those set aside included
            self._try_put_index()
            if self.stream.is_short:
                return

    def begin_epoch(self, loader: Any) -> None:
        """The same workers go on with the next epoch, as torch's persistent ones do."""
        self.issued.clear()
        self.is_fed = True
        with self._failing("they did not go on with the next epoch"):
            self._reset(private.view(loader, self._num_workers, self.stream, generator=loader.generator))

    # What torch calls

    def _next_index(self) -> Any:
        if not self.is_fed:
            raise StopIteration
        drawn = self.stream.draw()
        self.issued[self._send_idx] = drawn
        return drawn[1]

    def _get_data(self) -> Any:
        self._waited_s = 0.0
        with self._failing("its workers gave no batch"):
            data = super()._get_data()
        self._got = data[0]
        return data

    def _try_get_data(self, timeout: float = private.CHECK_S) -> Any:
        """Once for so many seconds, again and again while the loop waits. Only these count against workers on trial."""
        if not self._on_trial:
            return super()._try_get_data(timeout)
        slice_s, in_main = min(timeout, HANG_S), threading.current_thread() is threading.main_thread()
        try:
            if in_main:  # a death ends the wait at once; torch raises that of the caller's workers wherever the loop is
                private.set_worker_pids(id(self), tuple(worker.pid for worker in self._workers))
                private.error_if_any_worker_fails()
            with private.answering_within(HANG_S):
                found = super()._try_get_data(slice_s)
        except BlockingIOError:
            found, slice_s = (False, None), HANG_S
        finally:
            if in_main:
                private.remove_worker_pids(id(self))
        self._waited_s += 0.0 if found[0] else slice_s
        if self._waited_s >= HANG_S:
            raise PoolFailedError(f"its workers gave no batch for {HANG_S:.0f} s")
        return found

    def _mark_worker_as_unavailable(self, worker_id: int, shutdown: bool = False) -> None:
        if not shutdown and not self._workers[worker_id].is_alive():  # see `_kill_workers`
            self._workers_done_event = threading.Event()
        super()._mark_worker_as_unavailable(worker_id, shutdown)

    def _process_data(self, data: Any, *worker: Any) -> Any:
        number = self._rcvd_idx - 1 if self._in_order else self._got
        if self._on_trial and isinstance(data, torch._utils.ExceptionWrapper):
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
            is_known = isinstance(error, PoolFailedError) or error is self.stream.error
            if is_known or not self._on_trial or self._is_others(error):
                raise
            raise PoolFailedError(message) from error

    def _is_others(self, error: Exception) -> bool:
        """Of the user's handler of a signal, or of the workers of another loader: torch looks at those of all."""
        first = error.__cause__ or error  # torch raises the end of a worker in place of whatever it met then
        if str(first).startswith("DataLoader worker"):
            return all(worker.is_alive() for worker in self._workers)
        return raised_by_handler(first)

    # Its end

    def kill(self) -> None:
        """End workers that may hang, and the pool with them."""
        if self._worker_pids_set:  # torch would raise their death in the loop
            private.remove_worker_pids(id(self))
            self._worker_pids_set = False
        if self._starter is not None:
            self._starter.abandon()
        self._kill_workers()
        self.close()

    def _kill_workers(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._workers_done_event = threading.Event()  # whoever was killed may have held the lock of the shared one

    def close(self, patience_s: float | None = None) -> None:
        """End the workers as torch does, which waits up to 5 s for each to finish the batch it is making.

        ``patience_s``: for all of them instead. In the main thread only: all loaders share the limit that it changes.
        """
        if self._starter is not None:
            self._starter.abandon()
        each_s = None if patience_s is None else patience_s / max(1, len(self._workers))
        with contextlib.nullcontext() if each_s is None else private.waiting_for_workers(each_s):
            self._shutdown_workers()

    def _shutdown_workers(self) -> None:
        if self._shutdown or self._pid != os.getpid():  # a process that was forked from this one has no say
            return
        pids = [worker.pid for worker in self._workers]
        answer_for(pids)
        # Of one that died torch would wait for its lock. One that read its share of a stream ended with 0.
        if any(worker.exitcode != 0 and not worker.is_alive() for worker in self._workers):
            self._kill_workers()
        super()._shutdown_workers()
        with harmless():
            for worker in self._workers:
                worker.kill()  # one that torch's SIGTERM did not end, as where it is stopped; the interpreter waits
            deadline = time.monotonic() + _KILL_S
            for worker in self._workers:
                worker.join(max(0.0, deadline - time.monotonic()))
        if self._shutdown:
            self._table.release(self.rows)
            self._task_info = {}
            remove_segments(pids)  # of the batch that a killed worker was in the middle of


class InProcess(_Fed, private.SingleProcessIterator):  # type: ignore[misc]
    """The training process loads each batch when the loop asks for it, where the caller has no workers."""

    is_fed, rows = True, range(0)

    def __init__(self, loader: Any, stream: IndexStream, base_seed: int, notes: Notes) -> None:
        super().__init__(private.view(loader, 0, stream), stream, base_seed)
        table, looks = notes.table, notes.looks
        table.release(table.reserve(0))  # clears the rows of workers that died: what hangs from now on is not theirs
        fetcher: Any = self._dataset_fetcher
        fetcher.fetch = partial(watched(type(fetcher).fetch, table.row(None), notes.sample_error), fetcher)
        self._watch = None if looks is None else looks.watch(None, loader.dataset, loader.collate_fn)

    def _next_index(self) -> Any:
        return self._drawn

    def _next_data(self) -> Any:
        drawn, begun_s = self.stream.draw(as_asked=True), time.thread_time()
        self._drawn = drawn[1]
        try:
            with self._watch or contextlib.nullcontext():
                return super()._next_data()
        finally:  # after an error or Ctrl-C the batch is gone, as in torch
            self.stream.delivered(drawn)
            self.num_delivered += 1
            self.cpu_s += time.thread_time() - begun_s

    def begin_epoch(self, loader: Any) -> None:
        """Nothing is kept from one epoch to the next."""

    def is_ready(self) -> bool:
        return True

    def feed(self) -> None: ...

    def close(self, patience_s: float | None = None) -> None:
        if self._watch is not None:
            self._watch.stop()

    kill = close


class _Starter:
    """A multiprocessing context that starts the processes of a pool after torch's constructor: by fork a few in each
    step of the loop, as no other thread may be in the middle of something then; else in a thread, which waits while a
    new process reads the dataset."""

    def __init__(self, context: Any) -> None:
        """``context``: of the loader. None: torch's default."""
        self._context = context or torch.multiprocessing
        self.Queue, self.Event = self._context.Queue, self._context.Event
        self._waiting: list[Any] = []
        self._is_abandoned = False
        self._thread: threading.Thread | None = None
        self.error: Exception | None = None

    def Process(self, **arguments: Any) -> Any:
        """Stands for a process that torch starts. What it gets is asked until that runs, and by torch up to 2.11 at the
        interpreter's exit: is it alive? The real one is a daemon, which multiprocessing ends then."""
        self._waiting.append(self._context.Process(daemon=True, **arguments))
        # Its pid is registered as a worker's for a moment: None is refused.
        silent = dict.fromkeys(("start", "join", "kill"), lambda *_, **__: None)
        return SimpleNamespace(pid=os.getpid(), exitcode=None, is_alive=lambda: False, **silent)

    def begin(self, started: Callable[[Any], None]) -> None:
        """``started``: called with each process when it runs, perhaps in the thread."""
        self._started = started
        if private.start_method(self._context) != "fork":
            self._thread = threading.Thread(target=self._start, name="loadtune-start-workers", daemon=True)
            self._thread.start()

    def poll(self) -> bool:
        """Start what a step may. Whether all run."""
        if self._thread is None:
            self._start(_FORK_SLICE_S)
        return not self._waiting and (self._thread is None or not self._thread.is_alive())

    def abandon(self) -> None:
        """Start no more; waits for the one that is being started."""
        self._is_abandoned = True
        if self._thread is not None:
            self._thread.join()
        self._waiting.clear()

    def _start(self, limit_s: float = math.inf) -> None:
        deadline = time.monotonic() + limit_s
        while self._waiting and self.error is None and not self._is_abandoned:
            process = self._waiting[0]
            try:
                process.start()
                self._started(process)
            except Exception as error:
                self.error = error
                if raised_by_handler(error):
                    raise
            finally:
                del self._waiting[0]
            if time.monotonic() > deadline:
                return
