"""A DataLoader whose settings change between two batches, while a loop iterates it.

`SwitchingLoader` wraps a `torch.utils.data.DataLoader`, which is left as it is::

    loader = SwitchingLoader(DataLoader(dataset, batch_size=64, shuffle=True))
    for batch in loader:
        ...
        loader.switch(num_workers=8, pin_memory=True)

**A switch**: the new workers start while the old ones still load and deliver. Once all new workers are ready, only they
get indices. The old ones deliver the batches that they were asked for, then the new ones deliver theirs. No sample is
lost, repeated or reordered. The main thread only forks a few workers in each step.

**The same as in torch**: the order of samples, exceptions, and how an epoch goes on after one. Each epoch draws one
base seed, from the generator that torch would use. `persistent_workers` decides whether workers outlive an epoch. After
``break`` workers end when torch's would.

**Not the same as in torch**: random augmentation, because each worker has its own seed. A sampler that draws random
numbers as it is asked depends on how far ahead it is asked; that is so in torch, too. A `RandomSampler`
with its own generator draws once more when its indices are exhausted, which shows only in a loop that breaks shortly
before the end of an epoch. With ``persistent_workers=True`` the workers of a switch get the dataset as it is at that
moment.

**On trial**: settings other than those of the DataLoader. If their workers do not start, die, hang or raise, they are
ended, and the DataLoader's own settings load their batches, in the same order. An error reaches the loop only if it
also occurs with the DataLoader's own settings. `SwitchingLoader.withdrawn` lists what failed.

**Iterable datasets** share their samples out when workers start. Their settings change at the next epoch, and nothing
of them is on trial.
"""

import atexit
import math
import os
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterDataPipe, MapDataPipe

from loadtune.stream import torch_private as private
from loadtune.stream.batches import IndexStream, own_batches
from loadtune.stream.counters import Counters, Depth, Switch, queue_depth
from loadtune.stream.pool import InProcess, Pool, PoolFailedError, plain_iterator, single_batch
from loadtune.stream.sample_table import SampleTable
from loadtune.stream.settings import Settings, start_method
from loadtune.stream.start import pickle_s
from loadtune.stream.worker_rows import SampleError, WorkerTimes, worker_times

MAX_BLOCKED_S = 0.5
"""A switch whose workers would block the training loop for longer than this at one go waits for the next epoch."""
READY_LIMIT_S = 120.0
"""A pool whose workers take longer to start is withdrawn."""
HANG_S = 60.0
"""A pool on trial that gives no batch for so long is withdrawn."""
_CLOSE_S = 10.0

_POLL_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """Settings that could not go on."""

    settings: Settings
    reason: str
    error: BaseException | None
    """What torch or the system raised. None: nothing did."""


@dataclass(slots=True, eq=False)
class _Shared:
    """What a loader and its iterators both use.

    The loader refers to its iterator. The iterator refers to this object instead of the loader. There is no reference
    cycle, so deleting the loader ends persistent workers at once, as in torch.
    """

    loader: DataLoader[Any]
    own: Settings
    settings: Settings
    table: SampleTable
    sample_error: SampleError | None
    max_blocked_s: float
    hang_s: float | None
    on_trial: bool
    counters: Counters = field(default_factory=Counters)
    withdrawn: list[Withdrawn] = field(default_factory=list)
    waiting: Switch | None = None
    """The newest switch that was pending when its epoch ended. It takes effect where the next one begins."""


