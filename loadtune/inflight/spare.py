"""Changes of the user's code for one loader: tried once beside the loop at rest, and predicted. They are tried on the
user's samples, in processes that never harm the training.

The *keeper* is started as the loader's workers are. It runs nothing of the user's but what unpickles the dataset. It
forks the process that *tries*, stops it in every second slice of time (`loadtune.decide.advice.Slices`), and ends it
when its time is over, the training is gone or the training says so. The other has a low priority, sees itself as a
worker of the loader, prints nowhere, and sends what it finds through a pipe. If it crashes or hangs, only the keeper
notices. Signals of stopping and going on reach the keeper, not the training.
"""

import ctypes
import faulthandler
import logging
import os
import random
import resource
import select
import signal
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import torch

from loadtune.changes.way import Way
from loadtune.decide import advice as decide
from loadtune.decide.advice import MOST_S, AtRest, Slices, is_on
from loadtune.errors import raised_by_handler
from loadtune.inflight import readings
from loadtune.inflight.account import Account
from loadtune.model.workers import RAM_SHARE, SHM_SHARE
from loadtune.records.loading import Examined
from loadtune.stream import torch_private as private
from loadtune.stream.shm_cleanup import is_alive, remove_segments
from loadtune.stream.trust import shared_state
from loadtune.workload.loaders import LoaderParts

MOST_CPU_S = 60.0
"""CPU seconds that trying may take."""
_END_S = 10
"""CPU seconds after that until the kernel ends it."""
_SET_PDEATHSIG = 1  # of prctl
_LOWEST = 19  # of nice
_NUM_BATCHES, _ENOUGH = 16, 64
"""Newest batches whose samples are tried, and samples that are enough where there are fewer batches."""


class Advice:
    """Of one loader. It is over before it begins where nobody wants it."""

    def __init__(self, account: Account, *, is_wanted: bool, may_run_s: float) -> None:
        self.account, self.is_over, self._may_run_s = account, not is_wanted, may_run_s
        self.drawn: deque[Any] = deque(maxlen=_NUM_BATCHES)
        """Index batches that were delivered."""
        self.spare: Spare | None = None
        """While something is tried."""

    def parts_of(self, loader: Any) -> LoaderParts | None:
        """None: nothing is tried with it."""
        with suppress(Exception):  # of a loader of a class of its own
            return None if self.is_over else LoaderParts.of(loader)
        return None

    def begin(self, loop: AtRest, parts: LoaderParts | None, refusal: str | None, *, is_settled: bool) -> None:
        """If that is due. ``parts``: of the loader. ``refusal``: why no other process may read its dataset."""
        batches = [each if isinstance(each, list | tuple) else [each] for each in self.drawn]
        indices = list(chain.from_iterable(batches))
        if self.is_over or parts is None or (len(indices) < _ENOUGH and len(batches) < _NUM_BATCHES):
            return
        is_due, self.account.changes_reason = decide.begins(loop.hoped(), refusal, is_settled=is_settled)
        if not is_due:
            return
        if (shared := shared_state(parts.dataset, parts.collate_fn, parts.worker_init_fn)) is not None:
            self.is_over, self.account.changes_reason = True, f"processes share a part of the dataset ({shared})"
            return
        self._loop, self._slices = loop, Slices.of(loop.reading)
        try:
            way = _way(parts, indices)
            gpu_uuid = _gpu_uuid() if way.on_gpu else None
            nice = decide.niceness(loop.loop.cores)
            self.spare = Spare(way, max(1, loop.reading.num_workers), self._slices.slice_s, gpu_uuid, nice)
        except Exception as error:  # the system gives no process
            if raised_by_handler(error):
                raise
            self.is_over, self.account.changes_reason = True, f"its process did not start ({error})"

    def step(self, seconds: float, *, is_settled: bool) -> bool:
        """A step of the loop, while something is tried. Whether that has ended, with changes that are worth a word."""
        spare, account, now = self.spare, self.account, time.monotonic()
        assert spare is not None
        is_over = spare.poll()
        if len(spare.found) > len(account.changes):
            account.changes = list(spare.found)
            account.changes_gain = self._loop.gain(spare.found, spare.gpu_busy)
        if not is_over:
            rates = self._slices.rates if self._slices.add(now, seconds) else ()
            reason = decide.reason_to_stop(now - spare.begun_s, self._may_run_s, rates, is_settled=is_settled)
            if reason is not None and not self.is_over:
                self.is_over, account.changes_reason = True, reason
                spare.stop()
            return False
        self.spare, self.is_over = None, True
        account.changes_reason = account.changes_reason or spare.reason
        if not spare.found:
            account.changes_reason = account.changes_reason or "no change that applies makes loading much cheaper"
        return (account.changes_gain or 0.0) >= decide.TELLS


def _way(parts: LoaderParts, indices: list[Any]) -> Way:
    num_samples = 0
    with suppress(Exception):  # of a dataset without a length
        num_samples = len(parts.dataset)
    free = readings.read_free()
    memory_bytes = int(min(RAM_SHARE * free.ram_bytes, SHM_SHARE * free.shm_bytes) / free.num_ranks)
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return Way(loader=parts, indices=indices, num_samples=num_samples, memory_bytes=memory_bytes, on_gpu=on_gpu)


def _gpu_uuid() -> str | None:
    with suppress(Exception):  # no NVIDIA GPU
        return f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    return None


