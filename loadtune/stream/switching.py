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
numbers as it is asked depends on how far ahead it is asked; that is so in torch, too. With ``persistent_workers=True``
the workers of a switch get the dataset as it is at that moment.

**On trial**: settings other than those of the DataLoader. If their workers do not start, die, hang or raise, they are
ended, and the DataLoader's own settings load their batches, in the same order. An error reaches the loop only if it
also occurs with the DataLoader's own settings. `SwitchingLoader.withdrawn` lists what failed.

**Iterable datasets** share their samples out when workers start. Their settings do not change. Neither do those of a
loader with workers change to none: its samples would draw from the random numbers of the training.
"""

import atexit
import os
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe

from loadtune.stream import torch_private as private
from loadtune.stream.batches import IndexStream
from loadtune.stream.pool import InProcess, Pool, PoolFailedError
from loadtune.stream.sample_table import SampleTable
from loadtune.stream.settings import Counters, Settings, Switch
from loadtune.stream.torch_private import Depth, plain_iterator, queue_depth, single_batch
from loadtune.stream.worker_rows import SampleError, WorkerTimes, worker_times

READY_LIMIT_S = 120.0
"""A pool whose workers take longer to start is withdrawn."""
HANG_S = 60.0
"""A pool on trial that gives no batch for so long is withdrawn."""
_CLOSE_S, _POLL_S = 10.0, 0.005

Source: TypeAlias = Pool | InProcess


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
    hang_s: float
    counters: Counters = field(default_factory=Counters)
    withdrawn: list[Withdrawn] = field(default_factory=list)


class SwitchingLoader:
    """Iterates like the DataLoader that it is given. `switch` changes its settings at any time."""

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        table: SampleTable | None = None,
        sample_error: SampleError | None = None,
        hang_s: float = HANG_S,
        settings: Settings | None = None,
    ) -> None:
        """``settings``: to begin with. None: the DataLoader's own.

        ``table``: where workers note what they load. None: one of its own.

        ``sample_error``: called in the loading process with an exception and its sample's index.
        """
        own = Settings.of(loader)
        table = SampleTable() if table is None else table
        self._shared = _Shared(loader, own, settings or own, table, sample_error, hang_s)
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

    def switch(self, *, at: int | None = None, **changes: Any) -> Switch | None:
        """Change some of the settings: in the running epoch if there is one, else at the next.

        Several switches may be pending; each takes effect in its turn. The returned `Switch` says how far this one is.
        None: no worker has to be started in this epoch, because nothing changes or no epoch is running.
        ``at``: the number in the epoch of the first batch that the new settings load; the loop waits for their workers
        if it must. None: as soon as they are ready. So is a number that was already given to the old ones.

        Raises TypeError for a name that is no field of `Settings`, ValueError for a value that torch would refuse, and
        for none in place of workers.
        """
        settings = self.settings.changed(**changes)
        if settings.num_workers == 0 < self.own.num_workers:
            raise ValueError("A loader that has workers cannot go on without.")
        self._shared.settings = settings
        current = None if self._current is None else self._current()
        return None if current is None else current.switch(settings, at=at)

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
        self._lane: deque[Source] = deque()
        self._coming: deque[tuple[Switch, Source | None]] = deque()
        self._closing: list[threading.Thread] = []
        self._plain: Any = None
        self._late_seed: int | None = None
        self._has_ended = False
        self._private = torch.Generator()
        _live.add(self)
        if not _can_switch(self._loader):
            self._plain = plain_iterator(self._loader, owner.own)
            return
        loader = owner.loader
        self._stream = IndexStream(lambda: iter(loader._index_sampler), owner.counters)
        base_seed = _random_seed(self._loader.generator)
        self._private.manual_seed(base_seed & (1 << 63) - 1)
        if owner.own.num_workers > 0:
            self._stream.begin_epoch()  # torch asks a sampler for its iterator twice where there are workers
            self._begin_with(owner.settings, base_seed)
            self._stream.peek()
        elif owner.settings.num_workers == 0:
            self._begin_with(owner.settings, base_seed)
        else:  # torch asks the sampler at the first next() where there are no workers
            self._late_seed = base_seed

    # Iteration

    def __iter__(self) -> "SwitchingIterator":
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        data = next(self._plain) if self._plain is not None else self._next()
        self._owner.counters.num_batches += 1
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
                self._in_background(self._lane.popleft().close)
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
                if not self._loader.persistent_workers:  # as in torch nothing outlives the epoch then
                    self._shutdown_workers()
                raise
            else:
                if source.switch is not None:
                    source.switch.delivers_s = time.monotonic() - source.switch.asked_s
                    source.switch = None
                return data
            # Not where it is caught: an error in workers that are forked there would be shown with this one.
            self._note(source.settings, failure)
            self.withdraw_to_own()
        if self._has_ended:
            raise StopIteration
        raise RuntimeError("The loader was closed in the middle of an epoch. iter(loader) begins another.")

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

    # Switching

    def switch(self, settings: Settings, *, at: int | None = None) -> Switch | None:
        """Ask for these settings; see `SwitchingLoader.switch`."""
        if self._plain is not None or not self._lane:
            return None  # at the next epoch
        before = self._coming[-1][0].settings if self._coming else self._lane[-1].settings
        if settings.same_workers(before):
            return None
        switch = Switch(settings=settings, asked_s=time.monotonic(), at=at)
        self._owner.counters.switches.append(switch)
        self._coming.append((switch, None))
        self._advance()
        return switch

    def _advance(self) -> None:
        """Bring the next switch a step further: start workers, or hand over to those that are ready."""
        while self._coming:
            switch, source = self._coming[0]
            try:
                if source is None:
                    source = self._make(switch.settings, deferred=True)
                    self._coming[0] = (switch, source)
                self._stream.limit = switch.at
                ready = source.is_ready(READY_LIMIT_S)
            except PoolFailedError as failure:
                self._coming.popleft()
                self._drop(switch.settings, source, failure)
                continue
            if not ready or (switch.at is not None and not self._stream.is_held_back):
                return
            self._coming.popleft()
            self._hand_over(switch, source)

    def _hand_over(self, switch: Switch, source: Source) -> None:
        """Feed these workers from now on. Those before them deliver what they were given."""
        switch.start_s = source.start_s
        self._stream.limit, switch.at = None, self._stream.position
        self._lane[-1].is_fed = False
        self._lane.append(source)
        source.switch = switch
        source.feed()

    def _make(self, settings: Settings, *, deferred: bool, base_seed: int | None = None) -> Source:
        """Raises PoolFailedError for settings on trial and for workers that start later."""
        owner = self._owner
        if base_seed is None:
            base_seed = _random_seed(self._private)
        common = (self._loader, settings, self._stream, base_seed, owner.table, owner.sample_error)
        if settings.num_workers == 0:
            return InProcess(*common)
        on_trial = not settings.same_workers(owner.own)
        try:
            return Pool(*common, on_trial=on_trial, deferred=deferred, hang_s=owner.hang_s)
        except Exception as error:
            if error is self._stream.error or not (on_trial or deferred):
                raise
            raise PoolFailedError("its workers did not start") from error

    def _begin_with(self, settings: Settings, base_seed: int | None = None) -> None:
        """The lane is empty: fill it with these settings, or where they fail with the caller's."""
        try:
            source = self._make(settings, deferred=False, base_seed=base_seed)
        except PoolFailedError as failure:
            self._note(settings, failure)
            source = self._make(self._owner.own, deferred=False, base_seed=base_seed)
        self._lane.append(source)

    # Trouble

    def _drop(self, settings: Settings, source: Source | None, failure: PoolFailedError) -> None:
        """These settings never got an index; the ones before them go on."""
        self._note(settings, failure)
        if source is not None:
            self._in_background(source.kill)
        if self._stream.limit is not None:
            self._stream.limit = None
            self._lane[-1].feed()

    def _note(self, settings: Settings, failure: PoolFailedError) -> None:
        owner, each = self._owner, failure.__cause__
        while each is not None:  # what they refer to keeps the workers' queues open
            traceback.clear_frames(each.__traceback__)
            each = each.__cause__ or each.__context__
        owner.withdrawn.append(Withdrawn(settings=settings, reason=str(failure), error=failure.__cause__))
        if owner.settings.same_workers(settings):
            owner.settings = owner.own

    def withdraw_to_own(self) -> None:
        """Read again with the caller's settings whatever other workers were asked for and have not delivered."""
        if self._plain is not None:
            return
        for source in self._lane:
            self._stream.take_back(source.issued.values())
            source.issued.clear()
        for source in (*self._lane, *(source for _, source in self._coming if source is not None)):
            self._in_background(source.kill)
        self._lane.clear()
        self._coming.clear()
        self._stream.limit = None
        self._owner.settings = self._owner.own
        self._begin_with(self._owner.own)

    # Ends

    def _in_background(self, close: Callable[[], None]) -> None:
        """End a pool. Nothing holds it then: up to 32 page-locked batches go with it, 16 GB of 512 images."""
        thread = threading.Thread(target=close, name="loadtune-end-workers", daemon=True)
        self._closing = [other for other in self._closing if other.is_alive()]
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads
            close()
        else:
            self._closing.append(thread)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin the next epoch with the workers that are there: what `persistent_workers` asks for."""
        if self._plain is not None:
            self._plain = plain_iterator(loader, self._owner.own, before=self._plain)
            return
        while len(self._lane) > 1:
            self._in_background(self._lane.popleft().close)
        self._stream.begin_epoch()
        if not self._lane:  # closed
            self._begin_with(self._owner.settings)
            return
        try:
            self._lane[0].begin_epoch(loader)
        except PoolFailedError as failure:
            self._note(self._lane[0].settings, failure)
            self.withdraw_to_own()
        self._stream.peek()

    def _shutdown_workers(self, patience_s: float | None = None) -> None:
        """End all workers, those included that are starting. Returns when they are gone."""
        if not self._is_mine():
            return
        if self._plain is not None:
            getattr(self._plain, "_shutdown_workers", lambda: None)()
            return
        coming = [source for _, source in self._coming if source is not None]
        self._coming.clear()
        for source in coming:
            source.kill()
        while self._lane:
            self._lane.popleft().close(patience_s)
        deadline = time.monotonic() + _CLOSE_S
        for thread in self._closing:
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
