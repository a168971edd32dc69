"""Which steps of loading take the time: each process that loads looks at what is executed there.

**Computing** is seen by a timer of the loading thread's own CPU time. When it expires, that thread itself notes what it
executes, once Python looks for signals, so nobody waits for the interpreter's lock. The signal is ignored by default,
and comes only while the thread runs: it ends no system call that waits.

**Waiting** is seen by another thread, at random times. The kernel says whether the loading thread waits, and for how
long it ran in all, by which the two are put together.

**Operators**, as in ``image / 255``, are not followed by a look for signals: their time counts for the next call. Where
the other thread finds that one runs without the lock, it has the loading thread note when it looks next, and as much
time is moved. To this end Python runs the signal's handler, although no signal was sent.

**How often**: 20 times a second until it has made 200 looks, then once a second, at most 0.5% of a core.
"""

import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dis import opname
from functools import cache, lru_cache, partial
from itertools import chain
from types import FrameType
from typing import Any

import numpy as np

from loadtune.records.loading import LoadingStep
from loadtune.stream import torch_private as private
from loadtune.stream.sample_table import NUM_ROWS, SharedMemory
from loadtune.stream.stacks import Path, Places, path_of, places_of

_OFTEN_PER_S, _SELDOM_PER_S, _NUM_OFTEN, _NOTES_A_LOOK = 20.0, 1.0, 200, 2.5
_MOST_OF_CORE = 0.005
_FEWEST = 40
"""Looks at loading from which on steps are told: a share of 50% is then within 8 points in two of three cases."""
_MOST_A_LOOK_S = 0.005
"""What is above that is a garbage collection, which would have come in another thread."""
_WRITE_S, _END_S = 0.5, 1.0
_LOOKS_AFTER = ("CALL", "JUMP_BACKWARD", "RESUME")
"""Instructions after which Python looks for signals, and lets other threads run."""
_SLOT_BYTES, _NUM_KEPT = 1 << 14, 24
_RUNTIME_BYTES = 1 << 20  # more than the interpreter's own state, which has its lock
_SIGNAL = signal.SIGURG
_MOST_NOTED, _MOST_PATHS = 250, 1000
_HANDING: Path = ("sending batches", "")


def _none_seen() -> dict[Any, Any]:
    """For each step an array: the looks that saw it compute, and those that saw it wait."""
    return defaultdict(lambda: np.zeros(2))


class _Found:
    """What was seen in one process."""

    def __init__(self, kept: bytes = b"[0, 0, 0, true, 0, [], []]") -> None:
        """``kept``: what an earlier process left that had the same row."""
        self.ran_s, self.waited_s, self.handed_s, self.knows_waits, self.num_random, steps, moves = json.loads(kept)
        """Seconds in which the thread ran or was ready to, and others; and those in which the one ran that hands
        batches over. `num_random`: looks at random times."""
        self.moves = Counter[tuple[Path, Path]]()
        """Of the looks at random times: what was executed, and for what its time counts."""
        self.moves.update({(tuple(path), tuple(counted)): number for path, counted, number in moves})
        self.steps: dict[Path, Any] = _none_seen()
        self.steps.update((tuple(path), np.array(seen)) for path, seen in steps)

    @property
    def num_looks(self) -> float:
        return float(sum(seen.sum() for path, seen in self.steps.items() if path))

    def encoded(self) -> bytes:
        largest = sorted(((path, seen.tolist()) for path, seen in self.steps.items()), key=lambda step: -sum(step[1]))
        moves = [(*paths, number) for paths, number in self.moves.most_common(_NUM_KEPT)]
        seconds = self.ran_s, self.waited_s, self.handed_s
        kept = (*seconds, self.knows_waits, self.num_random, largest[:_NUM_KEPT], moves)
        return json.dumps(kept, ensure_ascii=False).encode(errors="replace")

    def seconds(self) -> Iterator[tuple[Path, Any]]:
        """For each step the seconds in which it computes, and in which it waits."""
        each = np.array((self.ran_s, self.waited_s)) / np.maximum(1e-9, sum(self.steps.values()))
        found = _none_seen() | {path: seen * each for path, seen in self.steps.items()}
        for (path, counted), number in self.moves.items():
            moved_s = min(found[counted][0], number / self.num_random * (self.ran_s + self.waited_s))
            found[counted] = found[counted] - (moved_s, 0.0)
            found[path] = found[path] + (moved_s, 0.0)
        yield from ((path, seconds) for path, seconds in found.items() if path)
        if self.handed_s:
            yield _HANDING, np.array((self.handed_s, 0.0))