class SwitchingLoader:
    """Iterates like the DataLoader that it is given. `switch` changes its settings at any time."""

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        table: SampleTable | None = None,
        sample_error: SampleError | None = None,
        max_blocked_s: float = MAX_BLOCKED_S,
        hang_s: float | None = HANG_S,
        on_trial: bool = True,
        settings: Settings | None = None,
    ) -> None:
        """``settings``: to begin with. None: the DataLoader's own.

        ``table``: where workers note what they load. None: one of its own.

        ``max_blocked_s``: a switch whose workers would block the training loop for longer at one go waits for the next
        epoch. Infinite: none waits.

        ``on_trial``: settings that fail are withdrawn. False: they raise, as the caller's own do.

        ``sample_error``: called in the loading process with an exception and its sample's index.
        """
        own = _own_settings(loader)
        table = SampleTable() if table is None else table
        self._shared = _Shared(loader, own, settings or own, table, sample_error, max_blocked_s, hang_s, on_trial)
        self.loader, self.own, self.table = loader, own, table
        self.counters, self.withdrawn = self._shared.counters, self._shared.withdrawn
        self._current: weakref.ref[SwitchingIterator] | None = None
        self._kept: SwitchingIterator | None = None

    @property
    def settings(self) -> Settings:
        """Those asked for last. They take effect when their workers are ready."""
        return self._shared.settings

    def __iter__(self) -> "SwitchingIterator":
        if not self.loader.persistent_workers:
            return self.begin()
        if self._kept is None:
            self._kept = self.begin()
        else:
            self._kept._reset(self.loader)
        return self._kept

    def begin(self) -> "SwitchingIterator":
        """A new iterator, which the caller keeps where workers are persistent."""
        iterator = SwitchingIterator(self._shared)
        self._current = weakref.ref(iterator)
        return iterator

    def __len__(self) -> int:
        return len(self.loader)

    def switch(self, *, restart: bool = False, at: int | None = None, **changes: Any) -> Switch | None:
        """Change some of the settings: in the running epoch if there is one, else at the next.

        Several switches may be pending; each takes effect in its turn. The returned `Switch` says how far this one is.
        None: no worker has to be restarted in this epoch, because only the batch size changes or no epoch is running.
        ``restart``: start new workers even if the settings are the same. Once they are ready, batches that the old ones
        have not delivered are dropped. For measurements, where a lost sample does no harm and a wait takes time.
        ``at``: the number in the epoch of the first batch that the new settings load; the loop waits for their workers
        if it must. None: as soon as they are ready. So is a number that was already given to the old ones.

        Raises TypeError for a name that is no field of `Settings`, ValueError for a value that torch would refuse.
        """
        self._shared.settings = self.settings.changed(**changes)
        current = None if self._current is None else self._current()
        return None if current is None else current.switch(self.settings, restart=restart, at=at)

    def close(self, patience_s: float | None = None) -> None:
        """End all workers now. The next ``iter()`` starts others.

        ``patience_s``: for the batches that workers are making; then they are terminated. None: as long as torch waits.
        """
        current = None if self._current is None else self._current()
        if current is not None:
            current._shutdown_workers(patience_s)
        self._kept = None


_live: "weakref.WeakSet[SwitchingIterator]" = weakref.WeakSet()
_closes_at_exit = False


def _close_all() -> None:
    for iterator in list(_live):
        iterator._shutdown_workers()


