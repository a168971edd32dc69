"""An iterator over a DataLoader whose number of workers changes between two batches::

    batches = SwitchingIterator(DataLoader(dataset, batch_size=64, shuffle=True))
    for batch in batches:
        ...
        batches.switch(8)

**A switch**: new workers start while the old ones still load and deliver; the main thread only forks a few in each
step. Once all are ready, only they get indices. The old ones deliver what they were asked for, then the new ones.

**As in torch**: the order of samples, exceptions, and how an epoch goes on after one; the base seed that an epoch
draws; `persistent_workers`; and when workers end after ``break``. **Not as in torch**: each worker has its own seed, so
random augmentation differs. Workers that join persistent ones get the dataset as it is at that moment.

**On trial**: workers other than those of the DataLoader. If they do not start, die, hang or raise, they are ended, and
as many workers as the DataLoader has load their batches, in the same order. `withdrawn` lists what failed.

**Iterable datasets** share their samples out when workers start, so their workers do not change. Neither does a loader
with workers change to none: its samples would draw from the random numbers of the training.
"""

import atexit
import os
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import torch
from torch.utils.data import MapDataPipe

from loadtune.errors import raised_by_handler
from loadtune.stream import torch_private as private
from loadtune.stream.looks import Looks
from loadtune.stream.pool import IndexStream, InProcess, Pool, PoolFailedError, RandomSamplesError
from loadtune.stream.sample_table import Row, SampleTable
from loadtune.stream.worker_rows import Notes, SampleError, is_random

_CLOSE_S = 10.0

Source: TypeAlias = Pool | InProcess


_live: "weakref.WeakSet[SwitchingIterator]" = weakref.WeakSet()


@cache
def _close_at_exit() -> None:
    """After torch's own was registered, so that it runs before: torch's workers do not end later any more."""
    atexit.register(_close_all)


def _close_all() -> None:
    for iterator in list(_live):
        iterator._shutdown_workers()


