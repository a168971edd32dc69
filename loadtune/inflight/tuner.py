"""The tuner of one loader: watches its steps, switches its workers once, corrects that once, then rests.

Its states are those of `Account.state`. Whatever goes wrong in it ends the tuner, not the training: see `guard`.
"""

import math
import os
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from loadtune.inflight import account as told
from loadtune.inflight import gates, limits
from loadtune.inflight.account import Account
from loadtune.inflight.measure import (
    GROUP,
    Reading,
    Steps,
    Work,
    best_number,
    has_gained,
    is_enough,
    needed,
    predicted_s,
)
from loadtune.inflight.options import TEST_VARIABLE, Options
from loadtune.inflight.trust import Trust
from loadtune.stream import torch_private as private
from loadtune.stream.counters import Switch
from loadtune.stream.settings import Settings, start_method
from loadtune.stream.switching import MAX_BLOCKED_S, SwitchingIterator, SwitchingLoader
from loadtune.units import counted

_STEP_UP, _TRIES = 0.08, 2
"""Share of the time that a loop waits from which more workers are tried although the clocks say that these are enough;
and switches, before the tuner rests."""
_LOOKS = {"watching": 2 * GROUP, "judging": 2 * GROUP, "resting": 13 * GROUP}
"""Steps from which on a state looks at what was measured."""
_FORK_CPU_S, _IMPORT_CPU_S = 0.02, 3.0
"""CPU seconds in which a worker starts, until they are measured: a forked one, and one that imports torch."""
_STARTING_S = 0.01
"""Seconds of the loop for each worker that starts."""
_PIN = "pin_memory=True: batches go to the GPU while it computes"
_PERSISTENT = "persistent_workers=True: workers start once, and not in each epoch"


class Shared:
    """What the tuners of a process share."""

    blocked_s = 0.0
    """Seconds in ``next()`` of all loaders: they are no step of another one."""
    trying: "Tuner | None" = None
    """One tuner at a time changes something."""
    tuners: "list[Tuner]" = []  # noqa: RUF012


