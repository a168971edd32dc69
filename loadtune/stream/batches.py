"""One stream of index batches for all worker pools of an epoch, each kept until its batch was delivered."""

import contextlib
import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from loadtune.stream.settings import Counters


class IndexStream:
    """Draws index batches in the sampler's order and numbers them. Whoever loads them says when one was delivered.

    Batches that were taken back are given out again first, in their order.
    """

    def __init__(self, source: Callable[[], Iterator[Any]], counters: Counters) -> None:
        """``source``: begins an epoch: an iterator of index batches, or of indices where there are no batches."""
        self._source, self._counters = source, counters
        self._iterator = source()
        self._kept: dict[int, Any] = {}
        self._again: list[int] = []
        self.num_drawn = 0
        """In this epoch."""
        self.limit: int | None = None
        """Batches from this number on are held back: the workers of a switch load them. None: no limit."""
        self.last: Any = None
        """The index batch that was delivered last."""
        self.error: Exception | None = None
        """What the caller's sampler raised. None: nothing. No pool is to blame for it."""

    def begin_epoch(self) -> None:
        """Forget what was drawn and draw from the beginning of the next epoch."""
        self._kept.clear()
        self._again.clear()
        self.num_drawn, self.limit = 0, None
        self._iterator = self._source()

    @property
    def position(self) -> int:
        """The number of the batch that is drawn next."""
        return self._again[0] if self._again else self.num_drawn

    @property
    def is_held_back(self) -> bool:
        return self.limit is not None and self.position >= self.limit

    def draw(self) -> tuple[int, Any]:
        """The next position in the epoch and its index batch. Raises StopIteration at the epoch's end and the limit."""
        if self.is_held_back:
            raise StopIteration
        if self._again:
            position = heapq.heappop(self._again)
            return position, self._kept[position]
        try:
            indices = next(self._iterator)
        except Exception as error:
            if not isinstance(error, StopIteration):
                self.error = error
            raise
        position = self.num_drawn
        self._kept[position] = indices
        self.num_drawn += 1
        return position, indices

    def peek(self) -> None:
        """Let the sampler draw its first random numbers now, as it does in torch where there are workers."""
        if self.num_drawn == 0:
            with contextlib.suppress(StopIteration):
                self.take_back([self.draw()[0]])

    def delivered(self, position: int) -> None:
        """The batch at this position reached the loop, or its exception did."""
        self.last = self._kept.pop(position)
        self._counters.num_samples += len(self.last) if isinstance(self.last, list | tuple) else 1

    def take_back(self, positions: Iterable[int]) -> None:
        """Nobody loads these any more; they are drawn again."""
        for position in positions:
            heapq.heappush(self._again, position)
