"""The tuner of one loader: watches its steps, switches its workers once, corrects that once, then rests.

`Account.state` goes from ``watching`` to ``starting`` where the loop waits for data, to ``judging`` once the other
workers deliver, and to ``resting``; or to ``watching``, for one correction. Each of these but ``starting`` has a method
of its name, which looks at what was measured. Whatever goes wrong ends the tuner, not the training: see `guard`.
"""

import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils.data import RandomSampler

from loadtune.errors import raised_by_handler
from loadtune.inflight import account as told
from loadtune.inflight import gates, limits, measure
from loadtune.inflight.account import Account
from loadtune.inflight.environment import TEST_VARIABLE, Options, equal_share, num_ranks
from loadtune.inflight.limits import Clocks
from loadtune.inflight.measure import ACT, GROUP, Reading, Steps, Work
from loadtune.inflight.ranks import Ranks
from loadtune.stream import torch_private as private
from loadtune.stream import worker_init
from loadtune.stream.pool import RandomSamplesError
from loadtune.stream.switching import SwitchingIterator
from loadtune.stream.worker_rows import is_random
from loadtune.units import counted

_STEP_UP, _TRIES = 0.08, 2
"""Share of the time that a loop waits from which more workers are tried although the clocks say that these are enough;
and switches, before the tuner rests."""
_RESTING = 13 * GROUP
"""Steps between two looks of a tuner that rests."""
_LOOKING = ("watching", "judging", "resting")
_SETTLED = ("resting", "left alone")
_FORK_CPU_S, _IMPORT_CPU_S = 0.02, 3.0
"""CPU seconds in which a worker starts, until they are measured: a forked one, and one that imports torch."""
_CLEAR = 0.1
"""Share by which a whole epoch is faster than the batches before the change, so that it is no chance."""
_STARTING_S = 0.01
"""Seconds of the loop for each worker that starts."""
_LOOKS_AGAIN, _OTHER = 4, 0.2
"""Times at most that a loop which waits looks again, because its cores or its pace are others than when it decided (a
peer was the slower one then); and by how much."""
_STREAM = "another number changes the order of an IterableDataset's samples, or how often each is read"


class Shared:
    """What the tuners of a process share. A forked process has nothing of its parent's."""

    _of_process: ClassVar[dict[int, "Shared"]] = {}

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """One thread at a time takes a tuner. A sampler may iterate another loader meanwhile."""
        self.blocked_s = 0.0
        """Seconds in ``next()`` of all loaders: they are no step of another one."""
        self.trying: Tuner | None = None
        """One tuner at a time changes something."""
        self.tuners: list[Tuner] = []
        self.known: dict[Any, list[Tuner]] = {}
        """By dataset, settings and place in the code."""
        self.ranks: Ranks | None = None
        """None: no process group of several ranks was seen."""

    @classmethod
    def here(cls) -> "Shared":
        return cls._of_process.setdefault(os.getpid(), cls())

    def cores(self) -> float:
        """Of this rank."""
        return max(1.0, equal_share() if self.ranks is None else self.ranks.cores())