class SwitchingIterator:
    """One epoch, or with ``persistent_workers`` one after another. Made by `SwitchingLoader`."""

    def __init__(self, owner: _Shared) -> None:
        global _closes_at_exit
        if not _closes_at_exit:  # after torch's own, so that it runs before: torch's workers do not end later any more
            atexit.register(_close_all)
            _closes_at_exit = True
        self._pid = os.getpid()
        self._owner, self._loader = owner, owner.loader
        self._lane: deque[Pool | InProcess] = deque()
        self._coming: deque[tuple[Switch, Pool | InProcess | None]] = deque()
        self._taking_over: dict[int, Switch] = {}
        self._closing: list[tuple[threading.Thread, Pool | InProcess]] = []
        self._plain: Any = None
        self._late_seed: int | None = None
        self._has_ended = False
        self._batch_size = owner.settings.batch_size
        self._private = torch.Generator()
        _live.add(self)
        if not _can_switch(self._loader):
            self._plain = plain_iterator(self._loader, owner.settings)
            return
        self._stream = IndexStream(self._source(), owner.counters)
        base_seed = _random_seed(self._loader.generator)
        self._private.manual_seed(base_seed & (1 << 63) - 1)
        if owner.own.num_workers > 0:
            self._stream.begin_epoch()  # torch asks a sampler for its iterator twice where there are workers
        if owner.own.num_workers > 0:
            self._begin_with(owner.settings, base_seed)
            self._stream.peek()
        elif owner.settings.num_workers == 0:
            self._begin_with(owner.settings, base_seed)
        else:  # torch asks the sampler at the first next() where there are no workers
            self._late_seed = base_seed

    def _source(self) -> Callable[[], Iterator[Any]]:
        loader, mine = self._loader, weakref.ref(self)
        if self._batch_size is None:
            return lambda: iter(loader._index_sampler)

        def batch_size() -> int:
            iterator = mine()
            return iterator._batch_size or 1 if iterator is not None else 1

        return lambda: own_batches(loader.sampler, batch_size, loader.drop_last)

    # Iteration

    def __iter__(self) -> "SwitchingIterator":
        return self

    def __len__(self) -> int:
        if self._plain is not None or self._batch_size is None:
            return len(self._loader)
        if self._stream.has_ended:
            return self._stream.num_drawn
        sampler: Any = self._loader.sampler
        left, size = len(sampler) - self._stream.num_samples_drawn, self._batch_size
        return self._stream.num_drawn + (left // size if self._loader.drop_last else -(-left // size))

    def __next__(self) -> Any:
        begun = time.monotonic()
        data = next(self._plain) if self._plain is not None else self._next()
        self._owner.counters.delivered(time.monotonic() - begun)
        return data

    def _next(self) -> Any:
        if self._late_seed is not None:
            base_seed, self._late_seed = self._late_seed, None
            self._begin_with(self._owner.settings, base_seed)
        self._advance()
        while self._coming and self._stream.is_held_back and not any(source.issued for source in self._lane):
            time.sleep(_POLL_S)
            self._advance()
        while self._lane:
            source = self._lane[0]
            if not source.issued and len(self._lane) > 1:
                self._retire(self._lane.popleft())
                continue
            try:
                data = next(source)
            except PoolFailedError as error:
                failure = error
            except StopIteration:
                if len(self._lane) > 1:  # a death that the caller caught left batches that nobody makes any more
                    source.issued.clear()
                    continue
                self._has_ended = True
                self._end_epoch()
                raise
            else:
                self._delivered_by(source)
                return data
            # Not where it is caught: an error in workers that are forked there would be shown with this one.
            self._withdraw(source, failure)
        if self._has_ended:
            raise StopIteration
        raise RuntimeError("The loader was closed in the middle of an epoch. iter(loader) begins another.")

    def _delivered_by(self, source: Pool | InProcess) -> None:
        switch = self._taking_over.pop(id(source), None)
        if switch is not None:
            switch.delivers_s = time.monotonic() - switch.asked_s

    def delivering(self) -> Any:
        """Torch's iterator, or ours in its place, that delivers. None: the loader was closed."""
        if self._plain is not None:
            return self._plain
        return self._lane[0] if self._lane else None

    def depth(self) -> Depth | None:
        """Batches that stand ready in the pool that delivers. None: it has no queue."""
        return queue_depth(self.delivering())

    def last_in_process(self) -> Any:
        """The batch that was delivered last, as the training process itself loads it. Raises what that raises."""
        return next(single_batch(self._loader, self._owner.own, self._stream.last))

    def workers(self) -> list[WorkerTimes]:
        """What each worker of the pool that delivers has done. Empty: it has none."""
        return worker_times(self._owner.table, self._lane[0].rows) if self._lane else []

    def num_delivered(self) -> int:
        """Batches of the pool that delivers."""
        return self._lane[0].num_delivered if self._lane else 0

    def take_over(self, each: Callable[[], None], limit_s: float) -> None:
        """Go over to the settings asked for last, without the batches of those before.

        Waits until their workers are ready and those before them gone. What is not gone after ``limit_s`` is killed: in
        the middle of a batch that nobody wants, it would take cores. ``each`` is called meanwhile, often.
        """
        while self._coming and (before := self._coming[0]):
            self._advance()
            if self._coming and self._coming[0] is before and before[1] is None:
                return  # it waits for the next epoch
            each()
            time.sleep(_POLL_S if self._coming else 0.0)
        deadline = time.monotonic() + limit_s
        while self._closing:
            each()
            if time.monotonic() > deadline:
                for _, pool in list(self._closing):
                    pool.end_at_once()
            time.sleep(_POLL_S)

    # Switching

    def switch(self, settings: Settings, *, restart: bool = False, at: int | None = None) -> Switch | None:
        """Ask for these settings; see `SwitchingLoader.switch`."""
        if self._plain is not None or not self._lane:
            return None  # at the next epoch
        self._batch_size = settings.batch_size
        before = self._coming[-1][0].settings if self._coming else self._lane[-1].settings
        if settings.same_workers(before) and not restart:
            self._relabel(settings)
            return None
        switch = Switch(settings=settings, asked_s=time.monotonic(), at=at, restart=restart)
        self._owner.counters.switches.append(switch)
        self._coming.append((switch, None))
        self._advance()
        return switch

    def _relabel(self, settings: Settings) -> None:
        """Only the batch size changes, which the stream knows; no worker has to."""
        if not self._coming:
            self._lane[-1].settings = settings

    def _advance(self) -> None:
        """Bring the next switch a step further: start workers, or hand over to those that are ready."""
        while self._coming:
            switch, source = self._coming[0]
            begun = time.monotonic()
            try:
                if source is None:
                    if not self.may_start(switch.settings):
                        return
                    source = self._make_deferred(switch.settings)
                    self._coming[0] = (switch, source)
                self._stream.limit = switch.at
                ready = isinstance(source, InProcess) or source.is_ready(READY_LIMIT_S)
            except PoolFailedError as failure:
                self._coming.popleft()
                switch.block(begun)
                self._drop(switch.settings, source, failure)
                continue
            if ready and switch.at is not None and not self._stream.is_held_back:
                return
            if ready:
                self._coming.popleft()
                self._hand_over(switch, source)
            switch.block(begun)
            if not ready:
                return

    def _make_deferred(self, settings: Settings) -> Pool | InProcess:
        """Raises PoolFailedError."""
        try:
            return self._make(settings, deferred=True)
        except Exception as error:
            raise PoolFailedError("its workers did not start") from error

    def may_start(self, settings: Settings) -> bool:
        """Whether starting these workers keeps the main thread from running for a moment only."""
        owner = self._owner
        forks = start_method(self._loader.multiprocessing_context) == "fork"
        if settings.num_workers == 0 or forks or math.isinf(owner.max_blocked_s):
            return True
        if not hasattr(self, "_pickle_s"):
            self._pickle_s = pickle_s(self._loader.dataset, owner.max_blocked_s / 2)
        return self._pickle_s <= owner.max_blocked_s / 2

    def _hand_over(self, switch: Switch, source: Pool | InProcess) -> None:
        """Feed these workers from now on. Those before them deliver what they were given, unless it is dropped."""
        switch.start_s = source.start_s
        self._stream.limit, switch.at = None, self._stream.position
        self._lane[-1].is_fed = False
        while switch.restart and self._lane:
            self._stream.drop(self._lane[0].issued.values())
            self._retire(self._lane.popleft())
        self._lane.append(source)
        self._taking_over[id(source)] = switch
        if isinstance(source, Pool):
            source.feed()

    def _make(self, settings: Settings, *, deferred: bool, base_seed: int | None = None) -> Pool | InProcess:
        owner = self._owner
        if base_seed is None:
            base_seed = _random_seed(self._private)
        on_trial = owner.on_trial and not settings.same_workers(owner.own)
        common = (self._loader, settings, self._stream, base_seed, owner.table)
        if settings.num_workers == 0:
            is_private = owner.own.num_workers > 0
            return InProcess(*common, on_trial=on_trial, private_random=is_private, sample_error=owner.sample_error)
        with warnings.catch_warnings():
            if on_trial and settings.pin_memory and not torch.accelerator.is_available():
                warnings.simplefilter("ignore")
            return Pool(
                *common, on_trial=on_trial, deferred=deferred, hang_s=owner.hang_s, sample_error=owner.sample_error
            )

    def _begin_with(self, settings: Settings, base_seed: int | None = None) -> None:
        """The lane is empty: fill it with these settings, or where they fail with the caller's."""
        own = replace(self._owner.own, batch_size=settings.batch_size)
        waiting, self._owner.waiting = self._owner.waiting, None
        if waiting is not None and not waiting.settings.same_workers(settings):
            waiting = None  # another switch came after it
        begun = time.monotonic()
        try:
            self._lane.append(self._make(settings, deferred=False, base_seed=base_seed))
            if waiting is not None:
                waiting.start_s = time.monotonic() - waiting.asked_s
                waiting.block(begun)
                self._taking_over[id(self._lane[-1])] = waiting
        except Exception as error:
            if settings.same_workers(own) or not self._owner.on_trial or error is self._stream.error:
                raise
            self._note(settings, "its workers did not start", error)
        else:
            return
        self._take_back_all()
        self._lane.append(self._make(own, deferred=False, base_seed=base_seed))

    # Trouble

    def _withdraw(self, failed: Pool | InProcess, failure: PoolFailedError) -> None:
        """Take back what this pool and those behind it had not delivered; the caller's settings load that."""
        self._note(failed.settings, str(failure), failure.__cause__)
        self._taking_over.pop(id(failed), None)
        behind = [source for source in self._lane if source is not failed]
        self._take_back_all()
        self._lane.clear()
        self._kill(failed)
        for source in reversed(behind):  # whose settings did not fail: they come again
            self._kill(source)
            self._coming.appendleft((self._taking_over.pop(id(source)), None))
        self._begin_with(replace(self._owner.own, batch_size=self._batch_size))

    def _take_back_all(self) -> None:
        for source in self._lane:
            self._stream.take_back(source.issued.values())
            source.issued.clear()

    def _drop(self, settings: Settings, source: Pool | InProcess | None, failure: PoolFailedError) -> None:
        """These settings never got an index; the ones before them go on.

        Raises what went wrong where settings are not on trial.
        """
        if not self._owner.on_trial:
            self._kill_if_made(source)
            raise failure.__cause__ or RuntimeError(f"DataLoader with {settings.num_workers} workers: {failure}")
        self._note(settings, str(failure), failure.__cause__)
        self._kill_if_made(source)
        if self._stream.limit is not None:
            self._stream.limit = None
            if isinstance(self._lane[-1], Pool):
                self._lane[-1].feed()

    def _kill_if_made(self, source: Pool | InProcess | None) -> None:
        if source is not None:
            self._kill(source)

    def _note(self, settings: Settings, reason: str, error: BaseException | None) -> None:
        owner, each = self._owner, error
        while each is not None:  # what they refer to keeps the workers' queues open
            traceback.clear_frames(each.__traceback__)
            each = each.__cause__ or each.__context__
        owner.withdrawn.append(Withdrawn(settings=settings, reason=reason, error=error))
        if owner.settings.same_workers(settings):
            owner.settings = replace(owner.own, batch_size=owner.settings.batch_size)

    def withdraw_to_own(self) -> None:
        """Read again with the caller's settings whatever other workers were asked for and have not delivered."""
        if self._plain is not None:
            return
        self._take_back_all()
        for source in (*self._lane, *(source for _, source in self._coming if source is not None)):
            self._kill(source)
        self._lane.clear()
        self._coming.clear()
        self._stream.limit = None
        self._owner.settings = replace(self._owner.own, batch_size=self._batch_size)
        self._begin_with(self._owner.settings)

    # Ends

    def _retire(self, source: Pool | InProcess) -> None:
        """It has delivered all that it was given, or nobody wants the rest."""
        self._taking_over.pop(id(source), None)
        self._in_background(source, source.close)

    def _kill(self, source: Pool | InProcess) -> None:
        self._in_background(source, source.kill)

    def _in_background(self, source: Pool | InProcess, close: Callable[[], None]) -> None:
        """Once it is closed nothing holds it: up to 32 page-locked batches go with it, 16 GB of 512 images."""
        closing = self._closing

        def end() -> None:
            try:
                close()
            finally:
                closing.remove(entry)

        thread = threading.Thread(target=end, name="loadtune-end-workers", daemon=True)
        entry = (thread, source)
        closing.append(entry)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads
            end()

    def _end_epoch(self) -> None:
        """As torch: without persistent workers nothing outlives the epoch."""
        if not self._loader.persistent_workers:
            self._shutdown_workers()

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin the next epoch with the workers that are there: what `persistent_workers` asks for."""
        if self._plain is not None:
            self._plain = plain_iterator(loader, self._owner.settings, before=self._plain)
            return
        while len(self._lane) > 1:
            self._retire(self._lane.popleft())
        self._stream.begin_epoch()
        settings = self._owner.settings
        waiting = self._coming and self._coming[0][1] is None
        if not self._lane or waiting:  # closed, or a switch that had to wait for the end of the epoch
            self._shutdown_workers()
            self._batch_size = settings.batch_size
            self._begin_with(settings)
            return
        try:
            self._lane[0].begin_epoch(loader)
        except PoolFailedError as failure:
            self._withdraw(self._lane[0], failure)
        self._stream.peek()

    def _shutdown_workers(self, patience_s: float | None = None) -> None:
        """End all workers, those included that are starting. Returns when they are gone."""
        if not self._is_mine():
            return
        if self._plain is not None:
            getattr(self._plain, "_shutdown_workers", lambda: None)()
            return
        coming = [source for _, source in self._coming if source is not None]
        if self._coming:
            self._owner.waiting = self._coming[-1][0]
        self._coming.clear()
        self._taking_over.clear()
        for source in coming:
            source.kill()
        while self._lane:
            self._lane.popleft().close(patience_s)
        deadline = time.monotonic() + _CLOSE_S
        for thread, _ in list(self._closing):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _is_mine(self) -> bool:
        """Whether this is the process that made it, and not one that was forked from that."""
        return getattr(self, "_pid", None) == os.getpid()

    def __getstate__(self) -> Any:
        raise NotImplementedError("{} cannot be pickled", self.__class__.__name__)

    def __del__(self) -> None:
        if self._is_mine():
            self._shutdown_workers()


def _random_seed(generator: torch.Generator | None) -> int:
    """Drawn as torch draws the seed of an epoch's workers. None: from the global generator."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _can_switch(loader: DataLoader[Any]) -> bool:
    pipes = (IterDataPipe, MapDataPipe)
    return loader._dataset_kind == private.MAP_STYLE and not isinstance(loader.dataset, pipes)


def _own_settings(loader: DataLoader[Any]) -> Settings:
    own = Settings.of(loader)
    made_by_torch = _can_switch(loader) and type(loader.batch_sampler) is BatchSampler
    return own if made_by_torch else replace(own, batch_size=None)
