"""Starting workers without blocking the loop: torch's iterator starts all of them in its constructor."""

import io
import math
import os
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

FORK_SLICE_S = 0.05
"""Seconds that one step of the loop may spend on forking workers, one worker at least."""


class DeferredContext:
    """A multiprocessing context whose processes are made and not started: torch's constructor returns at once."""

    def __init__(self, context: Any) -> None:
        """``context``: of the loader. None: torch's default."""
        self._context = context or torch.multiprocessing
        self.processes: list[Any] = []

    def Queue(self) -> Any:
        return self._context.Queue()

    def Event(self) -> Any:
        return self._context.Event()

    def Process(self, **arguments: Any) -> "_Unstarted":
        self.processes.append(self._context.Process(daemon=True, **arguments))
        return _Unstarted()


class _Unstarted:
    """What torch's constructor asks of a process that it has just started."""

    daemon = True
    pid = os.getpid()  # it is registered as a worker's for a moment, where None is refused

    def start(self) -> None:
        """Later, by `Starter`."""


class Starter:
    """Starts the processes of one pool: by fork a few in each step of the loop, else in a thread.

    Under forkserver and spawn a start pickles the dataset and waits for the new process to read it; the thread waits
    instead of the loop. A fork is fast, and a process must not be forked while another thread is in the middle of
    something, so the loop's own thread does it.
    """

    def __init__(self, processes: list[Any], method: str, started: Callable[[Any], None]) -> None:
        """``started``: called with each process when it runs, perhaps in the thread."""
        self._waiting, self._started = list(processes), started
        self._abandoned = False
        self.begun_s = time.monotonic()
        self.error: Exception | None = None
        self._thread: threading.Thread | None = None
        if method != "fork":
            self._thread = threading.Thread(target=self._start_all, name="loadtune-start-workers", daemon=True)
            self._thread.start()

    def poll(self) -> bool:
        """Start what a step may. Whether all run."""
        deadline = time.monotonic() + FORK_SLICE_S
        while self._thread is None and self._waiting and self.error is None:
            self._start_one()
            if time.monotonic() > deadline:
                break
        return not self._waiting and (self._thread is None or not self._thread.is_alive())

    def abandon(self) -> None:
        """Start no more; waits for the one that is being started."""
        self._abandoned = True
        if self._thread is not None:
            self._thread.join()
        self._waiting.clear()

    def _start_all(self) -> None:
        while self._waiting and self.error is None and not self._abandoned:
            self._start_one()

    def _start_one(self) -> None:
        process = self._waiting[0]
        try:
            process.start()
            self._started(process)
        except Exception as error:
            self.error = error
        finally:
            del self._waiting[0]


class _TooSlowError(Exception):
    pass


class _Counter(io.RawIOBase):
    """Counts what is written, and gives up at a time."""

    def __init__(self, deadline: float) -> None:
        self.num_bytes, self._deadline = 0, deadline

    def write(self, data: Any) -> int:
        if time.monotonic() > self._deadline:
            raise _TooSlowError
        self.num_bytes += len(data)
        return len(data)


class _Sizer(pickle.Pickler):
    """Pickles as for a worker, to which tensors go as handles of shared memory."""

    def reducer_override(self, obj: Any) -> Any:
        return (int, ()) if isinstance(obj, torch.Tensor) else NotImplemented


def pickle_s(dataset: Any, limit_s: float) -> float:
    """Seconds for which a start under forkserver or spawn keeps the loop's thread from running: pickling the dataset.

    Measured by pickling it into nowhere. Infinite where that takes longer than ``limit_s``. What cannot be pickled here
    (a lock, which goes to child processes alone) ends the measurement with what it took until there.
    """
    begun = time.monotonic()
    try:
        _Sizer(_Counter(begun + limit_s), protocol=pickle.HIGHEST_PROTOCOL).dump(dataset)
    except _TooSlowError:
        return math.inf
    except Exception:
        pass  # the pool's own start says what is wrong
    return time.monotonic() - begun