class SwitchingIterator:
    """One epoch of a DataLoader, or with ``persistent_workers`` one after another."""

    def __init__(
        self,
        loader: Any,
        num_workers: int | None = None,
        *,
        table: SampleTable | None = None,
        sample_error: SampleError | None = None,
        may_ask_ahead: Callable[[], bool] = lambda: True,
        known: list[Any] | None = None,
        exact: bool = False,
        told_workers: int | None = None,
        looks: Looks | None = None,
    ) -> None:
        """``loader``: is left as it is. A `LoaderView` of one that refers to this iterator, so that there is no cycle.

        ``num_workers``: to begin with. ``table``: where workers note what they load. ``sample_error``: called in the
        loading process with an exception and its sample's index. ``may_ask_ahead``, ``known``: see `IndexStream`.
        ``exact``: workers of a switch are withdrawn before they deliver, unless their samples are the same.
        ``told_workers``: what a ``worker_init_fn`` gets as their number. None: their number.
        ``looks``: where it is noted what takes the time of those that load. None: nowhere.
        """
        _close_at_exit()
        self._loader, self._exact, self._looks = loader, exact, looks
        self.own = loader.num_workers
        self.num_workers = self.own if num_workers is None else num_workers
        """Asked for last. They deliver when they are ready."""
        self.table = SampleTable() if table is None else table
        self._notes = Notes(self.table, sample_error, looks)
        self.withdrawn: list[PoolFailedError] = []
        self.has_ended = False
        self._lane: deque[Source] = deque()
        self._last: Source | None = None
        self._coming: int | None = None
        """Workers that were asked for and do not deliver yet. None: there are none."""
        self._starting: Source | None = None
        """Those. None: they have not begun to start."""
        self._closing: list[threading.Thread] = []
        self._is_stream = loader._dataset_kind != private.MAP_STYLE or isinstance(loader.dataset, MapDataPipe)
        self._late: tuple[int, int] | None = None
        """Workers that start at the first batch of the epoch, and their base seed. None: they have started."""
        self._private = torch.Generator()
        self._pid = os.getpid()  # from here on there is something to end
        _live.add(self)
        own_ahead = self.own * (loader.prefetch_factor or 2)
        self._stream = IndexStream(loader._index_sampler, own_ahead, may_ask_ahead)
        self._stream.known, self._stream.told_workers, self._stream.times = known, told_workers, 16 if exact else 2
        base_seed = _random_seed(loader.generator)
        self._private.manual_seed(base_seed & (1 << 63) - 1)
        if self.own > 0:
            self._stream.begin_epoch()  # torch asks a sampler for its iterator twice where there are workers
            self._begin_with(self.num_workers, base_seed)
            self._stream.keep_up()
        else:
            self._begin_with(0, base_seed)
            if self.num_workers:  # torch asks the sampler at the first next() where there are no workers
                self._late = self.num_workers, base_seed

    # Iteration

    def __iter__(self) -> "SwitchingIterator":
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        if self._late is not None:
            late, self._late = self._late, None
            self._begin_with(*late)
        self._advance()
        while self._lane:
            source = self._lane[0]
            if not source.issued and len(self._lane) > 1:
                self._lane.popleft()
                self._lane[0]._num_yielded = source._num_yielded
                self._in_background(source, source.close)
                continue
            try:
                batch = next(source)
                if self._stream.is_short:  # before the loop's next step, as torch draws
                    self._lane[-1].feed()
                return batch
            except PoolFailedError as error:
                failure = error
            except StopIteration:
                if len(self._lane) > 1:  # a death that the caller caught left batches that nobody makes any more
                    source.issued.clear()
                    continue
                if not self._is_stream and not self._stream.is_at_end():  # a sampler that gives more than it said
                    self.withdraw_to_own()
                    continue
                self.has_ended = True
                if not self._loader.persistent_workers:  # as in torch nothing outlives the epoch then
                    self._shutdown_workers()
                raise
            # Not where it is caught: an error in workers that are forked there would be shown with this one.
            self._note(source._num_workers, failure)
            self.withdraw_to_own()
        if self.has_ended:
            raise StopIteration
        raise RuntimeError("The loader was closed in the middle of an epoch. iter(loader) begins another.")

    def delivering(self) -> Any:
        """What delivers in the place of torch's iterator, or was the last to deliver."""
        return self._lane[0] if self._lane else self._last

    @property
    def num_delivering(self) -> int:
        """Workers that deliver, or will deliver the first batch."""
        return self._late[0] if self._late is not None else int(self.delivering()._num_workers)

    def last_in_process(self) -> Any:
        """The batch that was delivered last, as the training process itself loads it. Raises what that raises."""
        return next(private.SingleProcessIterator(private.view(self._loader, 0, _index_sampler=[self._stream.last])))

    def last_drawn(self) -> Any:
        """Indices of the batch that was delivered last."""
        return self._stream.last

    def workers(self) -> list[Row]:
        """What each worker of the pool that delivers, or was the last to deliver, has done. Empty: it has none."""
        return self.table.rows(getattr(self.delivering(), "rows", range(0)))

    def batch_size(self) -> float:
        """Samples in a batch, in the mean. 0: there was none yet."""
        return self._stream.num_samples / max(1, self._stream.num_delivered)

    # Switching

    def switch(self, num_workers: int) -> None:
        """Ask for so many workers, once they are ready, in this epoch if it goes on. Those that were asked for before
        and are not ready do not come. Raises ValueError for none in place of some."""
        if num_workers == 0 < self.own:
            raise ValueError("A loader that has workers cannot go on without.")
        self.num_workers = num_workers
        if self._lane and num_workers != self._coming:
            self._drop()
            if num_workers != self._num_newest():
                self._coming = num_workers
                self._advance()

    def _num_newest(self) -> int:
        """Workers that get the next indices, or the first ones."""
        return self._late[0] if self._late is not None else int(self._lane[-1]._num_workers)

    @property
    def is_switching(self) -> bool:
        """Whether workers start that were asked for."""
        return self._coming is not None

    def stay(self) -> None:
        """Workers that were asked for and have not begun to deliver are not waited for any more."""
        if self._coming is not None:
            self.switch(self._num_newest())

    def _drop(self) -> None:
        """Those that were asked for do not come."""
        source, self._coming, self._starting = self._starting, None, None
        if source is not None:
            self._in_background(source, source.kill)

    def _advance(self) -> None:
        """Bring the switch a step further: start workers, or hand over to those that are ready."""
        # They load again what was delivered first; and where some start late, the first batches are not drawn yet.
        if self._coming is None or self._late is not None or self._stream.known == []:
            return
        try:
            source = self._make(self._coming) if self._starting is None else self._starting
            self._starting = source
            if not source.is_ready():
                return
            if self._coming != self.own:
                self._test(source)
        except PoolFailedError as failure:  # they never got an index; the ones before them go on
            self._note(self._coming, failure)
            self._drop()
            return
        self._coming = self._starting = None
        self._lane[-1].is_fed = False
        self._lane.append(source)
        source.feed()

    def _test(self, source: Source) -> None:
        """Note whether the samples of workers on trial are random. With ``exact`` that raises RandomSamplesError."""
        found, draws = (is_random(self.table.rows(source.rows), by_worker=by) for by in (True, self.own > 0))
        self.table.row(None).draws = float(draws or self.table.row(None).draws)
        if self._exact and (found or (found is None and self._loader.worker_init_fn is not None)):
            unknown = "nothing shows that its worker_init_fn changes no sample"
            raise RandomSamplesError("its samples are random" if found else unknown)

    def _make(self, num_workers: int, base_seed: int | None = None) -> Source:
        """``base_seed``: of workers that start now. None: they start later; an error is a PoolFailedError then, too."""
        deferred = base_seed is None
        seed = _random_seed(self._private) if base_seed is None else base_seed
        if num_workers == 0:
            return InProcess(self._loader, self._stream, seed, self._notes)
        try:
            return Pool(self._loader, num_workers, self._stream, seed, self._notes, deferred=deferred)
        except Exception as error:
            is_own = error is self._stream.error or raised_by_handler(error)
            if is_own or not (deferred or num_workers != self.own):
                raise
            raise PoolFailedError("its workers did not start") from error

    def _begin_with(self, num_workers: int, base_seed: int | None = None) -> None:
        """The lane is empty: fill it with so many workers, or where they fail with the caller's."""
        seed = _random_seed(self._private) if base_seed is None else base_seed
        try:
            self._lane.append(self._make(num_workers, seed))
        except PoolFailedError as failure:
            self._note(num_workers, failure)
            self._lane.append(self._make(self.own, seed))

    # Trouble

    def _note(self, num_workers: int, failure: PoolFailedError) -> None:
        each = failure.__cause__ or failure.__context__
        while each is not None:  # what they refer to keeps the workers' queues open
            traceback.clear_frames(each.__traceback__)
            each = each.__cause__ or each.__context__
        failure.num_workers, failure.__traceback__ = num_workers, None
        self.withdrawn.append(failure)
        if self.num_workers == num_workers:
            self.num_workers = self.own

    def withdraw_to_own(self) -> None:
        """Read again with the caller's workers whatever others were asked for and have not delivered."""
        if self._is_stream:
            return
        self._drop()
        num_yielded = self.delivering()._num_yielded
        for source in self._lane:
            self._stream.take_back(source.issued.values())
            source.issued.clear()
            self._in_background(source, source.kill)
        self._lane.clear()
        self.num_workers, self._late = self.own, None
        self._begin_with(self.own)
        self._lane[0]._num_yielded = num_yielded

    # Ends

    def _in_background(self, source: Source, close: Callable[[], None]) -> None:
        """End a pool. Nothing holds it then: up to 32 page-locked batches go with it, 16 GB of 512 images."""
        if isinstance(source, InProcess):  # its signal is put back in the main thread alone
            close()
            return
        thread = threading.Thread(target=close, name="loadtune-end-workers", daemon=True)
        self._closing = [other for other in self._closing if other.is_alive()]
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads
            close()
        else:
            self._closing.append(thread)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begin the next epoch with the workers that are there: what `persistent_workers` asks for."""
        while len(self._lane) > 1:
            self._in_background(self._lane[0], self._lane.popleft().close)
        self.has_ended = False
        self._stream.begin_epoch()
        if not self._lane:  # closed
            self._begin_with(self.num_workers)
            return
        try:
            self._lane[0].begin_epoch(loader)
        except PoolFailedError as failure:
            self._note(self._lane[0]._num_workers, failure)
            self.withdraw_to_own()
        self._stream.keep_up()

    def _shutdown_workers(self, patience_s: float | None = None) -> None:
        """End all workers, those included that are starting. ``patience_s``: as in `Pool.close`."""
        if getattr(self, "_pid", None) != os.getpid():  # of a process that was forked from the one that made it
            return
        starting, self._coming, self._starting = self._starting, None, None
        if starting is not None:
            starting.kill()
        while self._lane:
            self._last = self._lane.popleft()
            self._last.close(patience_s)
        deadline = time.monotonic() + _CLOSE_S
        for thread in self._closing:
            thread.join(max(0.0, deadline - time.monotonic()))

    def __del__(self) -> None:
        self._shutdown_workers()


def _random_seed(generator: torch.Generator | None) -> int:
    """Drawn as torch draws the seed of an epoch's workers. None: from the global generator."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
