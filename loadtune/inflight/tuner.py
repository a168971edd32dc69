"""The tuner of one loader: reads clocks and steps, lets `decide` say what to do, and does it.

Whatever goes wrong ends the tuner, not the training: see `guard`.
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
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch.utils.data import RandomSampler

from loadtune.decide import inflight as decide
from loadtune.decide.advice import MOST_S, UNTIL_TUNED_S, AtRest
from loadtune.decide.inflight import Action, Bound, Job, Reading, State
from loadtune.decide.steps import GROUP, Steps, num_skipped
from loadtune.errors import raised_by_handler
from loadtune.host.processes import cpu_use, proportional_bytes
from loadtune.host.usable import equal_share, num_ranks
from loadtune.inflight import readings, words
from loadtune.inflight.account import KEPT_EPOCHS, TEST_VARIABLE, Account, Options, read_learnt, write_learnt, write_own
from loadtune.inflight.readings import Ranks
from loadtune.inflight.spare import Advice
from loadtune.model.workers import MOST, Queued, Work, most_workers
from loadtune.records.loading import KEPT_STEPS, changes_text
from loadtune.records.statistics import LOOKS
from loadtune.stream import torch_private as private
from loadtune.stream.looks import Looks
from loadtune.stream.pool import RandomSamplesError
from loadtune.stream.switching import SwitchingIterator
from loadtune.stream.trust import Trust, WatchedSampler, gets_number, same_batch
from loadtune.stream.worker_rows import is_random, slow_worker
from loadtune.units import counted

_FORK_CPU_S, _IMPORT_CPU_S = 0.04, 3.0
"""CPU seconds in which a worker starts, until they are measured: a forked one, and one that imports torch."""
_COMPARED = 6
"""First batches of other workers that the training process reads, too, where the user has no workers."""


class Shared:
    """What the tuners of a process share. A forked process has nothing of its parent's."""

    _of_process: ClassVar[dict[int, "Shared"]] = {}

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """One thread at a time takes a tuner. A sampler may iterate another loader meanwhile."""
        self.blocked_s = 0.0
        """Seconds in ``next()`` of all loaders: they are no step of another one."""
        self.tuners: list[Tuner] = []
        self.ranks: Ranks | None = None
        """None: no process group of several ranks was seen."""
        self._cpu = cpu_use()

    @classmethod
    def here(cls) -> "Shared":
        return cls._of_process.get(os.getpid()) or cls._of_process.setdefault(os.getpid(), cls())

    def cores(self) -> float:
        """Of this rank."""
        return max(1.0, equal_share() if self.ranks is None else self.ranks.cores())

    def busy_s(self) -> float | None:
        """Seconds in which the usable cores ran something, their mean. None: not known."""
        with suppress(Exception):
            return float(self._cpu.look()["cpu_utilization_fraction"].total)
        return None