class Looks(SharedMemory):
    """What the processes of one loader were seen to do: a slot for each row of workers and for the training process.

    A worker goes on with what an earlier one of its row left. Nothing of the user's is in it but names of functions,
    classes and files, and lines of source.
    """

    _NUM_BYTES = NUM_ROWS * (4 + _SLOT_BYTES)

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(descriptor)
        self._lengths = memoryview(self._memory)[: 4 * NUM_ROWS].cast("I")

    def watch(self, row_number: int | None, dataset: Any, collate_fn: Any) -> "Watch":
        """Look at the thread that asks for it, until `Watch.stop` or the end of the process. Whoever traces or profiles
        it, or uses the signal, is left alone.

        ``row_number``: of the worker. None: it is the training process, which loads only within ``with watch:``.
        """
        watch = Watch(self, 0 if row_number is None else 1 + row_number, dataset, collate_fn)
        with suppress(Exception):  # the system may give no timer, or no more threads
            if _may_look():
                watch.start()
        return watch

    def steps(self) -> tuple[LoadingStep, ...]:
        """Of all processes together, the largest first. Empty: too little was seen."""
        found = [self.read(slot) for slot, length in enumerate(self._lengths) if length]
        total, named = _none_seen(), _none_seen()
        for path, seconds in chain.from_iterable(each.seconds() for each in found if each.steps):
            total[path] += seconds
        whole = sum(seconds.sum() for seconds in total.values())
        is_enough = sum(each.num_looks + each.handed_s * _OFTEN_PER_S for each in found) >= _FEWEST
        for name, seconds in _named(total, whole / 2) if is_enough else ():
            named[name] += seconds
        know_waits = all(each.knows_waits for each in found)
        steps = (
            LoadingStep(
                name=name,
                share=float(seconds.sum() / whole),
                waits=float(seconds[1] / seconds.sum()) if know_waits else None,
            )
            for name, seconds in named.items()
            if seconds.sum() > 0
        )
        return tuple(sorted(steps, key=lambda step: -step.share))

    def read(self, slot: int) -> _Found:
        """Nothing where it is empty, or just being written."""
        at = 4 * NUM_ROWS + slot * _SLOT_BYTES
        written = bytes(self._memory[at : at + self._lengths[slot]])
        is_whole = len(written) > 4 and zlib.crc32(written[4:]) == int.from_bytes(written[:4], "little")
        return _Found(written[4:]) if is_whole else _Found()

    def write(self, slot: int, found: _Found) -> None:
        encoded = found.encoded()
        written, at = zlib.crc32(encoded).to_bytes(4, "little") + encoded, 4 * NUM_ROWS + slot * _SLOT_BYTES
        if len(written) <= _SLOT_BYTES:
            self._memory[at : at + len(written)] = written
            self._lengths[slot] = len(written)


