"""How another batch size would go, worked out from what two sizes asked of the allocator. Nothing is run here.

A request whose size is the same at both sizes belongs to the model; any other grows with the batch. The requests are
played into a model of the allocator. It tells what fragmentation takes, which no line through peaks can know.

The model follows ``c10/cuda/CUDACachingAllocator.cpp`` in its default configuration, torch 2.11. Sizes are rounded up
to 512 bytes. The smallest cached block that is large enough is taken and split, and neighbours merge when freed. When
the driver has no more, every segment that is wholly free goes back before the request is tried once again.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from loadtune.records.memory import AllocationTrace, FitReport

MIB = 1 << 20
_ROUND = 512
_SMALL = MIB  # requests up to this come out of segments of 2 MiB
_SMALL_SEGMENT = 2 * MIB
_MIDDLE = 10 * MIB  # requests below this come out of segments of 20 MiB
_MIDDLE_SEGMENT = 20 * MIB
_SEGMENT_ROUND = 2 * MIB


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment, in bytes; its neighbours are `before` and `after`."""

    size: int
    address: int
    small: bool
    used: bool = False
    before: "Block | None" = None
    after: "Block | None" = None


_by_size = attrgetter("size", "address")


class CachingAllocator:
    """One device's allocator with a budget in bytes, `idle_bytes` of which it holds already and cannot give back."""

    def __init__(self, budget_bytes: int, idle_bytes: int = 0) -> None:
        self.reserved_bytes = self.reserved_peak_bytes = idle_bytes
        self.num_retries = 0
        self._budget_bytes = budget_bytes
        self._pools: dict[bool, list[Block]] = {True: [], False: []}
        """Free blocks, smallest first; small requests have a pool of their own."""
        self._next_address = 0

    def allocate(self, num_bytes: int) -> Block | None:
        """A block for this request. None: the budget has none."""
        size = max(_ROUND, -(-num_bytes // _ROUND) * _ROUND)
        small = size <= _SMALL
        pool = self._pools[small]
        at = bisect_left(pool, (size, -1), key=_by_size)
        block = pool.pop(at) if at < len(pool) else self._new_segment(size, small)
        if block is None:
            return None
        remaining = block.size - size
        if remaining >= _ROUND if small else remaining > _SMALL:
            rest = Block(remaining, block.address + size, small, before=block, after=block.after)
            if block.after is not None:
                block.after.before = rest
            block.after = rest
            block.size = size
            insort(pool, rest, key=_by_size)
        block.used = True
        return block

    def free(self, block: Block) -> None:
        """Back into the cache, merged with what is free beside it."""
        block.used = False
        pool = self._pools[block.small]
        if block.after is not None and not block.after.used:
            del pool[bisect_left(pool, _by_size(block.after), key=_by_size)]
            _join(block, block.after)
        if block.before is not None and not block.before.used:
            del pool[bisect_left(pool, _by_size(block.before), key=_by_size)]
            block = _join(block.before, block)
        insort(pool, block, key=_by_size)

    def _new_segment(self, size: int, small: bool) -> Block | None:
        segment = -(-size // _SEGMENT_ROUND) * _SEGMENT_ROUND
        if size < _MIDDLE:
            segment = _SMALL_SEGMENT if small else _MIDDLE_SEGMENT
        if self.reserved_bytes + segment > self._budget_bytes:
            for pool in self._pools.values():  # every segment that is wholly free goes back
                self.reserved_bytes -= sum(block.size for block in pool if block.before is None and block.after is None)
                pool[:] = (block for block in pool if block.before is not None or block.after is not None)
            self.num_retries += 1
            if self.reserved_bytes + segment > self._budget_bytes:
                return None
        self.reserved_bytes += segment
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)
        block = Block(segment, self._next_address, small)
        self._next_address += segment
        return block


def _join(low: Block, high: Block) -> Block:
    low.size += high.size
    low.after = high.after
    if high.after is not None:
        high.after.before = low
    return low


FAITHFUL = 0.1
"""A forecast that misses what the allocator held at a size that was run by more than this is not used: another version
of PyTorch may follow other rules."""


class Outcome(NamedTuple):
    """How a size would go."""

    reserved_peak_bytes: int
    num_steady_retries: int
    """Allocator retries within the last step of the trace."""


class Forecast:
    """The allocator's answer to any batch size, under one budget in bytes."""

    def __init__(self, low: AllocationTrace, high: AllocationTrace, budget_bytes: int) -> None:
        self._idle_bytes, self._traced_size = high.idle_bytes, high.batch_size
        self._last_step = high.step_starts[-1]
        self._events, self._budget_bytes = high.events, budget_bytes
        asked = {event for event in low.events if event > 0}
        # Sizes that do not depend on the batch: those of both traces, unless `low` also holds the scaled twin.
        self._fixed = {
            event for event in high.events if event in asked and event * low.batch_size // high.batch_size not in asked
        }

    def outcome(self, batch_size: int) -> Outcome | None:
        """None: it would run out of memory."""
        allocator = CachingAllocator(self._budget_bytes, self._idle_bytes)
        blocks: dict[int, Block] = {}
        retries_before = number = 0
        scale = batch_size / self._traced_size
        for at, event in enumerate(self._events):
            if at == self._last_step:
                retries_before = allocator.num_retries
            if event < 0:
                allocator.free(blocks.pop(-event))
                continue
            number += 1
            block = allocator.allocate(event if event in self._fixed else int(event * scale))
            if block is None:
                return None
            blocks[number] = block
        return Outcome(allocator.reserved_peak_bytes, num_steady_retries=allocator.num_retries - retries_before)

    def largest(self, at_least: int, at_most: int) -> int:
        """Largest size between the two that would fit, found by halves; `at_least` is known to."""
        low, high = at_least, at_most + 1
        while high - low > max(1, low // 500):
            middle = (low + high) // 2
            if self.outcome(middle) is None:
                high = middle
            else:
                low = middle
        return low


def forecast_from(traces: Sequence[AllocationTrace], checked: FitReport) -> Forecast | None:
    """From the two largest traces; None where there are none, or they do not reproduce the run they come from."""
    if len(traces) < 2 or checked.budget_bytes is None or checked.reserved_peak_bytes is None:
        return None
    low, high = sorted(traces, key=lambda trace: trace.batch_size)[-2:]
    forecast = Forecast(low, high, checked.budget_bytes)
    outcome = forecast.outcome(high.batch_size)
    if outcome is None or abs(outcome.reserved_peak_bytes / checked.reserved_peak_bytes - 1) > FAITHFUL:
        return None
    return forecast