class Tuner:
    """Of the iterators over one dataset that begin at one place; the newest of them is watched."""

    iterator: Any
    trust: Any
    """Of the iterator that is watched. None: there is none, or it has ended."""
    parts: Any
    """What its loader is made of. None: as above, or nobody wants to know."""

    def __init__(
        self, account: Account, loader: Any, options: Options, learnt_file: Path | None = None, key: Any = None
    ) -> None:
        """``learnt_file``: for what is found. ``key``: dataset, settings and place in the code: loaders that are made
        anew have the same."""
        self.account, self.options, self.learnt_file, self.key = account, options, learnt_file, key
        self.shared, self.lock = Shared.here(), threading.RLock()
        self.own, self.prefetch_factor = loader.num_workers, loader.prefetch_factor or 2
        self.is_stream = loader._dataset_kind != private.MAP_STYLE
        is_forked = private.start_method(loader.multiprocessing_context) == "fork"
        job = Job(
            own=self.own,
            only_advises=self.is_stream or options.dry_run,
            persistent=loader.persistent_workers,
            may_compare=is_forked,
        )
        self.state = State(job=job)
        self.source: Callable[[], Any] = lambda: None
        """The loader that begins."""
        self.watched: Callable[[], Any] = lambda: None
        self.release()
        self.known_sampler: tuple[bool, str | None] = (False, None)
        """Whether an earlier epoch looked at enough of its batches, and why it may not be asked ahead."""
        self.is_dead, self.epoch = False, -1
        self.opening_s = 0.0
        """Seconds in which the workers of this epoch started, until its first batch came."""
        self.told_workers = MOST if self.several_ranks else None
        """What its ``worker_init_fn`` gets as their number: ranks multiply it, and their numbers may differ."""
        self.known: list[Any] | None = []
        self.must_show = options.exact
        """See `IndexStream`; None: other workers delivered. Until then with --exact no epoch begins with them."""
        self.num_to_compare = _COMPARED if self.own == 0 else 0
        """Batches of other workers that the training process still has to read, too."""
        self.cpu_rate = 0.0
        """Cores that its workers keep busy."""
        self.epoch_then: tuple[int, int, float] | None = None
        """When this epoch began: workers, batches so far, seconds so far. None: it is not whole with these workers."""
        self.last_end: float | None = None
        self.begun = self.blocked_then_s = self.loop_s = 0.0
        self.broken_at: int | None = None
        """Batches of the newest epoch that the loop did not end. None: there was none."""
        self.num_delivered = self.num_ready = 0
        """Of this epoch, and batches that stood ready before this step."""
        self.start_cpu_s = _FORK_CPU_S if is_forked else _IMPORT_CPU_S
        self.told_of: int | None = None
        """The newest number of workers whose gain was said."""
        self.worker_bytes: int | None = None
        """RAM of one of its workers beside its batches: asked once, for it takes 20 ms a gigabyte. None: not yet."""
        self.steps, self.looks = Steps(-1), Looks()
        is_wanted = options.advice and not self.is_stream and account.rank == 0
        self.advice = Advice(account, is_wanted=is_wanted, may_run_s=UNTIL_TUNED_S if options.until_tuned else MOST_S)
        self.clocks: readings.Clocks | None = None
        """As they were read when these workers had delivered their first batches. None: they have not."""
        account.state, account.reason = self.state.stage, words.reason_text("stream") if self.is_stream else None
        if learnt_file is not None and (found := read_learnt(learnt_file)) is not None:
            self._begin_with(found)

    @property
    def several_ranks(self) -> bool:
        return self.shared.ranks is not None or num_ranks() > 1

    @property
    def is_trying(self) -> bool:
        """Whether a change goes on in its epoch: one at a time, as loaders share the machine."""
        return self.iterator is not None and self.state.stage in ("starting", "judging", "comparing")

    @property
    def is_settled(self) -> bool:
        """Whether nothing is changed any more, unless the loop changes, and a gain was told or cannot be."""
        state, gain = self.state, self.account.told_gain()
        will_compare = len(state.phases) == 1 and state.job.may_compare and not self.several_ranks
        is_told = not will_compare or (gain is not None and gain.low is not None)
        is_late = state.rested_s > 3 * decide.REST_S
        return state.stage == "left alone" or (state.stage == "resting" and (is_late or is_told))

    def say(self, text: str) -> None:
        words.say(self.account, text)
        write_own(self.options.folder)

    def _begin_with(self, found: Account) -> None:
        """What an earlier run found, within what this machine has now."""
        kept = found.num_workers if found.kept_workers is None else found.kept_workers
        number = min(kept, self._most(found)[0])
        is_less = number == self.own or (number > self.own) != (kept > self.own)
        if is_less or (found.draws_random and self.options.exact):
            return
        measured = ("load_s", "cpu_s", "batch_bytes", "batch_tensors", "draws_random", "batch_size")
        for name in (*measured, "first_blocked_fraction"):
            setattr(self.account, name, getattr(found, name))
        # What they gain now is not known: they are compared as those that were found in this run.
        self.state, self.account.kept_workers = replace(self.state, target=number, phases=((),)), number
        self.say(f"begins with {counted(number, 'worker')}, as an earlier run found")

    # The life of an iterator

    def open(self, loader: Any) -> tuple[Any, ...]:
        """Begin an epoch. Raises what torch's iterator would raise. What it gives is the iterator's and goes with it;
        `begin` borrows it."""
        asked_s = time.perf_counter()
        sampler = WatchedSampler(loader, *self.known_sampler)
        view = private.LoaderView(loader, sampler)
        self.source, trust, number = weakref.ref(loader), Trust(view, sampler), self.own
        if self.state.target is not None:
            if (reason := trust.reason_against()) is not None:
                self._left(reason)
            elif (self.own > 0 or sampler.is_known) and not self.must_show:
                number = self.state.target
        ways: dict[str, Any] = {"known": self.known, "exact": self.must_show, "told_workers": self.told_workers}
        ways["looks"] = self.looks
        iterator = SwitchingIterator(view, number, may_ask_ahead=sampler.may_ask_ahead, **ways)
        self.opening_s = time.perf_counter() - asked_s
        return iterator, trust, self.advice.parts_of(loader)

    def release(self) -> None:
        """The dataset, and whatever else belongs to an iterator, is not kept beyond its life."""
        self.iterator = self.trust = self.parts = None

    def begin(self, watched: Any) -> None:
        """The epoch of this iterator, which `open` gave or which begins again, is the one that is watched."""
        with self.lock:
            self.watched = weakref.ref(watched)
            self.guard(self._begin, watched, of=watched)

    def _begin(self, watched: Any) -> None:
        self.iterator, self.trust, self.parts = watched._opened
        self.epoch += 1
        self.last_end, self.blocked_then_s, self.num_delivered = None, 0.0, 0
        number = self.iterator.num_delivering
        self._delivering(number, 0)
        self.epoch_then = number, self.account.num_batches, self.account.total_s
        if self.must_show and self.state.target is not None:
            self.iterator.switch(self.state.target)

    def end(self, is_exhausted: bool = False, is_over: bool = False) -> None:
        """No more batches come in this epoch. ``is_exhausted``: its workers have just ended, as its last step did.
        ``is_over``: the loop is over, perhaps before; where it ends at the same batch again, its epochs are so long."""
        if self.iterator is None:
            return
        if is_over and self.last_end is not None:
            same, self.broken_at = self.broken_at == self.num_delivered, self.num_delivered
            if same:
                self._whole_epoch()
        account = self.account
        self.known_sampler = self.trust.sampler.is_known, self.trust.sampler.reason
        if is_exhausted and self.last_end is not None:
            now = time.perf_counter()
            account.blocked_s += now - self.begun
            account.total_s += now - self.last_end - (self.shared.blocked_s - self.blocked_then_s)
            self.last_end = None
            self._whole_epoch()
        view = self.trust.view
        if not view.pin_memory and not sys.is_finalizing() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            account.advise("pin_memory=True: batches go to the GPU while it computes")
        begins_often = self.epoch > 0 and not view.persistent_workers and self.own > 0
        if begins_often and account.begins_s > 0.05 * account.total_s:
            shuffles = isinstance(view.sampler, RandomSampler)
            order = "; shuffling then differs" if shuffles else ""
            account.advise(f"persistent_workers=True starts workers once, not in each epoch{order}")
        self._note_steps()
        if is_exhausted or is_over:
            self.release()

    def _whole_epoch(self) -> None:
        """What an epoch took, with the start and the end of its workers."""
        account = self.account
        if self.epoch_then is None or self.epoch_then[1] == account.num_batches:
            return
        number, batches, seconds = self.epoch_then
        num, epoch_s = account.num_batches - batches, account.total_s - seconds
        account.epoch_batches, batch_s = num, epoch_s / num
        kept = account.first_epochs_s if number == self.own else account.epochs_s
        kept.append(epoch_s)
        del kept[:-KEPT_EPOCHS]
        if account.state == "resting" and number == self.state.target:
            self._learn()
        num_blocks = len(self.steps.blocks) if number == self.steps.num_workers else 0
        times: dict[str, Any] = {"total_s": batch_s, "sustained_s": batch_s, "blocked_s": 0.0, "step_s": 0.0}
        times |= {"epoch_s": epoch_s, "blocks": tuple(each / num for each in kept)}
        whole = Reading(num_workers=number, num_steps=num, **times)
        self._do(decide.after_epoch(self.state, whole, num_blocks, several_ranks=self.several_ranks))
        if num_blocks < LOOKS[0]:
            self._tell(whole, None)

    def _learn(self) -> None:
        if self.learnt_file is not None and self.account.load_s:
            write_learnt(self.learnt_file, self.account)

    def guard(self, act: Callable[..., None], *args: Any, of: Any) -> bool:
        """Run a part of the tuner and return True, while the iterator ``of`` is watched; another thread may have begun
        to iterate the same loader. An error ends the tuner; the loop goes on with the user's settings."""
        with self.lock:
            if self.is_dead or self.watched() is not of:
                return False
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
            return True

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
        if self.learnt_file is not None:  # what an earlier run found is no longer right
            with suppress(OSError):
                self.learnt_file.unlink()
        self.state = replace(self.state, stage="left alone", target=None)
        account = self.account
        account.state, account.reason, account.kept_workers, account.num_workers = "left alone", reason, None, self.own
        self.say(f"left at {counted(self.own, 'worker')}: {reason}")

    # Each step

    def before_step(self) -> None:
        entered, self.num_ready = time.perf_counter(), 0
        has_workers = self.steps.num_workers > 0
        has_copies = self.iterator.is_switching or (self.trust.in_process and has_workers)
        if has_copies and (reason := self.trust.changed()) is not None:
            self._leave(reason)
        if has_workers and self.state.stage != "left alone":
            depth = private.queue_depth(self.iterator.delivering())
            self.num_ready = 0 if depth is None else depth.ready
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
        if not same_batch(batch, own, values=not self.account.draws_random):
            self._leave("a worker read other samples than the training process")

    def after_step(self, batch: Any) -> None:
        ended, account = time.perf_counter(), self.account
        blocked_s, between_s, complete = ended - self.begun, 0.0, False
        if not self.steps.num_workers and self.num_delivered == 0:  # what draws once, to prepare itself, is not random
            self.iterator.table.row(None).draws = 0.0
        if self.num_delivered < 3:
            largest = max((account.batch_bytes, account.batch_tensors), readings.batch_size(batch))
            account.batch_bytes, account.batch_tensors = largest
        if not self.advice.is_over:
            self.advice.drawn.append(self.iterator.last_drawn())
        self.num_delivered += 1
        account.num_batches += 1
        if self.last_end is None:
            blocked_s, self.opening_s = blocked_s + self.opening_s, 0.0
            account.begins_s += blocked_s
            if self.steps.num_workers != self.own:
                self._say_what_differs()
        else:
            between_s = max(0.0, self.begun - self.last_end - (self.shared.blocked_s - self.blocked_then_s))
            complete = self.steps.add(blocked_s, between_s, self.num_ready)
            if self.steps.skip == 1:
                self.clocks = self._read_clocks()
        self.shared.blocked_s += blocked_s
        self.blocked_then_s = self.shared.blocked_s
        if (number := self.iterator.num_delivering) != self.steps.num_workers:
            self._delivering(number, self.num_delivered - 1)
        if self.iterator.withdrawn:
            self._failed(self.iterator.withdrawn.pop())
        elif self.advice.spare is not None:
            self._advise(blocked_s + between_s)
        elif complete:
            self._look()
        account.blocked_s += blocked_s  # last: a batch of workers that deliver from now on counts as theirs
        account.total_s += blocked_s + between_s
        self.loop_s += blocked_s + between_s
        self.last_end = time.perf_counter()
        account.hook_s += self.last_end - ended
        if self.options.until_tuned and self.is_settled and self.advice.spare is None:
            self._end_script()

    def _failed(self, failed: Any) -> None:
        self._note_draws()
        is_kept, count = isinstance(failed, RandomSamplesError), counted(failed.num_workers, "worker")
        self._leave(f"{failed}, and --exact keeps samples as they are" if is_kept else f"{count} failed ({failed})")
        if failed.__cause__ is not None:
            self.say(str(failed.__cause__))

    def _end_script(self) -> None:
        """Raises SystemExit where the loaders that train have settled: not in a validation, nor where others go on."""
        others = (each.is_settled for each in self.shared.tuners if each.account.num_batches >= 2 * GROUP)
        is_alone = not self.several_ranks and threading.current_thread() is threading.main_thread()
        if is_alone and torch.is_grad_enabled() and all(others):
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
            account.blocked_s = account.total_s = account.begins_s = 0.0
            account.samples_per_s, self.epoch_then = None, None
            if number != self.own:
                account.epochs_s = []
        self.steps.skip, self.clocks, account.num_workers = num_skipped(number), None, number
        self.state = decide.delivers(self.state, number)
        account.state = self.state.stage

    def _note_draws(self) -> None:
        draws = self.iterator.table.row(None).draws > 0
        self.account.draws_random |= draws or bool(is_random(self.iterator.workers(), by_worker=self.own > 0))

    def _note_steps(self) -> None:
        account = self.account
        account.steps = list(self.looks.steps()[:KEPT_STEPS])
        account.slow_worker, account.slow_times = slow_worker(self.iterator.workers()) or (None, None)

    def _say_what_differs(self) -> None:
        self._note_draws()
        if gets_number(self.trust.view.worker_init_fn, self.own):
            number = f"num_workers={self.told_workers} in all ranks" if self.told_workers else "the new num_workers"
            self.say(f"its worker_init_fn gets {number}, as if you had typed it")
        if self.account.draws_random:
            self.say("the indices and their order stay; random augmentation differs, as with any change of num_workers")

    # A look

    def _read_clocks(self) -> readings.Clocks:
        loading = readings.Clocks(self.num_delivered, self.iterator.delivering().cpu_s)
        return readings.read_clocks(loading, self.iterator.workers(), self.shared.busy_s())

    def _look(self) -> None:
        """Read what there is to read, once, and do what follows from it."""
        is_due = decide.is_due(self.state, len(self.steps.blocks)) and self.steps.is_enough()
        reading = self.steps.reading() if is_due else None
        if reading is None:
            return
        account, ranks = self.account, self.shared.ranks
        account.batch_size = int(self.iterator.batch_size() or self.trust.view.batch_size or 1)
        account.num_ranks = 1 if ranks is None else max(1, len(ranks.words))
        now = None if self.clocks is None else self._read_clocks()
        self._note_draws()
        self._note_steps()
        work = None if now is None or self.clocks is None else now.work_since(self.clocks, reading)
        if now is not None and work is not None and (rows := self.iterator.workers()):
            self.start_cpu_s = max(_FORK_CPU_S, (now.cpu_s - now.batches * work.cpu_s) / len(rows))
        reading = self._among_others(reading, work)
        account.set_rate(reading, work)
        before, bound = self.state, self._bound(reading, work)
        self._do(decide.decide(before, reading, work, bound), work)
        if self.state.stage == "resting" and self.state is not before:
            self.steps = Steps(self.steps.num_workers)
        self._tell(reading, work)
        if work is not None:
            loop = decide.loop_of(reading, bound)
            rest = AtRest(work=work, loop=loop, reading=reading, batch_size=account.batch_size)
            is_full = bound.most <= reading.num_workers and bound.reason in ("RAM", "/dev/shm", "descriptors")
            refusal = bound.refusal or (f"{bound.reason} is short" if is_full else None)
            is_free = self._is_at_rest() and all(each.advice.spare is None for each in self.shared.tuners)
            self.advice.begin(rest, self.parts, refusal, is_settled=is_free and self.is_settled)

    def _is_at_rest(self) -> bool:
        return self.state.stage == "resting" and not any(each.is_trying for each in self.shared.tuners)

    def _advise(self, seconds: float) -> None:
        """Nobody looks at the loop while something runs beside it."""
        if self.advice.step(seconds, is_settled=self._is_at_rest()):
            changes, gain = self.account.changes, self.account.changes_gain or 0.0
            self.say(f"{changes_text(changes, gain)}. Their code is printed at the end")
        if self.advice.spare is None:
            self.steps = Steps(self.steps.num_workers)
            self._learn()
            write_own(self.options.folder)

    def _tell(self, reading: Reading, work: Work | None) -> None:
        """What is known of the gain by now, and once that it is proven."""
        account, gain = self.account, decide.told(self.state, reading, work)
        if gain is not None and (gain.low is not None or account.gain_low is None):
            account.gain, account.gain_low, account.gain_high = gain.value, gain.low, gain.high
            if account.samples_per_s is not None and len(self.state.phases) < 3:
                account.set_rate(reading, work)  # of what the gain is of: one line tells both
            if account.is_proven and self.told_of != account.kept_workers:
                self.told_of = account.kept_workers
                self.say(words.change_text(account))

    def _among_others(self, reading: Reading, work: Work | None) -> Reading:
        """Ranks step together: while one waits, nobody knows how long a step would take."""
        peers_wait: bool | None = False
        if (ranks := self.shared.ranks) is not None:
            if work is not None and max(self.shared.tuners, key=lambda tuner: tuner.loop_s) is self:
                done, num = self.state.stage == "resting", len(self.account.switches)
                ranks.say(work, reading, is_settled=done, num_switches=num)
            peers_wait = ranks.peers_wait()
        length = math.inf
        with suppress(Exception):  # a sampler without a length, or with one that only its own loader can tell
            length = float(self.broken_at or len(self.trust.sampler) * (2 if self.trust.view.persistent_workers else 1))
        is_whole = self.options.until_tuned or self.state.job.only_advises  # the number is for other epochs
        own_epochs = self.account.first_epochs_s if reading.num_workers == self.own else self.account.epochs_s
        return replace(
            reading,
            step_s=0.0 if self.several_ranks else reading.step_s,
            peers_wait=peers_wait,
            left=length - (0 if is_whole else self.num_delivered),
            length=length,
            epoch_s=fmean(own_epochs) if own_epochs else None,
        )

    def _most(self, account: Account) -> tuple[int, str]:
        """Workers that memory, descriptors, options and the sampler allow, and which of them does."""
        if self.worker_bytes is None and self.iterator is not None and (workers := self.iterator.workers()):
            self.worker_bytes = proportional_bytes(int(workers[0].pid))
        others = {} if self.options.max_workers is None else {"--max-workers": self.options.max_workers}
        if self.is_stream and self.trust is not None:
            shards = readings.num_shards(self.trust.view.dataset)
            others |= {"its shards": shards, "the number of cores": int(self.shared.cores())}
        queued = Queued(
            batch_bytes=account.batch_bytes,
            batch_tensors=account.batch_tensors,
            num_batches=self.prefetch_factor + 1,
            worker_bytes=self.worker_bytes,
        )
        most, reason = most_workers(readings.read_free(), queued, others)
        own_ahead = self.own * self.prefetch_factor
        is_less = self.trust is not None and not self.trust.sampler.may_ask_ahead() and own_ahead < most
        return (own_ahead, "the sampler") if is_less else (most, reason)

    def _bound(self, reading: Reading, work: Work | None) -> Bound:
        self.cpu_rate = work.cpu_s / reading.total_s if work is not None and reading.num_workers else 0.0
        others = sum(each.cpu_rate for each in self.shared.tuners if each is not self and each.watched() is not None)
        most, reason = self._most(self.account)
        refusal = self.trust.reason_against()
        if self.account.draws_random and self.options.exact:
            refusal = "its samples are random, and --exact keeps their random numbers"
        return Bound(
            most=most,
            reason=reason,
            cores=max(1.0, self.shared.cores() - others),
            start_cpu_s=self.start_cpu_s,
            refusal=refusal,
            is_taken=any(each.is_trying for each in self.shared.tuners if each is not self),
            several_ranks=self.several_ranks,
        )

    # What is done

    def _do(self, action: Action, work: Work | None = None) -> None:
        """Carry out what was decided, and say it."""
        account, self.state = self.account, action.state
        account.state, number, now = self.state.stage, action.num_workers, self.steps.num_workers
        account.bottleneck = self.state.limit or account.bottleneck
        if work is not None and action.do in ("switch", "keep"):
            account.load_s, account.cpu_s = work.load_s, work.cpu_s
        if action.do == "leave":
            self._leave(str(self.state.reason))
        elif action.do in ("switch", "compare"):
            assert number is not None
            if action.do == "switch":
                later = " from the next epoch on" if self.state.is_for_next else ""
                again = "the loop waits again: " if self.state.num_relooks else ""
                self.say(f"{again}tries {counted(number, 'worker')} instead of {now}{later}")
            elif number == self.own:
                self.say(f"goes back to {counted(number, 'worker')} for a moment, to measure what {now} gain")
            self._say_what_differs()
            if not self.state.is_for_next:
                self.iterator.switch(number)
        elif action.do == "keep":
            account.kept_workers = now
            account.gain = account.gain_low = account.gain_high = None
            self.say(f"keeps {counted(now, 'worker')}")
            self._learn()
        elif action.do == "take back":
            assert number is not None
            account.kept_workers = None if number == self.own else number
            account.reason = f"{counted(now, 'worker')} gained nothing"
            self.say(f"{account.reason}; back to {number}")
            self._go_back(number)
            account.num_workers = number
        elif action.do in ("rest", "advise"):
            rests = self.state.reason or self.state.limit
            reason = words.reason_text(rests) if action.do == "rest" else self._advised(action)
            if reason not in (None, account.reason):
                self.say(f"stays at {counted(now, 'worker')}: {reason}")
            account.reason = reason

    def _advised(self, action: Action) -> str:
        """Note the advice. Why it is not done."""
        account, number = self.account, action.num_workers
        account.advice = [each for each in account.advice if not each.startswith("num_workers=")]
        account.predicted = action.gain
        account.advise(f"num_workers={number}")
        return f"{words.reason_text('stream' if self.is_stream else 'dry run')}; try num_workers={number}"