def _named(total: dict[Path, Any], half: float, depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Names of steps. A line that has more than half of the looks, and leads to others, says little by itself: it is
    divided into those."""
    groups = defaultdict[Path, dict[Path, Any]](dict)
    for path, seen in total.items():
        groups[path[: min(depth, len(path) - 1)]][path] = seen
    for group, members in groups.items():
        seen = sum(members.values())
        if seen.sum() > half and any(len(path) - 1 > depth for path in members):
            yield from _named(members, half, depth + 1)
        else:
            called = [path[-1] for path, own in members.items() if path[:-1] == group and own.sum() > seen.sum() / 2]
            yield (f"{group[-1]}  [{called[0]}]" if any(called) else group[-1])[:200], seen


# In the process that loads


class Watch:
    """Looks at the thread that made this. It ends with the process; whatever fails in it ends it alone."""

    def __init__(self, looks: Looks, slot: int, dataset: Any, collate_fn: Any) -> None:
        self._looks, self._slot, self._in_training = looks, slot, slot == 0
        self._path_of = lru_cache(_MOST_PATHS)(partial(path_of, dataset=dataset, collate_fn=collate_fn))
        self._whom, self._task = threading.get_ident(), threading.get_native_id()
        self._found = looks.read(slot)
        self._random = random.Random()  # the user's numbers stay as they are
        self._timer: _Timer | None = None
        self._thread: threading.Thread | None = None
        self._clock = time.pthread_getcpuclockid(self._whom)
        self._schedstat = self._feeder = -1
        """Descriptors: of the loading thread's file, and of that of the thread of its queue. -1: there is none yet."""
        self._entered_s: tuple[float, float] | None = None
        self._made, self._num_starts = time.monotonic(), 0

    def __enter__(self) -> None:
        """The training process loads from now on. In another thread than the first one's nothing is seen."""
        if self._timer is not None and threading.get_ident() == self._whom:
            self._entered_s = time.monotonic(), self._ran_s()
            self._timer.go_on(self._every_s())

    def __exit__(self, *_: object) -> None:
        if self._timer is not None and self._entered_s is not None:
            self._timer.pause()
            (begun_s, ran_s), self._entered_s = self._entered_s, None
            self._count(time.monotonic() - begun_s, self._ran_s() - ran_s)

    def start(self) -> None:
        self._schedstat, self._timer = _said_of(self._task, "schedstat"), _Timer()
        if not self._in_training:
            self._timer.go_on(self._every_s())
        _mind_forks()
        self.go_on()

    def go_on(self) -> None:
        """At first, and after a fork: about once a second at the most."""
        if self._num_starts < 10 + time.monotonic() - self._made:
            self._num_starts += 1
            self._ends = threading.Lock()
            self._ends.acquire()
            thread = threading.Thread(target=self._run, name="loadtune-looks", daemon=True)
            thread.start()
            self._thread = thread
            _watches.add(self)

    def forget(self) -> None:
        """In a process that was forked: it is not looked at."""
        self._timer = None

    def stop(self) -> None:
        _watches.discard(self)
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.delete()
        self.pause()
        for descriptor in filter(lambda each: each >= 0, (self._schedstat, self._feeder)):
            os.close(descriptor)
        self._schedstat = self._feeder = -1

    def pause(self) -> None:
        """The thread is gone afterwards, also for the system, which Python 3.12 asks at a fork."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ends.release()
            thread.join(_END_S)
            deadline = time.monotonic() + _END_S
            while os.path.exists(f"/proc/self/task/{thread.native_id}") and time.monotonic() < deadline:
                time.sleep(1e-4)

    def _run(self) -> None:
        timer = self._timer
        with suppress(Exception):
            call = _said_of(self._task, "syscall")
            try:
                if timer is not None:
                    self._look(timer, call)
            finally:
                os.close(call)
        with suppress(Exception):
            self._looks.write(self._slot, self._found)

    def _look(self, timer: "_Timer", syscall: int) -> None:
        runtime = ctypes.cast(getattr(ctypes.pythonapi, "_PyRuntime", 0), ctypes.c_void_p).value or 0
        begun = then = wrote = time.monotonic()
        ran_s, handed_s, is_over = self._ran_s(), self._handed_s(), False
        spent_s, used_s = 0.0, time.thread_time()
        while not is_over:
            before_s, used_s = used_s, time.thread_time()
            spent_s += min(used_s - before_s, _MOST_A_LOOK_S)
            due = max(then + self._random.uniform(0.5, 1.5) / self._per_s(), begun + spent_s / _MOST_OF_CORE)
            is_over = self._ends.acquire(timeout=max(0.0, due - time.monotonic()))
            if not _is_ours_or_free():
                timer.pause()
                return
            if not is_over and (self._entered_s is not None or not self._in_training):
                self._look_once(timer, _words(syscall), runtime)
            while timer.seen:
                places, number, asked = timer.seen.popleft()
                self._saw(places, (number, 0))
                counted = self._path_of(places)
                self._found.moves.update((path, counted) for path in map(self._path_of, asked) if path != counted)
            before, ran_before_s, handed_before_s = then, ran_s, handed_s
            then, ran_s, handed_s = time.monotonic(), self._ran_s(), self._handed_s()
            if not self._in_training:
                self._count(then - before, ran_s - ran_before_s)
                self._found.handed_s += max(0.0, handed_s - handed_before_s)
            if then - wrote > _WRITE_S:
                self._looks.write(self._slot, self._found)
                wrote = then

    def _look_once(self, timer: "_Timer", said: list[bytes], runtime: int) -> None:
        """At a random time. Where the thread waits for the interpreter's lock, its timer sees what it does; and so it
        does where Python looks for signals next."""
        self._found.num_random += 1
        if self._found.num_random == _NUM_OFTEN and not self._in_training:
            timer.go_on(self._every_s())
        self._found.knows_waits &= bool(said)
        frame = sys._current_frames()[self._whom]
        if said == [b"running"]:
            name = opname[frame.f_code.co_code[frame.f_lasti]]
            if not any(each in name for each in _LOOKS_AFTER):
                timer.ask(places_of(frame))
        elif said and not 0 <= int(said[1], 16) - runtime < _RUNTIME_BYTES:
            self._saw(places_of(frame), (0, 1))

    def _saw(self, places: Places, seen: tuple[int, int]) -> None:
        """``seen``: how often it computed there, and waited."""
        self._found.steps[self._path_of(places)] += seen

    def _count(self, seconds: float, ran_s: float) -> None:
        self._found.ran_s += ran_s
        self._found.waited_s += max(0.0, seconds - ran_s)

    def _per_s(self) -> float:
        return _OFTEN_PER_S if self._found.num_random < _NUM_OFTEN else _SELDOM_PER_S

    def _every_s(self) -> float:
        """CPU seconds from one note of the thread to the next."""
        return 1 / (_NOTES_A_LOOK * self._per_s())

    def _ran_s(self) -> float:
        """Seconds in which the loading thread ran or was ready to."""
        return sum(_seconds(self._schedstat)) or time.clock_gettime(self._clock)

    def _handed_s(self) -> float:
        """Seconds in which the thread of the worker's queue ran. 0: there is none yet."""
        if self._feeder < 0 and not self._in_training:
            feeders = (each.native_id for each in threading.enumerate() if each.name == private.FEEDER)
            self._feeder = next((_said_of(each, "schedstat") for each in feeders if each), -1)
        return sum(_seconds(self._feeder)[:1])


class _SignalEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("more", ctypes.c_byte * 44),
    )


