"""What stands where in a loader's queue, over one window after another."""

import statistics
import time
from typing import NamedTuple, Protocol

from loadtune.stream.counters import Depth


class Queued(Protocol):
    """A loader that tells of its queue: `EndlessLoader`."""

    def depth(self) -> Depth | None: ...

    def num_ahead(self) -> float | None: ...


class Stocks(NamedTuple):
    """The fields of a `Window` that tell of its time and of the queue."""

    start_s: float
    seconds: float
    queue_start: float | None
    queue_end: float | None
    unpinned: float | None
    ready: float | None
    num_pinned: int | None
    least_unpinned: int | None
    num_taken: int | None
    least_untaken: int | None


class _Edge(NamedTuple):
    """What is read where one window ends and the next begins."""

    at_s: float
    ahead: float | None
    depth: Depth | None


class QueueWatch:
    """Looks at a loader's queue as its windows begin, before and after each of their batches, and as they end.

    The first window begins as this is made.
    """

    def __init__(self, loader: Queued) -> None:
        self._loader = loader
        self._begin(self._look())

    @property
    def at_s(self) -> float:
        """When the window began."""
        return self._edge.at_s

    def step(self) -> None:
        """A batch is about to be asked for; a few microseconds."""
        depth = self._loader.depth()
        if depth is not None:
            self._depths.append(depth)

    def took(self) -> None:
        """It was handed out. Whoever looked for it in the queue has taken all that came before it."""
        depth = self._loader.depth()
        if depth is not None and depth.untaken is not None:
            self._left.append(depth.untaken)

    def cut(self, num_steps: int) -> Stocks:
        """The window ends here, after so many steps, and the next begins."""
        begun, ended = self._edge, self._look()
        unpinned = [depth.unpinned for depth in self._depths if depth.unpinned is not None]
        untaken = [depth.untaken for depth in self._depths if depth.untaken is not None] + self._left
        ready = [depth.ready for depth in self._depths]
        stocks = Stocks(
            start_s=begun.at_s,
            seconds=ended.at_s - begun.at_s,
            queue_start=begun.ahead,
            queue_end=ended.ahead,
            unpinned=statistics.fmean(unpinned) if unpinned else None,
            ready=statistics.fmean(ready) if ready else None,
            num_pinned=_num_taken(begun.depth, ended.depth, num_steps) if unpinned else None,
            least_unpinned=min(unpinned, default=None),
            num_taken=_num_taken(begun.depth, ended.depth, num_steps) if untaken else None,
            least_untaken=min(untaken, default=None),
        )
        self._begin(ended)
        return stocks

    def _begin(self, edge: _Edge) -> None:
        self._edge = edge
        self._depths: list[Depth] = []
        self._left: list[int] = []

    def _look(self) -> _Edge:
        return _Edge(time.monotonic(), self._loader.num_ahead(), self._loader.depth())


def _num_taken(begun: Depth | None, ended: Depth | None, num_steps: int) -> int | None:
    """Batches that came to stand behind whoever takes them, the pinning thread or the training process, and were handed
    out or are there still."""
    return None if begun is None or ended is None else num_steps + _num_behind(ended) - _num_behind(begun)


def _num_behind(depth: Depth) -> int:
    return depth.ready - (depth.untaken or 0)
