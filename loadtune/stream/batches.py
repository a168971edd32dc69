"""One stream of index batches for all worker pools of an epoch, each kept until its batch was delivered."""

import contextlib
import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from loadtune.stream.counters import Counters


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
        self.num_drawn = self.num_samples_drawn = 0
        """In this epoch."""
        self.has_ended = False
        """All indices of this epoch were drawn; with `drop_last` some of the last may be in no batch."""
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
        self.num_drawn = self.num_samples_drawn = 0
        self.has_ended, self.limit = False, None
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
        except StopIteration:
            self.has_ended = True
            raise
        except Exception as error:
            self.error = error
            raise
        position = self.num_drawn
        self._kept[position] = indices
        self.num_drawn += 1
        self.num_samples_drawn += _num_samples(indices)
        return position, indices

    def peek(self) -> None:
        """Let the sampler draw its first random numbers now, as it does in torch where there are workers."""
        if self.num_drawn == 0:
            with contextlib.suppress(StopIteration):
                self.take_back([self.draw()[0]])

    def delivered(self, position: int) -> None:
        """The batch at this position reached the loop, or its exception did."""
        self.last = self._kept.pop(position)
        self._counters.num_samples += _num_samples(self.last)

    def drop(self, positions: Iterable[int]) -> None:
        """Nobody wants these any more."""
        for position in positions:
            del self._kept[position]

    def take_back(self, positions: Iterable[int]) -> None:
        """Nobody loads these any more; they are drawn again."""
        for position in positions:
            heapq.heappush(self._again, position)


def _num_samples(indices: Any) -> int:
    return len(indices) if isinstance(indices, list | tuple) else 1


def own_batches(sampler: Iterable[Any], batch_size: Callable[[], int], drop_last: bool) -> Iterator[list[Any]]:
    """Index batches as torch's BatchSampler makes them, of a size that is asked for before each.

    A change of the size therefore leaves no partial batch. Only the last batch of an epoch can be smaller; `drop_last`
    drops it, as in torch.
    """
    indices = iter(sampler)
    while True:
        size = batch_size()
        batch = list(islice(indices, size))
        if not batch or (drop_last and len(batch) < size):
            return
        yield batch