class _Timer:
    """Of the CPU time of the thread that makes it. Where it expires, the thread itself notes what it executes."""

    _THREAD_ID = 4
    _noting: "_Timer | None" = None

    def __init__(self) -> None:
        self._clock, self._id = time.pthread_getcpuclockid(threading.get_ident()), ctypes.c_void_p()
        event = _SignalEvent(signal=_SIGNAL, notify=self._THREAD_ID, thread=threading.get_native_id())
        if _libc().timer_create(self._clock, ctypes.byref(event), ctypes.byref(self._id)):
            raise OSError("The system gives no timer.")
        self.seen = deque[tuple[Places, int, list[Places]]](maxlen=_MOST_NOTED)
        """Where it noted; how often the timer had expired; and where the thread was each time it was asked to note."""
        self._asked, self._is_over = list[Places](), False
        self._every_s = self._due_s = self._left_s = 0.0

    def go_on(self, every_s: float) -> None:
        if self._is_over or not _is_ours_or_free():
            return
        if _Timer._noting is not self:
            signal.signal(_SIGNAL, self._note)
            signal.siginterrupt(_SIGNAL, False)
            _Timer._noting = self
        self._every_s, first_s = every_s, self._left_s or every_s
        self._due_s = time.clock_gettime(self._clock) + first_s
        self._set(every_s, first_s)

    def _note(self, _: int, frame: FrameType | None) -> None:
        """During a call that is long it has expired several times. The kernel sees that at its ticks alone: an expiry
        that it has not seen yet counts for what is executed when it does, or calls would get more than their time.
        What is raised in here is raised by signal handlers of the user's, and reaches their code."""
        if sys.gettrace() is not None or sys.getprofile() is not None or _wakes_others():  # set by the user meanwhile
            self._is_over = True
            self._set(0.0, 0.0)
            return
        late_s, number = time.clock_gettime(self._clock) - self._due_s, 0
        if late_s >= 0:
            number = 1 + int(late_s / self._every_s) - self._is_unseen()
            self._due_s += number * self._every_s
        asked, self._asked = self._asked, []
        self.seen.append((places_of(frame), number, asked))

    def ask(self, places: Places) -> None:
        """The thread notes where it is when it looks for signals next, as if one had come: none is sent."""
        if not self._is_over:  # else who is woken by signals would be
            self._asked.append(places)
            ctypes.pythonapi.PyErr_SetInterruptEx(int(_SIGNAL))

    def pause(self) -> None:
        self._set(0.0, 0.0)
        self._left_s = max(1e-3, self._due_s - time.clock_gettime(self._clock))

    def _is_unseen(self) -> bool:
        """Whether it has expired since the kernel looked, which then tells a remaining nanosecond."""
        left = (ctypes.c_long * 4)()
        _libc().timer_gettime(self._id, left)
        return left[2:4] == [0, 1]

    def _set(self, every_s: float, first_s: float) -> None:
        new = (ctypes.c_long * 4)()
        for at, seconds in ((0, every_s), (2, first_s)):
            new[at], new[at + 1] = int(seconds), int(seconds % 1 * 1e9)
        _libc().timer_settime(self._id, 0, new, None)

    def delete(self) -> None:
        _libc().timer_delete(self._id)
        if _Timer._noting is self and threading.current_thread() is threading.main_thread():
            if _is_ours_or_free():
                signal.signal(_SIGNAL, signal.SIG_DFL)
            _Timer._noting = None