class Tuner:
    """Of the iterators over one dataset that begin at one place; the newest of them is watched."""

    def __init__(self, account: Account, loader: Any, options: Options, replayed: Account | None = None) -> None:
        """``replayed``: repeat its switches in place of tuning."""
        self.account, self.options, self.replayed = account, options, replayed
        self.own = replace(Settings.of(loader), batch_size=None)  # which never changes here
        self.method = start_method(loader.multiprocessing_context)
        self.several_ranks = int(os.environ.get("WORLD_SIZE", "1")) > 1
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
        self.starts_blocking = self.draws_random = self.is_trusted = False
        self.cpu_rate = 0.0
        """Cores that its workers keep busy."""
        self.pending: Switch | None = None
        self.change: tuple[int, int, Reading, Work] | None = None
        """The newest: workers before and after it, and what was measured before it."""
        self.batch: limits.BatchSize | None = None
        self.start_cpu_s = _FORK_CPU_S if self.method == "fork" else _IMPORT_CPU_S
        self.steps = Steps(-1)
        self.clocks: tuple[float, float, float] | None = None
        """Of the workers: batches, CPU seconds, seconds queued for a core."""
        account.state = "watching" if replayed is None else "replaying"

    def say(self, text: str) -> None:
        told.say(self.account, text)
        if self.options.folder is not None:
            told.write_own(self.options.folder)

    # The life of an iterator

    def open(self, loader: Any) -> SwitchingIterator:
        """Begin an epoch. Raises what torch's iterator would raise."""
        self.sampler = gates.WatchedSampler(loader)
        self.view: Any = private.LoaderView(loader, self.sampler)
        self.source = weakref.ref(loader)
        self.trust = Trust(self.view, self.sampler, self.own, self.method)
        number = self._first_number()
        if number is not None and self.replayed is None and (reason := self.trust.reason_against()) is not None:
            self._leave(reason)
            number = None
        self.loader = SwitchingLoader(
            self.view,
            settings=self.own if number is None else self.own.changed(num_workers=number),
            max_blocked_s=MAX_BLOCKED_S if self.replayed is None else math.inf,
        )
        self.iterator = self.loader.begin()
        return self.iterator

    def begin(self, watched: Any) -> None:
        """The epoch of this iterator, which `open` gave or which begins again, is the one that is watched."""
        self.watched = weakref.ref(watched)
        self.epoch += 1
        self.last_end: float | None = None
        self.blocked_then_s = 0.0
        self.num_delivered, self.num_noted = 0, len(self.loader.counters.switches)
        number = self.loader.settings.num_workers
        self._now(number, queued=number)
        if number != self.own.num_workers:
            self._note_switch(0, number)
        if self.replayed is not None:
            for switch in self.replayed.switches:
                if switch["epoch"] == self.epoch and switch["batch"] > 0:
                    self.loader.switch(num_workers=switch["num_workers"], at=switch["batch"])
        elif self.target is not None and number == self.target:
            self.account.state = "judging" if self.kept is None or number > self.kept else "resting"
        elif self.target is not None:
            self.pending, self.account.state = None, "starting"

    def _first_number(self) -> int | None:
        """Workers that this epoch begins with. None: the user's, which deliver while others start."""
        if self.replayed is not None:
            switches = [one for one in self.replayed.switches if one["epoch"] == self.epoch + 1 and one["batch"] == 0]
            return switches[-1]["num_workers"] if switches else None
        return self.target if self.method == "fork" or self.starts_blocking else None

    def end(self) -> None:
        """No more batches come in this epoch."""
        self.trust.close()
        if self.account.state == "checking":
            self.account.state = "watching"
        if Shared.trying is self and self.account.state != "judging":
            Shared.trying = None
        account, starts = self.account, self.epoch > 0 and not self.view.persistent_workers and self.own.num_workers > 0
        unpinned = not self.own.pin_memory and torch.cuda.is_available()
        for advice, helps in ((_PIN, unpinned), (_PERSISTENT, starts and self.begins_s > 0.05 * account.total_s)):
            if helps and advice not in account.advice:
                account.advice.append(advice)

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
                if self.trust.in_process:
                    self.iterator.withdraw_to_own()
                else:
                    self.loader.switch(num_workers=self.own.num_workers)
            if os.environ.get(TEST_VARIABLE):
                raise

    # Each step

    def before_step(self) -> None:
        self.begun = time.perf_counter()
        self.num_ready = 0
        state, has_workers = self.account.state, self.steps.num_workers > 0
        if self.trust.in_process:
            if (has_workers or state == "starting") and (reason := self.trust.changed()) is not None:
                self.iterator.withdraw_to_own()
                self._leave_at(self.num_delivered, reason)
            if not has_workers:
                self.trust.before_batch()
        if has_workers and state in ("watching", "judging") and (depth := self.iterator.depth()) is not None:
            self.num_ready = depth.ready
        self.thread_s = time.thread_time()
        self.account.hook_s += time.perf_counter() - self.begun

    def after_step(self, begun: float, ended: float, batch: Any) -> None:
        """``begun``, ``ended``: of ``next``, by ``time.perf_counter``."""
        account, blocked_s = self.account, ended - begun
        if not self.steps.num_workers:
            self.cpu_s += time.thread_time() - self.thread_s
            self.trust.after_batch(batch)
        if self.num_delivered < 3:
            size = limits.BatchSize.of(batch)
            self.batch = max(size, self.batch or size, key=lambda each: each.num_bytes)
        self.num_delivered += 1
        account.num_batches += 1
        complete = False
        account.blocked_s += blocked_s
        account.total_s += blocked_s
        if self.last_end is None:
            self.begins_s += blocked_s
        else:
            between_s = max(0.0, begun - self.last_end - (Shared.blocked_s - self.blocked_then_s))
            account.total_s += between_s
            complete = self.steps.add(blocked_s, between_s, self.num_ready)
            if self.steps.skip == 1:
                self._read_clocks()
        Shared.blocked_s += blocked_s
        self.blocked_then_s = Shared.blocked_s
        self._note_switches()
        if self.loader.withdrawn:
            failed = self.loader.withdrawn.pop()
            number = counted(failed.settings.num_workers, "worker")
            self._leave_at(self.num_delivered - 1, f"{number} failed ({failed.reason})")
        elif account.state == "starting":
            self._starting()
        elif account.state == "checking":
            self._checking()
        elif complete and len(self.steps.blocked) >= _LOOKS.get(account.state, math.inf):
            reading = self.steps.reading(self.several_ranks)
            if reading is not None and is_enough(reading, self.steps.num_workers):
                getattr(self, f"_{account.state}")(reading)
        self.last_end = time.perf_counter()
        account.hook_s += self.last_end - ended

    def _now(self, num_workers: int, queued: int = 0) -> None:
        """So many workers deliver from now on. ``queued``: those of which batches were asked for before."""
        if num_workers != self.steps.num_workers:
            self.steps = Steps(num_workers)
        self.steps.skip = max(3, 2 * queued)
        self.account.num_workers, self.clocks = num_workers, None

    def _worker_pids(self) -> list[int]:
        return [worker.pid for worker in getattr(self.iterator._lane[0], "_workers", ())]

    def _read_clocks(self) -> None:
        """To compare with later: a worker's CPU time holds what its start took."""
        workers = self.iterator.workers() if self.steps.num_workers else []
        ended, cpu_s = sum(each.num_ended for each in workers), sum(each.cpu_s for each in workers)
        self.clocks = (ended, cpu_s, limits.queued_s(self._worker_pids()))
        self.cpu_s, self.cpu_steps = 0.0, self.num_delivered

    cpu_s = 0.0
    """Of the training process's thread, in which it loaded since the clocks were read."""

    def _work(self, reading: Reading) -> Work | None:
        """What a batch takes, as the clocks say by now. None: too little was loaded since."""
        if self.clocks is None:
            return None
        if self.steps.num_workers == 0:
            self.draws_random |= self.trust.draws_random
            cpu_s = min(reading.blocked_s, self.cpu_s / max(1, self.num_delivered - self.cpu_steps))
            return Work(load_s=reading.blocked_s, cpu_s=cpu_s, start_cpu_s=self.start_cpu_s)
        workers = [each for each in self.iterator.workers() if each.num_timed]
        self.draws_random |= any(each.draws for each in workers)
        ended = sum(each.num_ended for each in workers)
        made = ended - self.clocks[0]
        if not workers or made < 2:
            return None
        cpu_s = (sum(each.cpu_s for each in workers) - self.clocks[1]) / made
        spent_s = (sum(each.cpu_s for each in workers) - ended * cpu_s) / len(workers)
        self.start_cpu_s = max(_FORK_CPU_S, spent_s)
        return Work(
            load_s=max(1e-9, sum(each.made_s for each in workers) / sum(each.num_timed for each in workers)),
            cpu_s=cpu_s,
            start_cpu_s=self.start_cpu_s,
            queued_s=max(0.0, (limits.queued_s(self._worker_pids()) - self.clocks[2]) / made),
        )

    def _left(self) -> float:
        """Batches that workers which start now will load: those of another epoch, too, where they are persistent."""
        try:
            length = len(self.sampler)
        except Exception:  # a sampler without a length, or with one that only its own loader can tell
            return math.inf
        return length * (2 if self.view.persistent_workers else 1) - self.num_delivered

    def _start_s(self, number: int) -> float:
        """Seconds until so many workers deliver."""
        return self.start_cpu_s * max(1.0, number / limits.num_cores()) + _STARTING_S * number

    # States

    def _watching(self, reading: Reading) -> None:
        self._note_rate(reading)
        other = Shared.trying
        if not reading.waits:
            self._rest("the step")
            return
        if (other not in (None, self) and other.watched() is not None) or (work := self._work(reading)) is None:
            return
        now = self.steps.num_workers
        self.cpu_rate = work.cpu_s / reading.total_s if now else 0.0
        others = [each for each in Shared.tuners if each is not self]
        bound = limits.most_workers(
            work,
            self.batch or limits.BatchSize(0, 0),
            self.own,
            others_cpu=sum(each.cpu_rate for each in others if each.watched() is not None),
            max_workers=self.options.max_workers,
            worker_pid=next(iter(self._worker_pids()), None),
        )
        if now > bound.most and bound.reason == "cores" and bound.most not in self.tried:
            self._switch(bound.most, reading, work)
            return
        want, saved_s = best_number(reading, work, bound.most, self._left(), self._start_s)
        is_bound = needed(work, reading.step_s) > bound.most
        if 0.8 * now <= want <= 1.2 * now and now > 1 and reading.waiting_fraction > _STEP_UP:
            want = min(bound.most, max(now + 1, round(1.3 * now)))
        if want <= now or any(abs(want / one - 1) < 0.15 for one in self.tried):
            self._rest(bound.reason if is_bound else "workers", bound.text if is_bound else None)
        elif saved_s <= 0:
            self._rest("workers", "it ends before more workers would have gained anything")
        else:
            self._switch(want, reading, work)

    def _switch(self, want: int, reading: Reading, work: Work) -> None:
        now, self.change = self.steps.num_workers, (self.steps.num_workers, want, reading, work)
        reason = self.trust.reason_against()
        if self.draws_random and self.options.exact:
            reason = "its samples are random, and --exact keeps their random numbers"
        if reason is not None:
            self._leave(reason)
        elif self.options.dry_run:
            gain = reading.total_s / predicted_s(work, reading.step_s, want)
            text = f"num_workers={want}" + (f", predicted {gain:.2g} times as fast" if want > now else "")
            self.account.advice.append(text)
            self._rest("workers", f"--dry-run; try {text}")
        elif not (self.is_trusted or self.trust.has_read_again):
            self.trust.read_again(self.loader.table)
            Shared.trying, self.account.state = self, "checking"
        elif not self.iterator.may_start(self.own.changed(num_workers=want)):
            self.target, self.starts_blocking = want, True
            self._rest("workers", f"starting others would stop the loop for long; the next epoch begins with {want}")
        else:
            if self.draws_random and not self.account.switches:
                self.say("samples are random: other workers draw other random numbers, as when you set num_workers")
            self.tried.append(want)
            Shared.trying, self.target = self, want
            self.pending, self.account.state = self.loader.switch(num_workers=want), "starting"

    def _checking(self) -> None:
        """Workers read again what the training process read; then the switch that waits for that goes on."""
        assert self.change is not None
        reason = self.trust.compare()
        if reason is not None:
            self._leave(reason)
        elif self.trust.has_read_again:
            self.trust.close()
            self.is_trusted = True
            self._switch(*self.change[1:])

    def _starting(self) -> None:
        if self.pending is None:  # the user's workers have begun an epoch, and others follow if that takes less time
            assert self.change is not None
            assert self.target is not None
            _, _, before, work = self.change
            number, saved_s = best_number(before, work, self.target, self._left(), self._start_s)
            self.account.state = "starting" if saved_s > 0 else "resting"
            self.pending = self.loader.switch(num_workers=number) if saved_s > 0 else None
        elif self.pending.delivers_s is not None:
            number = self.pending.settings.num_workers
            self._now(number, queued=number)
            self.account.state = "judging" if self.kept is None or number > self.kept else "resting"

    def _judging(self, reading: Reading) -> None:
        assert self.change is not None
        was, now, before, _ = self.change
        fewer = now < was
        gained = has_gained(reading, before, now, fewer=fewer, several_ranks=self.several_ranks)
        if gained is None:
            return
        Shared.trying = None
        if not gained:
            self.target = None if was == self.own.num_workers else was
            self.say(f"{was} → {counted(now, 'worker')} gained nothing; back to {was}")
            self.loader.switch(num_workers=was)
            self._now(was, queued=now)
            self._rest("handing batches over")
            return
        self._note_rate(reading)
        self.kept = now
        limit = "the step limits" if not reading.waits else "the cores limit" if fewer else "the workers limit"
        self.say(f"{self.account.change_text(was, now)}; {limit} now")
        work, can_correct = self._work(reading), len(self.tried) < _TRIES and not fewer
        idle = now if work is None else needed(work, reading.total_s)
        if can_correct and reading.waits:
            self.account.state = "watching"
        elif can_correct and work is not None and now > 2 and idle <= 0.65 * now:
            self._switch(idle, reading, work)
        else:
            self._rest(limit)

    def _rest(self, bottleneck: str, reason: str | None = None) -> None:
        account = self.account
        account.bottleneck, account.state = bottleneck, "resting"
        if reason is not None and reason != account.reason:
            self.say(f"stays at {counted(self.steps.num_workers, 'worker')}: {reason}")
        account.reason = reason
        self.steps = Steps(self.steps.num_workers, skip=self.steps.skip)

    def _resting(self, reading: Reading) -> None:
        self._note_rate(reading)
        self.steps = Steps(self.steps.num_workers)

    # Its end

    def _leave(self, reason: str) -> None:
        """Alone from now on."""
        self.trust.close()
        if Shared.trying is self:
            Shared.trying = None
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
            if self.replayed is not None:
                self._now(switch.settings.num_workers)

    def _note_switch(self, batch: int, number: int) -> None:
        self.account.switches.append({"epoch": self.epoch, "batch": batch, "num_workers": number})

    def _note_rate(self, reading: Reading) -> None:
        counters, account = self.loader.counters, self.account
        account.samples_per_s = counters.num_samples / max(1, counters.num_batches) / reading.total_s
        account.first_samples_per_s = account.first_samples_per_s or account.samples_per_s