class Tuner:
    """Of the iterators over one dataset that begin at one place; the newest of them is watched."""

    iterator: Any
    view: Any
    sampler: Any
    trust: Any
    """Of the iterator that is watched. None: there is none, or it has ended."""

    def __init__(
        self,
        account: Account,
        loader: Any,
        options: Options,
        replayed: Account | None = None,
        learnt_file: Path | None = None,
    ) -> None:
        """``replayed``: repeat its switches in place of tuning. ``learnt_file``: for what is found."""
        self.account, self.options, self.replayed, self.learnt_file = account, options, replayed, learnt_file
        self.shared, self.lock = Shared.here(), threading.RLock()
        self.own, self.prefetch_factor = loader.num_workers, loader.prefetch_factor or 2
        self.is_stream = loader._dataset_kind != private.MAP_STYLE
        self.advises = self.is_stream or options.dry_run
        self.shards = limits.num_shards(loader.dataset) if self.is_stream else None
        self.source: Callable[[], Any] = lambda: None
        """The loader that begins."""
        self.watched: Callable[[], Any] = lambda: None
        self.release()
        self.known_sampler: tuple[bool, str | None] = (False, None)
        """Whether an earlier epoch looked at enough of its batches, and why it may not be asked ahead."""
        self.is_dead, self.epoch = False, -1
        self.opening_s = 0.0
        """Seconds in which the workers of this epoch started, until its first batch came."""
        self.target: int | None = None
        """Workers with which an epoch begins. None: the user's."""
        self.init_reason = worker_init.reason_against(loader.worker_init_fn, self.own)
        self.told_workers = limits.MOST if self.several_ranks else None
        """What its ``worker_init_fn`` gets as their number: ranks multiply it, and their numbers may differ."""
        self.known: list[Any] | None = []
        self.must_show = options.exact
        """See `IndexStream`; None: other workers delivered. Until then with --exact no epoch begins with them."""
        self.num_to_compare = gates.COMPARED if self.own == 0 else 0
        """Batches of other workers that the training process still has to read, too."""
        self.tried: list[int] = []
        self.change: tuple[int, Reading] | None = None
        """The newest: workers before it, and what was measured with them. None: none."""
        self.is_for_next = False
        self.before_epoch_s: float | None = None
        """Whether that waits for the next epoch; and seconds of epochs before it, which a whole epoch has to beat."""
        self.num_looks, self.decided_s = 0, 0.0
        """Times that it watched again; seconds a batch when it began to rest."""
        self.cores = self.shared.cores()
        """Of this rank, when that was last asked for."""
        self.cpu_rate = self.own_cpu_s = 0.0
        """Cores that its workers keep busy; and CPU seconds in ``next()`` where it has none."""
        self.epoch_then: tuple[int, int, float] | None = None
        """When this epoch began: workers, batches so far, seconds so far. None: it is not whole with these workers."""
        is_forked = private.start_method(loader.multiprocessing_context) == "fork"
        self.start_cpu_s = _FORK_CPU_S if is_forked else _IMPORT_CPU_S
        self.steps = Steps(-1)
        self.clocks: Clocks | None = None
        """As they were read when these workers had delivered their first batches. None: they have not."""
        account.state = "watching" if replayed is None else "replaying"
        account.reason = _STREAM if self.is_stream else None
        if learnt_file is not None and (found := told.read_learnt(learnt_file, account)) is not None:
            self._begin_with(found)

    @property
    def several_ranks(self) -> bool:
        return self.shared.ranks is not None or num_ranks() > 1

    def say(self, text: str) -> None:
        told.say(self.account, text)
        told.write_own(self.options.folder)

    def _begin_with(self, found: Account) -> None:
        """What an earlier run found, within what this machine has now."""
        number = min(found.num_workers, self._bound(Work(load_s=found.load_s or 0, cpu_s=found.cpu_s or 0), found).most)
        is_less = number == self.own or (number > self.own) != (found.num_workers > self.own)
        if is_less or (found.draws_random and self.options.exact):
            return
        first = ("first_samples_per_s", "first_blocked_fraction", "first_begin_s", "first_epoch_s", "batch_size")
        for name in ("load_s", "cpu_s", "batch_bytes", "batch_tensors", "draws_random", *first):
            setattr(self.account, name, getattr(found, name))
        self.target = number
        self.say(f"begins with {counted(number, 'worker')}, as an earlier run found")

    # The life of an iterator

    def open(self, loader: Any) -> tuple[Any, ...]:
        """Begin an epoch. Raises what torch's iterator would raise. What it gives is the iterator's and goes with it;
        `begin` borrows it."""
        asked_s = time.perf_counter()
        sampler = gates.WatchedSampler(loader, *self.known_sampler)
        view = private.LoaderView(loader, sampler)
        self.source = weakref.ref(loader)
        at_once = [number for batch, number in self._replayed(self.epoch + 1) if batch == 0]
        is_ready = self.target is not None and (self.own > 0 or sampler.is_known) and not self.must_show
        number = at_once[-1] if at_once else int(self.target or 0) if is_ready else self.own
        trust = gates.Trust(view, sampler)
        if self.target is not None and (reason := trust.reason_against() or self.init_reason) is not None:
            self._left(reason)
            number = self.own
        ways: dict[str, Any] = {"known": self.known, "exact": self.must_show, "told_workers": self.told_workers}
        iterator = SwitchingIterator(view, number, may_ask_ahead=sampler.may_ask_ahead, **ways)
        self.opening_s = time.perf_counter() - asked_s
        return iterator, view, sampler, trust

    def release(self) -> None:
        """The dataset, and whatever else belongs to an iterator, is not kept beyond its life."""
        self.iterator = self.view = self.sampler = self.trust = None

    def _replayed(self, epoch: int) -> list[tuple[int, int]]:
        """The switches to be repeated in this epoch: batch, workers."""
        switches = () if self.replayed is None else self.replayed.switches
        return [(each["batch"], each["num_workers"]) for each in switches if each["epoch"] == epoch]

    def begin(self, watched: Any) -> None:
        """The epoch of this iterator, which `open` gave or which begins again, is the one that is watched."""
        with self.lock:
            self.watched = weakref.ref(watched)
            self.guard(self._begin, watched, of=watched)

    def _begin(self, watched: Any) -> None:
        self.iterator, self.view, self.sampler, self.trust = watched._opened
        self.epoch += 1
        self.last_end: float | None = None
        self.blocked_then_s = 0.0
        self.num_delivered = 0
        number = self.iterator.num_delivering
        self._delivering(number, 0)
        self.epoch_then = number, self.account.num_batches, self.account.total_s
        if self.must_show and self.target is not None:
            self.iterator.switch(self.target)
        for batch, replayed in self._replayed(self.epoch):
            if batch > 0:
                self.iterator.switch(replayed, at=batch)

    def end(self, is_exhausted: bool = False) -> None:
        """No more batches come in this epoch. ``is_exhausted``: its workers have just ended, as its last step did."""
        if self.iterator is None:
            return
        self.known_sampler = self.sampler.is_known, self.sampler.reason
        if is_exhausted and self.last_end is not None:
            now = time.perf_counter()
            self.account.blocked_s += now - self.begun
            self.account.total_s += now - self.last_end - (self.shared.blocked_s - self.blocked_then_s)
            self.last_end = None
            self._whole_epoch()
        if self.shared.trying is self and self.account.state != "judging":
            self.shared.trying = None
        if not self.view.pin_memory and not sys.is_finalizing() and torch.cuda.is_available():
            self.account.advise("pin_memory=True: batches go to the GPU while it computes")
        begins_often = self.epoch > 0 and not self.view.persistent_workers and self.own > 0
        if begins_often and self.account.begins_s > 0.05 * self.account.total_s:
            shuffles = isinstance(self.view.sampler, RandomSampler)
            order = "; shuffling then differs" if shuffles else ""
            self.account.advise(f"persistent_workers=True starts workers once, not in each epoch{order}")
        if is_exhausted:
            self.release()

    def _whole_epoch(self) -> None:
        """What an epoch took, with the start and the end of its workers. Where epochs are too short for a window of
        steps, the workers on trial are judged by that."""
        account = self.account
        if self.epoch_then is None or self.epoch_then[1] == account.num_batches:
            return
        number, batches, seconds = self.epoch_then
        account.epoch_batches, epoch_s = account.num_batches - batches, account.total_s - seconds
        account.num_epochs, account.epochs_s = account.num_epochs + 1, account.epochs_s + epoch_s
        if number == self.own:
            account.first_epoch_s = account.epochs_s / account.num_epochs
        if account.state == "starting" and self.is_for_next:
            self.before_epoch_s = epoch_s
        if self.learnt_file is not None and account.state == "resting" and number == self.target and account.load_s:
            told.write_learnt(self.learnt_file, account)
        if self.change is None or number == self.change[0]:
            return
        is_judging, before_s = account.state == "judging", self.before_epoch_s
        limit_s = 0.0 if before_s is None else (0.95 if is_judging else 1.0) * before_s
        if before_s is None and len(self.steps.blocked) < 2 * GROUP:
            limit_s = (1 - _CLEAR) * account.epoch_batches * self.change[1].total_s
        if is_judging and epoch_s < limit_s:
            self.shared.trying = None
            self.say(account.change_text())
            self._rest("workers")
        elif before_s is not None and account.num_epochs == 1 and epoch_s > limit_s:
            self._take_back(self.change[0])

    def guard(self, act: Callable[..., None], *args: Any, of: Any) -> bool:
        """Run a part of the tuner and return True, while the iterator ``of`` is watched; another thread may have begun
        to iterate the same loader. An error ends the tuner; the loop goes on with the user's settings."""
        with self.lock:
            if self.is_dead or self.watched() is not of:
                return False
            self._guarded(act, *args)
            return True

    def _guarded(self, act: Callable[..., None], *args: Any) -> None:
        try:
            act(*args)
        except Exception as error:
            if raised_by_handler(error):
                raise
            self.is_dead = True
            with suppress(Exception):
                self._leave(f"the tuner failed ({type(error).__name__}: {error})")
            self.release()
            if os.environ.get(TEST_VARIABLE):
                raise

    def _leave(self, reason: str) -> None:
        """Alone from now on, with the user's workers. Where there are none, what others loaded is not trusted."""
        if self.trust.in_process:
            self.iterator.withdraw_to_own()
        else:
            self._go_back(self.own)
        self._left(reason)

    def _go_back(self, num_workers: int) -> None:
        """Workers that start now have the dataset as it is now. Where it was changed, the present ones stay until the
        epoch ends: the user's own would not see the change either."""
        self.iterator.stay()
        if self.trust.changed() is None:
            self.iterator.switch(num_workers)

    def _left(self, reason: str) -> None:
        if self.shared.trying is self:
            self.shared.trying = None
        if self.learnt_file is not None:  # what an earlier run found is no longer right
            with suppress(OSError):
                self.learnt_file.unlink()
        self.account.state, self.account.reason, self.target = "left alone", reason, None
        self.account.num_workers = self.own
        self.say(f"left at {counted(self.own, 'worker')}: {reason}")

    # Each step

    def before_step(self) -> None:
        entered, self.num_ready = time.perf_counter(), 0
        state, has_workers = self.account.state, self.steps.num_workers > 0
        has_copies = self.iterator.is_switching or (self.trust.in_process and has_workers)
        if has_copies and not self.is_stream and (reason := self.trust.changed()) is not None:
            self._leave(reason)
        if has_workers and state in ("watching", "judging"):
            depth = private.queue_depth(self.iterator.delivering())
            self.num_ready = 0 if depth is None else depth.ready
        self.thread_s = 0.0 if has_workers else time.thread_time()
        self.begun = time.perf_counter()
        self.account.hook_s += self.begun - entered

    def checked(self, batch: Any, watched: Any) -> Any:
        """What the loop gets for a batch. Where the user has no workers, the training process reads the first ones of
        others, too, and raises what it would raise without them."""
        if self.num_to_compare and self.watched() is watched and watched._inner.num_delivering:
            own = watched._inner.last_in_process()
            self.guard(self._compare, batch, own, of=watched)
            return own
        return batch

    def _compare(self, batch: Any, own: Any) -> None:
        self.num_to_compare -= 1
        self.account.draws_random |= self.iterator.table.row(None).draws > 0
        if not gates.same_batch(batch, own, values=not self.account.draws_random):
            self._leave("a worker read other samples than the training process")

    def after_step(self, batch: Any) -> None:
        ended, account = time.perf_counter(), self.account
        blocked_s, between_s, complete = ended - self.begun, 0.0, False
        if not self.steps.num_workers:
            self.own_cpu_s += time.thread_time() - self.thread_s
            if self.num_delivered == 0:  # what draws once, to prepare itself, is not random
                self.iterator.table.row(None).draws = 0.0
        if self.num_delivered < 3:
            largest = max((account.batch_bytes, account.batch_tensors), limits.batch_size(batch))
            account.batch_bytes, account.batch_tensors = largest
        self.num_delivered += 1
        account.num_batches += 1
        if self.last_end is None:
            blocked_s, self.opening_s = blocked_s + self.opening_s, 0.0
            account.begins_s += blocked_s
            if self.steps.num_workers != self.own:
                self._say_what_differs()
            if account.first_begin_s is None and self.steps.num_workers == self.own:
                account.first_begin_s = blocked_s
        else:
            between_s = max(0.0, self.begun - self.last_end - (self.shared.blocked_s - self.blocked_then_s))
            complete = self.steps.add(blocked_s, between_s, self.num_ready)
            if self.steps.skip == 1:
                self.clocks = self._read_clocks()
        self.shared.blocked_s += blocked_s
        self.blocked_then_s = self.shared.blocked_s
        if (number := self.iterator.num_delivering) != self.steps.num_workers:
            self._delivering(number, self.iterator.delivering().begins_at)
        rests = account.state == "resting" and self.shared.ranks is None  # where a rank rests, others may begin to wait
        after = _RESTING if rests else 2 * GROUP
        if self.iterator.withdrawn:
            failed = self.iterator.withdrawn.pop()
            self._note_draws()
            is_kept, count = isinstance(failed, RandomSamplesError), counted(failed.num_workers, "worker")
            self._leave(f"{failed}, and --exact keeps samples as they are" if is_kept else f"{count} failed ({failed})")
            if failed.__cause__ is not None:
                self.say(str(failed.__cause__))
        elif complete and account.state in _LOOKING and len(self.steps.blocked) >= after:
            reading = self.steps.reading()
            if reading and reading.num_steps >= measure.num_needed(self.steps.num_workers, reading.total_s):
                self._look(reading)
        account.blocked_s += blocked_s  # last: a batch of workers that deliver from now on counts as theirs
        account.total_s += blocked_s + between_s
        self.last_end = time.perf_counter()
        account.hook_s += self.last_end - ended
        if self.options.until_tuned and account.state in _SETTLED:
            self._end_script()

    def _end_script(self) -> None:
        """Raises SystemExit where the loaders that train have settled: not in a validation, nor where others go on."""
        others = (each.account.state for each in self.shared.tuners if each.account.num_batches >= 2 * GROUP)
        is_alone = not self.several_ranks and threading.current_thread() is threading.main_thread()
        if is_alone and torch.is_grad_enabled() and all(state in _SETTLED for state in others):
            self.say("ends the script, as --until-tuned asks for")
            raise SystemExit(0)

    def _delivering(self, number: int, batch: int) -> None:
        """So many workers deliver from this batch of the epoch on."""
        account = self.account
        if batch > 0 or number != self.own:
            account.switches.append({"epoch": self.epoch, "batch": batch, "num_workers": number})
            self._say_what_differs()
            self.known, self.must_show = None, False
        if number != self.steps.num_workers:
            if account.first_blocked_fraction is None and account.total_s:
                account.first_blocked_fraction = account.blocked_s / account.total_s
            self.steps = Steps(number)
            account.earlier_blocked_s, account.earlier_total_s = account.blocked_s, account.total_s
            account.earlier_begins_s, account.num_epochs, account.epochs_s = account.begins_s, 0, 0.0
            account.samples_per_s, self.epoch_then = None, None
        self.steps.skip, self.clocks, account.num_workers = max(3, 2 * number), None, number
        if number == self.target and account.state == "starting":
            account.state = "judging"

    def _note_draws(self) -> None:
        draws = self.iterator.table.row(None).draws > 0
        self.account.draws_random |= draws or bool(is_random(self.iterator.workers(), by_worker=self.own > 0))

    def _say_what_differs(self) -> None:
        self._note_draws()
        if worker_init.is_given(self.view.worker_init_fn, self.own):
            number = f"num_workers={self.told_workers} in all ranks" if self.told_workers else "the new num_workers"
            self.say(f"its worker_init_fn gets {number}, as if you had typed it")
        if self.account.draws_random:
            self.say(
                "random augmentation draws other numbers with other workers, as in PyTorch; samples and order stay"
            )

    # What was measured

    def _worker_pids(self) -> list[int]:
        return [worker.pid for worker in getattr(self.iterator.delivering(), "_workers", ())]

    def _read_clocks(self) -> Clocks:
        threads = (f"self/task/{each}" for each in os.listdir("/proc/self/task"))
        trained_s = time.perf_counter(), sum(limits.scheduled_s(threads))
        if not self.steps.num_workers:
            return Clocks(self.num_delivered, self.own_cpu_s, trained_s=trained_s)
        read = limits.read_clocks(self.iterator.workers(), self._worker_pids(), self.num_delivered)
        return read._replace(trained_s=trained_s)

    def _work(self, reading: Reading) -> Work | None:
        """What a batch takes, as the clocks say by now. None: too little was loaded since."""
        if self.clocks is None:
            return None
        rows, now = self.iterator.workers(), self._read_clocks()
        self._note_draws()
        work = now.work_since(self.clocks, reading, self.steps.num_workers, self.shared.cores())
        if work is not None and rows:
            self.start_cpu_s = max(_FORK_CPU_S, (now.cpu_s - now.batches * work.cpu_s) / len(rows))
        return work

    def _bound(self, work: Work, account: Account, worker_pid: int | None = None) -> limits.Bound:
        self.cores = self.shared.cores()
        others = sum(each.cpu_rate for each in self.shared.tuners if each is not self and each.watched() is not None)
        left, most = self.cores - others, self.options.max_workers
        self.bound = limits.most_workers(work, account, self.prefetch_factor, left, most, worker_pid, self.shards)
        own_ahead = self.own * self.prefetch_factor
        if self.sampler is not None and not self.sampler.may_ask_ahead() and own_ahead < self.bound.most:
            self.bound = limits.Bound(own_ahead, "the sampler")
        return self.bound

    def _best_number(self, reading: Reading, work: Work, most: int, *, from_next: bool = False) -> tuple[int, float]:
        """How many workers end the rest soonest, or a whole epoch, and the seconds that they save."""
        try:  # those of another epoch, too, where workers are persistent
            length = len(self.sampler) * (2 if self.view.persistent_workers else 1)
            is_whole = from_next or self.options.until_tuned or self.advises  # the number is for other epochs
            left: float = length - (0 if is_whole else self.num_delivered)
        except Exception:  # a sampler without a length, or with one that only its own loader can tell
            left = math.inf

        def start_s(number: int) -> float:
            return self.start_cpu_s * max(1.0, number / self.cores) + _STARTING_S * number

        return measure.best_number(reading, work, most, left, start_s)

    # States

    def _look(self, reading: Reading) -> None:
        """What the present state makes of what was measured. Ranks step together: while one waits, nobody knows how
        long a step would take, and each has the workers that its cores allow."""
        if self.shared.ranks is not None:
            work = self._work(reading)
            if work is not None and max(self.shared.tuners, key=lambda tuner: tuner.account.total_s) is self:
                done, num = self.account.state == "resting", len(self.account.switches)
                self.shared.ranks.say(work, reading, is_settled=done, num_switches=num)
            reading = replace(reading, peers_wait=self.shared.ranks.peers_wait())
        if self.several_ranks:
            reading = replace(reading, step_s=0.0)
        account = self.account
        account.batch_size = int(self.iterator.batch_size() or self.view.batch_size or 1)
        ranks = self.shared.ranks
        account.num_ranks = 1 if ranks is None else max(1, len(ranks.words))
        made, num = self._work(reading), self.steps.num_workers
        able_s = made.load_s / num if made is not None and num else 0.0  # by the workers' own clocks
        account.samples_per_s = account.batch_size / max(reading.sustained_s, able_s)
        # Workers that rested while their queue was full deliver less at first than they can.
        first_s = min(reading.sustained_s, max(able_s, reading.step_s) if able_s and reading.waits else math.inf)
        account.first_samples_per_s = account.first_samples_per_s or account.batch_size / first_s
        getattr(self, f"_{account.state}")(reading)

    def _watching(self, reading: Reading) -> None:
        work, other = self._work(reading), self.shared.trying
        self.account.advice = [each for each in self.account.advice if not each.startswith("num_workers=")]
        self.account.try_saves = 0.0
        if not reading.waits:
            if self.shared.ranks is None or self.shared.ranks.words:  # a peer that waits says so within seconds
                self._rest("the step")
            return
        is_busy = other not in (None, self) and other.watched() is not None
        if is_busy or work is None:
            return
        now = self.steps.num_workers
        self.cpu_rate = work.cpu_s / reading.total_s if now else 0.0
        bound = self._bound(work, self.account, next(iter(self._worker_pids()), None))
        least_s = partial(measure.within_cores_s, work, reading.step_s)
        may_s = (1 - ACT) * reading.total_s
        is_over = now > bound.most and bound.reason == "cores" and bound.most not in self.tried
        if is_over and least_s(bound.most) <= may_s:
            self._switch(bound.most, reading, work)
            return
        want, saved_s = self._best_number(reading, work, bound.most)
        is_bound = measure.needed(work, reading.step_s) > bound.most
        if 0.8 * now <= want <= 1.2 * now and now > 1 and reading.waiting_fraction > _STEP_UP:
            want = min(bound.most, max(now + 1, round(1.3 * now)))
        if want <= now or any(abs(want / one - 1) < 0.15 for one in self.tried):
            self._rest(bound.reason if is_bound else "workers", bound.text if is_bound else None)
        elif least_s(want) > may_s:
            self._rest("cores", bound._replace(reason="cores").text)
        elif saved_s <= 0:
            self._from_next_epoch(reading, work, bound.most)
        else:
            self._switch(want, reading, work)

    def _from_next_epoch(self, reading: Reading, work: Work, most: int) -> None:
        """The rest of this epoch is too short for more workers, but the next one may begin with them."""
        want, saved_s = self._best_number(reading, work, most, from_next=True)
        is_kept = self.view.persistent_workers or self.several_ranks  # and ranks step together
        if saved_s <= 0 or want <= self.steps.num_workers or is_kept:
            self._rest("workers", "an epoch is too short for more workers to pay off")
        else:
            self._switch(want, reading, work, at_once=False)

    def _switch(self, want: int, reading: Reading, work: Work, *, at_once: bool = True) -> None:
        now = self.steps.num_workers
        reason = self.trust.reason_against() or self.init_reason
        if self.account.draws_random and self.options.exact:
            reason = "its samples are random, and --exact keeps their random numbers"
        if self.advises:
            least_s = max(reading.step_s + reading.handover_s, work.cpu_s / self.cores)
            saved_s = reading.total_s - measure.predicted_s(work, least_s, want)
            self.account.try_saves = max(0.0, saved_s / reading.blocked_s) if reading.step_s else 0.0
            self.account.advise(f"num_workers={want}")
            self._rest("workers", f"{_STREAM if self.is_stream else '--dry-run'}; try num_workers={want}")
        elif reason is not None:
            self._leave(reason)
        else:
            self._say_what_differs()
            self.change, self.target, self.is_for_next, account = (now, reading), want, not at_once, self.account
            self.before_epoch_s = account.epochs_s / account.num_epochs if account.num_epochs else None
            self.account.load_s, self.account.cpu_s = work.load_s, work.cpu_s
            self.tried.append(want)
            self.shared.trying, self.account.state = self, "starting"
            self.say(f"tries {counted(want, 'worker')}{'' if at_once else ' from the next epoch on'}")
            if at_once:
                self.iterator.switch(want)

    def _judging(self, reading: Reading) -> None:
        assert self.change is not None
        (was, before), now = self.change, self.steps.num_workers
        if self.is_for_next:
            return
        fewer = now < was
        gained = measure.has_gained(reading, before, now, may_tie=fewer or self.several_ranks)
        if gained is None:
            return
        if not gained:
            self._take_back(was)
            return
        self.shared.trying = None
        is_bound = reading.waits and now >= self.bound.most
        limit = "the step" if not reading.waits else self.bound.reason if is_bound else "workers"
        self.say(f"{self.account.change_text()}; now limited by {limit}")
        work, can_correct = self._work(reading), len(self.tried) < _TRIES and not fewer and not self.several_ranks
        if work is not None and self.learnt_file is not None:
            self.account.load_s, self.account.cpu_s = work.load_s, work.cpu_s
            told.write_learnt(self.learnt_file, self.account)
        idle = now if work is None else measure.needed(work, reading.total_s)
        if can_correct and reading.waits:
            self.account.state = "watching"
        elif can_correct and work is not None and now > 2 and idle <= 0.65 * now:
            self._switch(idle, reading, work)
        else:
            self._rest(limit, self.bound.text if is_bound else None)

    def _take_back(self, was: int) -> None:
        self.shared.trying, self.target = None, None if was == self.own else was
        self.say(f"{was} → {counted(self.steps.num_workers, 'worker')} gained nothing; back to {was}")
        self._go_back(was)
        self._rest("handing batches over")
        self.account.num_workers, self.account.reason = was, f"num_workers={self.steps.num_workers} gained nothing"

    def _rest(self, bottleneck: str, reason: str | None = None) -> None:
        account = self.account
        account.bottleneck, account.state, self.decided_s = bottleneck, "resting", 0.0
        if reason is not None and reason != account.reason:
            self.say(f"stays at {counted(self.steps.num_workers, 'worker')}: {reason}")
        account.reason = reason
        self.steps = Steps(self.steps.num_workers, skip=self.steps.skip)

    def _resting(self, reading: Reading) -> None:
        self.decided_s = self.decided_s or reading.total_s
        self.steps = Steps(self.steps.num_workers)
        other_pace = abs(reading.total_s / self.decided_s - 1) > _OTHER or self.account.bottleneck == "the step"
        other_cores = abs(self.shared.cores() / self.cores - 1) > _OTHER
        if self.advises or (self.num_looks < _LOOKS_AGAIN and reading.waits and (other_pace or other_cores)):
            self.num_looks += 1
            self.tried.clear()
            self.account.state = "watching"
            self._watching(reading)