def _said_of(thread: int, name: str) -> int:
    """The descriptor of what the kernel says of a thread; of nothing where it does not. Python warns of a file that is
    not closed in a process that was forked."""
    path = f"/proc/self/task/{thread}/{name}"
    return os.open(path if os.path.exists(path) else os.devnull, os.O_RDONLY)


def _seconds(schedstat: int) -> list[float]:
    """In which a thread ran, and in which it was ready to. Empty: not known."""
    return [int(word) * 1e-9 for word in _words(schedstat)[:2]]


def _words(descriptor: int) -> list[bytes]:
    """Read while this thread keeps the interpreter's lock, so that it is of the moment in which stacks are read."""
    text = ctypes.create_string_buffer(256)
    length = _libc().pread(descriptor, text, len(text), ctypes.c_long(0))
    return text.raw[: max(0, length)].split()


@cache
def _libc() -> ctypes.PyDLL:
    return ctypes.PyDLL(None)


def _may_look() -> bool:
    """Whether nobody traces or profiles this process, uses the signal, or is woken by signals, as asyncio."""
    if threading.current_thread() is not threading.main_thread():
        return False
    set_by_user = (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile())
    tools: Any = getattr(sys, "monitoring", None)  # Python 3.12
    has_tool = tools is not None and any(map(tools.get_tool, range(6)))
    is_free = _is_ours_or_free() and (_Timer._noting is not None or not _is_caught_in_c())
    return set_by_user == (None,) * 4 and not has_tool and is_free and not _wakes_others()


def _is_ours_or_free() -> bool:
    """The signal."""
    handler, noting = signal.getsignal(_SIGNAL), _Timer._noting
    return handler == (signal.SIG_DFL if noting is None else noting._note)


def _is_caught_in_c() -> bool:
    with open("/proc/self/status") as lines:
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (_SIGNAL - 1) & 1)


def _wakes_others() -> bool:
    """Whether each signal is written to a descriptor of the user's."""
    if (descriptor := signal.set_wakeup_fd(-1)) == -1:
        return False
    with suppress(OSError, ValueError):  # the user has closed it
        signal.set_wakeup_fd(descriptor)
    return True


_watches = set[Watch]()
_forks = threading.RLock()


@cache
def _mind_forks() -> None:
    """No process forks while the thread runs: Python 3.12 warns of that."""
    os.register_at_fork(before=_pause, after_in_parent=_go_on, after_in_child=_forget)


def _pause() -> None:
    _forks.acquire()
    _for_all(Watch.pause)


def _go_on() -> None:
    _for_all(Watch.go_on)
    _forks.release()


def _forget() -> None:
    _for_all(Watch.forget)
    _watches.clear()
    _forks.release()


def _for_all(act: Callable[[Watch], None]) -> None:
    for watch in list(_watches):
        with suppress(Exception):
            act(watch)
