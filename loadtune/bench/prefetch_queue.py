"""How many batches stand ready in a DataLoader's queue, and how to end its workers without waiting for any.

PyTorch offers neither, so this reads private fields of `_MultiProcessingDataLoaderIter`, the same from 2.11 to 2.15.
Where one is missing the answer is None, or the loader is left to end by itself; nothing fails.
"""

import contextlib
import queue
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch.utils.data._utils as loader_internals

from loadtune.bench.shm_cleanup import answer_for, remove_segments

# Patience with workers that are in the middle of a batch nobody wants, all of them together. PyTorch gives each 5 s,
# one after the other; 50 ms each made 1 s of every trial with 16 workers.
_PATIENCE_S = 0.05
# Workers that were told to terminate do so at once; this is for a machine that is too busy to let them.
_TERMINATE_S = 1.0
# From a connection that a dying worker closed until its death can be seen.
_DEATH_S = 1.0


class Depth(NamedTuple):
    """Batches made and not yet handed out. One is made in every step, so a tuple."""

    unpinned: int | None
    """Not yet taken by the pinning thread. None: there is none, as without pin_memory or without a GPU."""
    ready: int
    """In the queue, and set aside because they came before their turn."""
    untaken: int | None = None
    """Of those not yet taken by the training process, which rebuilds each as it takes it. None: the pinning thread
    does that."""


def queue_depth(iterator: Any) -> Depth | None:
    """What stands ready right now; a few microseconds. None: there is no queue."""
    try:
        pins = iterator._data_queue is not iterator._worker_result_queue
        # A task's entry goes when its batch is handed out; it is no longer outstanding once its batch has come.
        set_aside = len(iterator._task_info) - iterator._tasks_outstanding
        queued = iterator._data_queue.qsize()
        return Depth(
            unpinned=iterator._worker_result_queue.qsize() if pins else None,
            ready=queued + set_aside,
            untaken=None if pins else queued,
        )
    except (AttributeError, NotImplementedError, OSError):  # qsize is not there on macOS
        return None


def end_workers(iterator: Any) -> None:
    """Shut the workers down now, and let go of every batch they had made."""
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if shut_down is None:
        return
    workers = getattr(iterator, "_workers", ())
    pids = [worker.pid for worker in workers if worker.pid is not None]
    answer_for(pids)
    with _impatient(_PATIENCE_S / max(1, len(workers))):
        shut_down()
    deadline = time.monotonic() + _TERMINATE_S
    for worker in workers:  # told to terminate one right after the other, waited for together
        worker.join(max(0.0, deadline - time.monotonic()))
    remove_segments(pids)  # of the batch each was in the middle of
    with contextlib.suppress(AttributeError, queue.Empty):
        iterator._task_info.clear()
        while isinstance(iterator._data_queue, queue.Queue):
            iterator._data_queue.get_nowait()  # pinned batches would outlive the iterator's other references


def raise_worker_end() -> None:
    """Raise PyTorch's own error where a worker of any loader has died, or does so within a moment.

    Batches that a worker had sent and nobody has taken yet cannot be opened once it is dead. PyTorch then raises what
    the connection says (ConnectionResetError, FileNotFoundError) where it does not know of the death yet.
    """
    check = getattr(loader_internals.signal_handling, "_error_if_any_worker_fails", None)
    deadline = time.monotonic() + _DEATH_S
    while check is not None and time.monotonic() < deadline:
        check()
        time.sleep(0.01)


@contextlib.contextmanager
def _impatient(patience_s: float) -> Iterator[None]:
    """`_shutdown_workers` joins each worker for this long before it terminates it."""
    usual = getattr(loader_internals, "MP_STATUS_CHECK_INTERVAL", None)
    if usual is None:
        yield
        return
    loader_internals.MP_STATUS_CHECK_INTERVAL = patience_s
    try:
        yield
    finally:
        loader_internals.MP_STATUS_CHECK_INTERVAL = usual
