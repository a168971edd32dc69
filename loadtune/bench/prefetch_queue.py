"""How many batches stand ready in a DataLoader's queue, and how to end its workers without waiting for any.

PyTorch offers neither, so this reads private fields of `_MultiProcessingDataLoaderIter`, the same from 2.11 to 2.15.
Where one is missing the answer is None, or the loader is left to end by itself; nothing fails.
"""

import contextlib
import queue
import time
from collections.abc import Iterator
from typing import Any

import torch.utils.data._utils as loader_internals

from loadtune.bench.leftovers import answer_for, remove_segments

# Patience with workers that are in the middle of a batch nobody wants, all of them together. PyTorch gives each 5 s,
# one after the other; 50 ms each made 1 s of every trial with 16 workers.
_PATIENCE_S = 0.05
# Workers that were told to terminate do so at once; this is for a machine that is too busy to let them.
_TERMINATE_S = 1.0


def batches_ready(iterator: Any) -> float | None:
    """Batches made and not yet handed out: in the queue, and set aside because they came out of order.

    With pin_memory a second queue lies before the pinning thread and counts as well. None: there is no queue.
    """
    try:
        queued = iterator._data_queue.qsize()
        if iterator._data_queue is not iterator._worker_result_queue:
            queued += iterator._worker_result_queue.qsize()
        # (worker,) is a task that was given out, (worker, data) one that came back early.
        set_aside = sum(1 for task in iterator._task_info.values() if len(task) > 1)
    except (AttributeError, NotImplementedError, OSError):  # qsize is not there on macOS
        return None
    return float(queued + set_aside)


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
