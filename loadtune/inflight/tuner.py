"""The tuner of one loader: watches its steps, switches its workers once, corrects that once, then rests.

Its states are those of `Account.state`. Whatever goes wrong in it ends the tuner, not the training: see `guard`.
"""

import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from loadtune.inflight import account as told
from loadtune.inflight import gates, limits, measure
from loadtune.inflight.account import Account
from loadtune.inflight.environment import TEST_VARIABLE, Options, equal_share, num_ranks
from loadtune.inflight.measure import GROUP, Reading, Steps, Work
from loadtune.inflight.ranks import Ranks
from loadtune.stream import torch_private as private
from loadtune.stream.sample_table import DRAWS
from loadtune.stream.settings import Settings, Switch, start_method
from loadtune.stream.switching import SwitchingIterator, SwitchingLoader
from loadtune.units import counted

_STEP_UP, _TRIES = 0.08, 2
"""Share of the time that a loop waits from which more workers are tried although the clocks say that these are enough;
and switches, before the tuner rests."""
_LOOKS = {"watching": 2 * GROUP, "judging": 2 * GROUP, "resting": 13 * GROUP}
"""Steps from which on a state looks at what was measured."""
_SETTLED = ("resting", "left alone")
_FORK_CPU_S, _IMPORT_CPU_S = 0.02, 3.0
"""CPU seconds in which a worker starts, until they are measured: a forked one, and one that imports torch."""
_STARTING_S = 0.01
"""Seconds of the loop for each worker that starts."""
_STREAM = "another number changes the order of an IterableDataset's samples, or how often each is read"


_LOOKS_AGAIN, _OTHER = 4, 0.2
"""Times at most that a loop which waits looks again, because its cores or its pace are others than when it decided (a
peer was the slower one then); and by how much."""


class Shared:
    """What the tuners of a process share."""

    blocked_s = 0.0
    """Seconds in ``next()`` of all loaders: they are no step of another one."""
    trying: "Tuner | None" = None
    """One tuner at a time changes something."""
    tuners: "list[Tuner]" = []  # noqa: RUF012
    ranks: Ranks | None = None
    """None: no process group of several ranks was seen."""

    @classmethod
    def cores(cls) -> float:
        """Of this rank."""
        return max(1.0, equal_share() if cls.ranks is None else cls.ranks.cores())