class Spare:
    """The training's side: `poll` it in each step. Raises nothing but what the start of a process raises."""

    def __init__(self, way: Way, num_workers: int, slice_s: float, gpu_uuid: str | None = None, nice: int = 19) -> None:
        """``gpu_uuid``: of the GPU that trains. None: none is known. ``nice``: of the process that tries."""
        context: Any = torch.multiprocessing.get_context(way.loader.multiprocessing_context)
        self.found: list[Examined] = []
        self.gpu_busy: float | None = None
        """Share of the time in which kernels ran, since it was started. None: the driver does not say."""
        self.reason: str | None = None
        """Why it ended early. None: it went to its end, or has not ended."""
        self.begun_s, self._is_whole = time.monotonic(), False
        self._results, self._writer = context.Pipe(duplex=False)
        self._news = select.poll()  # of a connection's own poll a step would take ten times as long
        self._news.register(self._results, select.POLLIN)
        way = replace(way, loader=replace(way.loader, sampler=None, generator=None))  # of no use; may not pickle
        given = (os.getpid(), way, num_workers, slice_s, gpu_uuid, nice, self._writer)
        self._process = context.Process(target=_keep, args=given, daemon=True, name="loadtune-spare")
        self._thread: threading.Thread | None = None
        if private.start_method(context) == "fork":
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the user's handlers stay here
            try:
                self._start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        else:  # pickling may take seconds; and the kernel takes the end of the thread that starts it for our end
            self._thread = threading.Thread(target=self._stay, name="loadtune-spare", daemon=True)
            self._thread.start()

    def _start(self) -> None:
        try:
            self._process.start()
        finally:
            self._writer.close()

    def _stay(self) -> None:
        try:
            self._start()
            self._process.join()
        except Exception as error:
            self.reason = f"its process did not start ({type(error).__name__}: {error})"

    def poll(self) -> bool:
        """Take what was found, some microseconds. Whether it has ended."""
        with suppress(EOFError, OSError):
            while self._news.poll(0):
                match self._results.recv():
                    case (found, busy):
                        self.found.append(found)
                        self.gpu_busy = busy
                    case reason:
                        self.reason = None if reason is None else str(reason)
                        self._is_whole = True
            return False
        if self._thread.is_alive() if self._thread is not None else self._process.is_alive():
            return False
        if not self._is_whole:
            self.reason = self.reason or "its process ended"
        return True

    def stop(self) -> None:
        """Without waiting for its end; `poll` tells that."""
        with suppress(AttributeError, ValueError, OSError):  # not started, or ended
            self._process.terminate()


def _keep(
    training: int, way: Any, num_workers: int, slice_s: float, gpu_uuid: str | None, nice: int, results: Any
) -> None:
    """The keeper, from its start to its end."""
    for each in signal.valid_signals():
        if callable(signal.getsignal(each)) or each == signal.SIGCHLD:
            signal.signal(each, signal.SIG_DFL)
    heeded = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
    signal.pthread_sigmask(signal.SIG_SETMASK, heeded)
    _end_with_parent(signal.SIGTERM)
    _silence()
    keeper, deadline, is_stopped = os.getpid(), time.monotonic() + MOST_S, False
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)  # with whatever the dataset starts
            _end_with_parent(signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if os.getppid() == keeper:
                _try(way, num_workers, gpu_uuid, nice, results)
        finally:
            os._exit(0)
    with suppress(OSError):
        os.setpgid(pid, pid)  # whoever comes first
    try:
        results.close()
        while (now := time.monotonic()) < deadline and is_alive(training):
            number = int(now / slice_s)
            if is_stopped is is_on(number):
                os.killpg(pid, signal.SIGCONT if is_stopped else signal.SIGSTOP)
                is_stopped = not is_stopped
            heard = signal.sigtimedwait(heeded, (number + 1) * slice_s - now)
            has_ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if has_ended or (heard is not None and heard.si_signo != signal.SIGCHLD):
                break
    finally:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        remove_segments([pid])
        os._exit(0)


def _end_with_parent(number: int) -> None:
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, number)


def _silence() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the user's own may be no standard streams
    logging.disable()
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _try(way: Any, num_workers: int, gpu_uuid: str | None, nice: int, results: Any) -> None:
    """In the process that tries: what is found goes through the pipe, and None at its end, or why it ended."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with suppress(OSError, ValueError):  # as a real-time process it would not yield; beside others of low priority, too
        is_low = os.nice(0) + nice > _LOWEST
        os.sched_setscheduler(0, os.SCHED_IDLE if is_low else os.SCHED_OTHER, os.sched_param(0))
    os.nice(nice)
    with suppress(OSError, ValueError):
        signal.signal(signal.SIGXCPU, _end)
        resource.setrlimit(resource.RLIMIT_CPU, (int(MOST_CPU_S) + 1, int(MOST_CPU_S) + _END_S))
    torch.set_num_threads(1)
    torch.multiprocessing.set_sharing_strategy("file_descriptor")  # type: ignore[no-untyped-call] # no process for it
    loader, seed = way.loader, int.from_bytes(os.urandom(4), "little")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    private.become_worker(num_workers, seed, loader.dataset)
    try:
        if loader.worker_init_fn is not None:
            loader.worker_init_fn(0)
        busy = import_module("loadtune.host.gpu").GpuBusy(gpu_uuid)
        too_little = list[str]()
        for found in import_module("loadtune.changes.trial").stacked(way, _is_over, too_little):
            results.send((found, busy.look()))
        results.send(_over() if _is_over() else ", ".join(too_little) or None)
    except BaseException as error:
        results.send(_over() if _is_over() else f"{type(error).__name__}: {error}")


def _over() -> str:
    return f"it took more than {MOST_CPU_S:.0f} s of CPU time"


def _is_over() -> bool:
    return time.process_time() + sum(os.times()[2:4]) >= MOST_CPU_S


def _end(*_: Any) -> NoReturn:
    raise SystemExit
