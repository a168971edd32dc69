"""What a switching loader delivered, what its switches took, and what stands in its queue now."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadtune.stream.settings import Settings


@dataclass(slots=True, kw_only=True)
class Switch:
    """What one change of settings took."""

    settings: Settings
    asked_s: float
    """``time.monotonic()`` when it was asked for."""
    start_s: float | None = None
    """Seconds until all workers were ready. Of a switch that waited for a new epoch: until they were started. None: not
    yet."""
    delivers_s: float | None = None
    """Seconds until the new settings gave their first batch. None: not yet."""
    at: int | None = None
    """The number in the epoch of the first batch that the new settings load. None: not known yet."""


@dataclass(slots=True, kw_only=True)
class Counters:
    """Of everything that a loader delivered so far. They only grow: compare two readings."""

    num_batches: int = 0
    num_samples: int = 0
    """Of map-style datasets. A batch that was asked for by a single index counts as one sample."""
    switches: list[Switch] = field(default_factory=list)


class Depth(NamedTuple):
    """Batches made and not yet delivered. One is made in every step, so a tuple."""

    unpinned: int | None
    """Not yet taken by the pinning thread. None: there is none, as without pin_memory or without a GPU."""
    ready: int
    """In the queue, and set aside because they came before their turn."""
    untaken: int | None = None
    """Of those not yet taken by the training process, which rebuilds each as it takes it. None: the pinning thread
    does that."""


def queue_depth(iterator: Any) -> Depth | None:
    """What stands ready in a torch iterator right now; a few microseconds. None: there is no queue."""
    if not hasattr(iterator, "_worker_result_queue"):
        return None
    pins = iterator._data_queue is not iterator._worker_result_queue
    # A task's entry goes when its batch is delivered; it is no longer outstanding once its batch has come.
    set_aside = len(iterator._task_info) - iterator._tasks_outstanding
    queued = iterator._data_queue.qsize()
    return Depth(
        unpinned=iterator._worker_result_queue.qsize() if pins else None,
        ready=queued + set_aside,
        untaken=None if pins else queued,
    )