class Tuner:
    """Of the iterators over one dataset that begin at one place; the newest of them is watched."""

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
        self.own = Settings.of(loader)
        self.is_stream = loader._dataset_kind != private.MAP_STYLE
        self.method = start_method(loader.multiprocessing_context)
        self.cores = Shared.cores()
        """Of this rank, when that was last asked for."""
        self.num_looks, self.decided_s = 0, 0.0
        """Times that it watched again; seconds a batch when it began to rest."""
        self.is_dead, self.epoch = False, -1
        self.source: Callable[[], Any] = lambda: None
        """The loader that begins."""
        self.watched: Callable[[], Any] = lambda: None
        self.target: int | None = None
        """Workers with which an epoch begins. None: the user's."""
        self.kept: int | None = None
        """Workers that were switched to and gained. None: none yet."""
        self.tried: list[int] = []
        self.begins_s = 0.0
        """Seconds until the first batches of its epochs came."""
        self.has_said_random = self.is_trusted = False
        self.cpu_rate = 0.0
        """Cores that its workers keep busy."""
        self.own_cpu_s = 0.0
        """CPU seconds of the training process in ``next()`` where it loads itself."""
        self.pending: Switch | None = None
        self.change: tuple[int, int, Reading, Work] | None = None
        """The newest: workers before and after it, and what was measured before it. None: none."""
        self.start_cpu_s = _FORK_CPU_S if self.method == "fork" else _IMPORT_CPU_S
        self.steps = Steps(-1)
        self.clocks: tuple[float, float, float] | None = None
        """As they were read when these workers had delivered their first batches. None: they have not."""
        account.state = "watching" if replayed is None else "replaying"
        account.reason = _STREAM if self.is_stream else None
        if learnt_file is not None and (found := told.read_learnt(learnt_file, account)) is not None:
            self._begin_with(found)

    @property
    def several_ranks(self) -> bool:
        return Shared.ranks is not None or num_ranks() > 1

    def say(self, text: str) -> None:
        told.say(self.account, text)
        told.write_own(self.options.folder)

    def _begin_with(self, found: Account) -> None:
        """What an earlier run found, within what this machine has now."""
        own = self.own.num_workers
        number = min(found.num_workers, self._bound(Work(load_s=found.load_s or 0, cpu_s=found.cpu_s or 0), found).most)
        is_less = number == own or (number > own) != (found.num_workers > own)
        if is_less or (found.draws_random and self.options.exact):
            return
        for name in ("load_s", "cpu_s", "first_samples_per_s", "batch_bytes", "batch_tensors", "draws_random"):
            setattr(self.account, name, getattr(found, name))
        self.target = number
        self.say(f"begins with {counted(number, 'worker')}, as an earlier run found")

    # The life of an iterator

    def open(self, loader: Any) -> SwitchingIterator:
        """Begin an epoch. Raises what torch's iterator would raise."""
        self.sampler = gates.WatchedSampler(loader)
        self.view: Any = private.LoaderView(loader, self.sampler)
        self.source = weakref.ref(loader)
        self.trust = gates.Trust(self.view, self.sampler, self.own, self.method)
        number = self.target
        if self.replayed is not None:
            number = next((number for batch, number in self._replayed(self.epoch + 1)[::-1] if batch == 0), None)
        elif number is not None and (reason := self.trust.reason_against()) is not None:
            self._leave(reason)
            number = None
        begins = self.own if number is None else self.own.changed(**self._workers(number))
        self.loader = SwitchingLoader(self.view, settings=begins)
        self.iterator = self.loader.begin()
        return self.iterator

    def _workers(self, number: int) -> dict[str, Any]:
        """Settings with so many. Batches of the user's come in order where there is one worker or none."""
        own = self.own
        return {"num_workers": number, "in_order": own.in_order or own.num_workers < 2 <= number}

    def begin(self, watched: Any) -> None:
        """The epoch of this iterator, which `open` gave or which begins again, is the one that is watched."""
        self.watched = weakref.ref(watched)
        self.epoch += 1
        self.last_end: float | None = None
        self.blocked_then_s = 0.0
        self.num_delivered = 0
        self.num_noted = sum(each.start_s is not None for each in self.loader.counters.switches)
        # A switch that persistent workers still wait for is to come; without workers the first batch begins them.
        delivering = self.iterator.delivering()
        number = (self.loader if delivering is None else delivering).settings.num_workers
        self._delivering(number)
        if number != self.own.num_workers:
            self._say_random()
            self._note_switch(0, number)
        for batch, replayed in self._replayed(self.epoch):
            if batch > 0:
                self.loader.switch(**self._workers(replayed), at=batch)

    def _replayed(self, epoch: int) -> list[tuple[int, int]]:
        """The switches to be repeated in this epoch: batch, workers."""
        switches = () if self.replayed is None else self.replayed.switches
        return [(each["batch"], each["num_workers"]) for each in switches if each["epoch"] == epoch]

    def end(self) -> None:
        """No more batches come in this epoch."""
        if Shared.trying is self and self.account.state != "judging":
            Shared.trying = None
        begins_often = self.epoch > 0 and not self.view.persistent_workers and self.own.num_workers > 0
        advice = []
        if not self.own.pin_memory and torch.cuda.is_available():
            advice.append("pin_memory=True: batches go to the GPU while it computes")
        if begins_often and self.begins_s > 0.05 * self.account.total_s:
            advice.append("persistent_workers=True: workers start once, and not in each epoch")
        self.account.advise(*advice)

    def guard(self, act: Callable[..., None], *args: Any) -> None:
        """Run a part of the tuner. Its error ends the tuner; the loop goes on with the user's settings."""
        if self.is_dead:
            return
        try:
            act(*args)
        except Exception as error:
            self.is_dead = True
            with suppress(Exception):
                self._leave(f"the tuner failed ({type(error).__name__}: {error})")
            with suppress(Exception):
                self._back_to_own()
            if os.environ.get(TEST_VARIABLE):
                raise

    def _back_to_own(self) -> None:
        if self.trust.in_process:
            self.iterator.withdraw_to_own()
        else:
            self.loader.switch(**self._workers(self.own.num_workers))

    # Each step

    def before_step(self) -> None:
        entered, self.num_ready = time.perf_counter(), 0
        state, has_workers = self.account.state, self.steps.num_workers > 0
        if self.trust.in_process and not self.is_stream:
            if (has_workers or state == "starting") and (reason := self.trust.changed()) is not None:
                self.iterator.withdraw_to_own()
                self._leave_at(self.num_delivered, reason)
            if not has_workers:
                self.trust.before_batch()
        if has_workers and state in ("watching", "judging") and (depth := self.iterator.depth()) is not None:
            self.num_ready = depth.ready
        self.thread_s = 0.0 if has_workers else time.thread_time()
        self.begun = time.perf_counter()
        self.account.hook_s += self.begun - entered

    def checked(self, batch: Any) -> Any:
        """What the loop gets for a batch. Where the user has no workers, the training process reads the first ones of
        others, too, and raises what it would raise without them."""
        if self.is_trusted or not self.trust.num_to_compare or not self.iterator.delivering().settings.num_workers:
            return batch
        own = self.iterator.last_in_process()
        self.guard(self._compare, batch, own)
        return own

    def _compare(self, batch: Any, own: Any) -> None:
        self.account.draws_random |= self.loader.table.row(None)[DRAWS] > 0
        reason = self.trust.compare(batch, own, values=not self.account.draws_random)
        if reason is not None:
            self.iterator.withdraw_to_own()
            self._leave_at(self.num_delivered, reason)
        self.is_trusted = reason is None and not self.trust.num_to_compare

    def after_step(self, batch: Any) -> None:
        ended, account = time.perf_counter(), self.account
        blocked_s, between_s, complete = ended - self.begun, 0.0, False
        if not self.steps.num_workers:
            self.own_cpu_s += time.thread_time() - self.thread_s
            if self.num_delivered == 0:  # what draws once, to prepare itself, is not random
                self.loader.table.row(None)[DRAWS] = 0.0
        if self.num_delivered < 3:
            largest = max((account.batch_bytes, account.batch_tensors), limits.batch_size(batch))
            account.batch_bytes, account.batch_tensors = largest
        self.num_delivered += 1
        account.num_batches += 1
        if self.last_end is None:
            self.begins_s += blocked_s
        else:
            between_s = max(0.0, self.begun - self.last_end - (Shared.blocked_s - self.blocked_then_s))
            complete = self.steps.add(blocked_s, between_s, self.num_ready)
            if self.steps.skip == 1:
                self.clocks = self._read_clocks()
        Shared.blocked_s += blocked_s
        self.blocked_then_s = Shared.blocked_s
        self._note_switches()
        if self.loader.withdrawn:
            failed = self.loader.withdrawn.pop()
            number = counted(failed.settings.num_workers, "worker")
            self._leave_at(self.num_delivered - 1, f"{number} failed ({failed.reason})")
        elif account.state == "starting":
            self._starting()
        elif complete and len(self.steps.blocked) >= self._looks_after():
            reading = self.steps.reading()
            if reading is not None and measure.is_enough(reading, self.steps.num_workers):
                self._look(reading)
        account.blocked_s += blocked_s  # last: a batch of workers that deliver from now on counts as theirs
        account.total_s += blocked_s + between_s
        self.last_end = time.perf_counter()
        account.hook_s += self.last_end - ended
        if self.options.until_tuned and account.state in _SETTLED:
            self._end_script()

    def _looks_after(self) -> float:
        """Steps. Where a rank rests, others may begin to wait."""
        after = _LOOKS.get(self.account.state, math.inf)
        return min(after, 2 * GROUP) if Shared.ranks is not None and after < math.inf else after

    def _end_script(self) -> None:
        """Raises SystemExit where the loaders that train have settled: not in a validation, nor where others go on."""
        others = (each for each in Shared.tuners if each.account.num_batches >= 2 * GROUP)
        if (
            torch.is_grad_enabled()
            and not self.several_ranks
            and threading.current_thread() is threading.main_thread()
            and all(each.account.state in _SETTLED for each in others)
        ):
            self.say("ends the script, as --until-tuned asks for")
            raise SystemExit(0)

    def _now(self, num_workers: int, queued: int = 0) -> None:
        """So many workers deliver from now on. ``queued``: those of which batches were asked for before."""
        account = self.account
        if num_workers != self.steps.num_workers:
            self.steps = Steps(num_workers)
            account.earlier_blocked_s, account.earlier_total_s = account.blocked_s, account.total_s
            account.samples_per_s = None
        self.steps.skip = max(3, 2 * queued)
        account.num_workers, self.clocks = num_workers, None

    def _worker_pids(self) -> list[int]:
        return [worker.pid for worker in getattr(self.iterator.delivering(), "_workers", ())]

    def _read_clocks(self) -> tuple[float, float, float]:
        """Of whoever loads, so far: batches, CPU seconds with those of the start, seconds queued for a core."""
        if not self.steps.num_workers:
            return self.num_delivered, self.own_cpu_s, 0.0
        workers, (ran_s, queued_s) = self.iterator.workers(), limits.scheduled_s(self._worker_pids())
        if self.is_stream:  # whose workers note nothing
            return self.num_delivered, ran_s, queued_s
        return sum(each.num_ended for each in workers), sum(each.cpu_s for each in workers), queued_s

    def _work(self, reading: Reading) -> Work | None:
        """What a batch takes, as the clocks say by now. None: too little was loaded since."""
        if self.clocks is None:
            return None
        workers, (ended, cpu_s, queued_s) = self.iterator.workers(), self._read_clocks()
        self._look_for_draws()
        made, num_timed = ended - self.clocks[0], sum(each.num_timed for each in workers)
        if made < 2 or (workers and not num_timed):
            return None
        batch_cpu_s, queued_s = (cpu_s - self.clocks[1]) / made, max(0.0, (queued_s - self.clocks[2]) / made)
        if not self.steps.num_workers:
            return Work(load_s=reading.blocked_s, cpu_s=min(reading.blocked_s, batch_cpu_s))
        if self.is_stream:  # while the loop waits, all its workers load
            return Work(load_s=self.own.num_workers * reading.total_s, cpu_s=batch_cpu_s, queued_s=queued_s)
        self.start_cpu_s = max(_FORK_CPU_S, (cpu_s - ended * batch_cpu_s) / len(workers))
        return Work(
            load_s=max(1e-9, sum(each.made_s for each in workers) / num_timed), cpu_s=batch_cpu_s, queued_s=queued_s
        )

    def _look_for_draws(self) -> None:
        here = self.loader.table.row(None)[DRAWS] > 0
        self.account.draws_random |= here or any(each.draws > 0 for each in self.iterator.workers())

    def _bound(self, work: Work, account: Account, worker_pid: int | None = None) -> limits.Bound:
        self.cores = Shared.cores()
        others = (each.cpu_rate for each in Shared.tuners if each is not self and each.watched() is not None)
        return limits.most_workers(
            work,
            account,
            self.own.prefetch_factor,
            self.cores,
            others_cpu=sum(others),
            max_workers=self.options.max_workers,
            worker_pid=worker_pid,
        )

    def _best_number(self, reading: Reading, work: Work, most: int) -> tuple[int, float]:
        """How many workers end the rest soonest, and the seconds that they save."""
        try:  # those of another epoch, too, where workers are persistent
            length = len(self.sampler) * (2 if self.view.persistent_workers else 1)
            left: float = math.inf if self.options.until_tuned else length - self.num_delivered
        except Exception:  # a sampler without a length, or with one that only its own loader can tell
            left = math.inf
        cores = Shared.cores()

        def start_s(number: int) -> float:
            return self.start_cpu_s * max(1.0, number / cores) + _STARTING_S * number

        return measure.best_number(reading, work, most, left, start_s)

    # States

    def _look(self, reading: Reading) -> None:
        """What the present state makes of what was measured. Ranks step together: while one waits, nobody knows how
        long a step would take, and each has the workers that its cores allow."""
        if Shared.ranks is not None:
            self._tell_ranks(reading)
            reading = replace(reading, peers_wait=Shared.ranks.peers_wait())
        if self.several_ranks:
            reading = replace(reading, step_s=0.0)
        getattr(self, f"_{self.account.state}")(reading)

    def _watching(self, reading: Reading) -> None:
        self._note_rate(reading)
        work, other = self._work(reading), Shared.trying
        if not reading.waits:
            self._rest("the step")
            return
        if (other not in (None, self) and other.watched() is not None) or work is None:
            return
        now = self.steps.num_workers
        self.cpu_rate = work.cpu_s / reading.total_s if now else 0.0
        bound = self._bound(work, self.account, next(iter(self._worker_pids()), None))
        if now > bound.most and bound.reason == "cores" and bound.most not in self.tried:
            self._switch(bound.most, reading, work)
            return
        want, saved_s = self._best_number(reading, work, bound.most)
        is_bound = measure.needed(work, reading.step_s) > bound.most
        if 0.8 * now <= want <= 1.2 * now and now > 1 and reading.waiting_fraction > _STEP_UP:
            want = min(bound.most, max(now + 1, round(1.3 * now)))
        if want <= now or any(abs(want / one - 1) < 0.15 for one in self.tried):
            self._rest(bound.reason if is_bound else "workers", bound.text if is_bound else None)
        elif saved_s <= 0:
            self._rest("workers", "it ends before more workers would have gained anything")
        else:
            self._switch(want, reading, work)

    def _switch(self, want: int, reading: Reading, work: Work) -> None:
        self.change = (self.steps.num_workers, want, reading, work)
        if self.is_stream or self.options.dry_run:
            self._advise(*self.change)
            return
        reason = self.trust.reason_against()
        if self.account.draws_random and self.options.exact:
            reason = "its samples are random, and --exact keeps their random numbers"
        if reason is not None:
            self._leave(reason)
        else:
            self.tried.append(want)
            Shared.trying, self.target = self, want
            self._ask_for(want)

    def _advise(self, now: int, want: int, reading: Reading, work: Work) -> None:
        gain = reading.total_s / measure.predicted_s(work, reading.step_s, want)
        text = f"num_workers={want}" + (
            f", predicted {gain:.2g} times as fast" if want > now and reading.step_s > 0 else ""
        )
        self.account.advise(text)
        self._rest("workers", f"{_STREAM if self.is_stream else '--dry-run'}; try {text}")

    def _ask_for(self, number: int) -> None:
        self._say_random()
        self.pending, self.account.state = self.loader.switch(**self._workers(number)), "starting"

    def _say_random(self) -> None:
        if self.account.draws_random and not self.has_said_random:
            self.has_said_random = True
            self.say("samples are random: other workers draw other random numbers, as when you set num_workers")

    def _starting(self) -> None:
        if self.pending is not None and self.pending.delivers_s is not None:
            self._delivering(self.pending.settings.num_workers)

    def _delivering(self, number: int) -> None:
        """These deliver from now on. If they are not the user's, an earlier run found them, they were judged before, or
        they are judged now."""
        self._now(number, queued=number)
        if number == self.target:
            is_new = self.kept is None or number > self.kept
            self.account.state = "watching" if self.change is None else "judging" if is_new else "resting"

    def _judging(self, reading: Reading) -> None:
        assert self.change is not None
        was, now, before, _ = self.change
        fewer = now < was
        gained = measure.has_gained(reading, before, now, may_tie=fewer or self.several_ranks)
        if gained is None:
            return
        Shared.trying = None
        if not gained:
            self.target = None if was == self.own.num_workers else was
            self.say(f"{was} → {counted(now, 'worker')} gained nothing; back to {was}")
            self.loader.switch(**self._workers(was))
            self._now(was, queued=now)
            self._rest("handing batches over")
            return
        self._note_rate(reading)
        self.kept = now
        limit = "the step" if not reading.waits else "cores" if fewer else "workers"
        self.say(f"{self.account.change_text(was, now)}; limited by {limit} now")
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
            self._rest(limit)

    def _rest(self, bottleneck: str, reason: str | None = None) -> None:
        account = self.account
        account.bottleneck, account.state, self.decided_s = bottleneck, "resting", 0.0
        if reason is not None and reason != account.reason:
            self.say(f"stays at {counted(self.steps.num_workers, 'worker')}: {reason}")
        account.reason = reason
        self.steps = Steps(self.steps.num_workers, skip=self.steps.skip)

    def _resting(self, reading: Reading) -> None:
        self._note_rate(reading)
        self.decided_s = self.decided_s or reading.total_s
        self.steps = Steps(self.steps.num_workers)
        other_pace = abs(reading.total_s / self.decided_s - 1) > _OTHER or self.account.bottleneck == "the step"
        other_cores = abs(Shared.cores() / self.cores - 1) > _OTHER
        if self.num_looks < _LOOKS_AGAIN and reading.waits and (other_pace or other_cores):
            self.num_looks += 1
            self.tried.clear()
            self.account.state = "watching"

    def _tell_ranks(self, reading: Reading) -> None:
        """What the loader needs in which this rank spends most of its time."""
        work = self._work(reading)
        if Shared.ranks is not None and work is not None and max(Shared.tuners, key=_total_s) is self:
            Shared.ranks.say(
                cpu_s=work.cpu_s,
                load_s=work.load_s,
                queued_s=work.queued_s,
                waiting=reading.waiting_fraction if reading.waits else 0.0,
                is_settled=self.account.state == "resting",
            )

    # Its end

    def _leave(self, reason: str) -> None:
        """Alone from now on."""
        if Shared.trying is self:
            Shared.trying = None
        if self.learnt_file is not None:  # what an earlier run found is no longer right
            with suppress(OSError):
                self.learnt_file.unlink()
        self.account.state, self.account.reason, self.target = "left alone", reason, None
        self.say(f"left at {counted(self.own.num_workers, 'worker')}: {reason}")

    def _leave_at(self, batch: int, reason: str) -> None:
        """The user's settings load again from this batch of the epoch on."""
        self.num_noted = len(self.loader.counters.switches)
        self._note_switch(batch, self.own.num_workers)
        self._now(self.own.num_workers)
        self._leave(reason)

    def _note_switches(self) -> None:
        """Those that were handed over since the last step."""
        switches = self.loader.counters.switches
        while self.num_noted < len(switches) and switches[self.num_noted].start_s is not None:
            switch = switches[self.num_noted]
            self.num_noted += 1
            self._note_switch(switch.at or 0, switch.settings.num_workers)
            if self.replayed is not None or self.account.state == "resting":  # what gained nothing is taken back
                self._now(switch.settings.num_workers)

    def _note_switch(self, batch: int, number: int) -> None:
        self.account.switches.append({"epoch": self.epoch, "batch": batch, "num_workers": number})

    def _note_rate(self, reading: Reading) -> None:
        counters, account = self.loader.counters, self.account
        samples = counters.num_samples / max(1, counters.num_batches) or self.view.batch_size or 1
        account.samples_per_s = samples / reading.total_s
        account.first_samples_per_s = account.first_samples_per_s or account.samples_per_s


def _total_s(tuner: Tuner) -> float:
    return tuner.account.total_s
