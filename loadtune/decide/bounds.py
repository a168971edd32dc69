"""The most workers that memory and descriptors hold, for `exec` and for `run`. Pure: what is free is handed in."""

from dataclasses import dataclass

from loadtune.model.workers import MOST

SHM_SHARE = 0.8
"""Of what is free in /dev/shm: other programs use it too, and a full one ends a worker with a bus error."""
RAM_SHARE = 0.5
"""Of the RAM that is available: the training itself and the page cache grow into the rest."""
DESCRIPTORS_SHARE = 0.5
"""Of the descriptors that a process may still open: the training opens files, too."""
USUAL_WORKER = 30 << 20
"""Bytes of RAM that a forked worker takes beside its batches, until one is measured."""
_DESCRIPTORS = 8
"""That the training process holds for a worker: pipes of its queues, its sentinel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """What the machine has for one loader of one process."""

    num_ranks: int = 1
    """Processes that train on this machine and share what follows."""
    ram_bytes: int
    shm_bytes: int
    descriptors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """What one worker of a loader holds."""

    batch_bytes: int
    batch_tensors: int
    """0 where tensors are not shared by descriptors."""
    num_batches: int
    """Queued at a time, the one in the making included."""
    worker_bytes: int | None = None
    """RAM beside them. None: not measured."""


def most_workers(free: Free, queued: Queued, others: dict[str, int]) -> tuple[int, str]:
    """The least of all bounds, at least 1, and its name: ``RAM``, ``/dev/shm``, … ``others``: more of them by name."""
    held = queued.batch_bytes * queued.num_batches
    descriptors = _DESCRIPTORS + queued.batch_tensors * queued.num_batches
    bounds = {
        "the limit of workers": MOST // free.num_ranks,
        "RAM": int(RAM_SHARE * free.ram_bytes / free.num_ranks / ((queued.worker_bytes or USUAL_WORKER) + held)),
        "/dev/shm": int(SHM_SHARE * free.shm_bytes / free.num_ranks / max(1, held)),
        "descriptors": int(DESCRIPTORS_SHARE * free.descriptors / descriptors),
        **others,
    }
    reason = min(bounds, key=lambda name: bounds[name])
    return max(1, bounds[reason]), reason
