"""How another batch size would go, worked out from what two sizes asked of the allocator. Nothing is run here.

A request whose size is the same at both sizes belongs to the model; any other grows with the batch. The requests are
played into a model of ``c10/cuda/CUDACachingAllocator.cpp`` in its default configuration, torch 2.11. It tells what
fragmentation takes, which no line through peaks can know.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

from loadtune.records.memory import BLOCK_BYTES, AllocationTrace, FitReport, block_bytes

_MIB = 1 << 20
_SMALL, _SMALL_SEGMENT = _MIB, 2 * _MIB  # requests up to the first come out of segments of the second
_MIDDLE, _MIDDLE_SEGMENT = 10 * _MIB, 20 * _MIB  # requests below the first
_SEGMENT_ROUND = 2 * _MIB


class Block(NamedTuple):
    """A piece of a segment, in bytes."""

    size: int
    address: int
    small: bool


class CachingAllocator:
    """One device's allocator with a budget in bytes, `idle_bytes` of which it holds already and cannot give back."""

    def __init__(self, budget_bytes: int, idle_bytes: int = 0) -> None:
        self.reserved_bytes = self.reserved_peak_bytes = idle_bytes
        self.num_retries = 0
        self._budget_bytes = budget_bytes
        self._pools: dict[bool, list[Block]] = {True: [], False: []}
        """Free blocks, smallest first; small requests have a pool of their own."""
        self._starts, self._ends = dict[int, Block](), dict[int, Block]()
        """The same blocks by where they begin, and where what follows them begins."""
        self._segments = set[Block]()
        self._next_address = 0

    def allocate(self, num_bytes: int) -> Block | None:
        """A block for this request. None: the budget has none."""
        size = max(BLOCK_BYTES, block_bytes(num_bytes))
        small = size <= _SMALL
        pool = self._pools[small]
        at = bisect_left(pool, (size,))
        block = self._taken(pool[at]) if at < len(pool) else self._new_segment(size, small)
        if block is None:
            return None
        remaining = block.size - size
        if remaining < BLOCK_BYTES if small else remaining <= _SMALL:
            return block
        self._keep(Block(remaining, block.address + size, small))
        return Block(size, block.address, small)

    def free(self, block: Block) -> None:
        """Back into the cache, merged with what is free beside it."""
        size, address, small = block
        if (after := self._starts.get(address + size)) is not None:
            size += self._taken(after).size
        if (before := self._ends.get(address)) is not None:
            size, address = size + self._taken(before).size, before.address
        self._keep(Block(size, address, small))

    def _keep(self, block: Block) -> None:
        insort(self._pools[block.small], block)
        self._starts[block.address] = self._ends[block.address + block.size] = block

    def _taken(self, block: Block) -> Block:
        pool = self._pools[block.small]
        del pool[bisect_left(pool, block)], self._starts[block.address], self._ends[block.address + block.size]
        return block

    def _new_segment(self, size: int, small: bool) -> Block | None:
        segment = -(-size // _SEGMENT_ROUND) * _SEGMENT_ROUND
        if size < _MIDDLE:
            segment = _SMALL_SEGMENT if small else _MIDDLE_SEGMENT
        if self.reserved_bytes + segment > self._budget_bytes:
            for block in self._segments & {*self._starts.values()}:  # every segment that is wholly free goes back
                self._segments.remove(block)
                self.reserved_bytes -= self._taken(block).size
            self.num_retries += 1
            if self.reserved_bytes + segment > self._budget_bytes:
                return None
        self.reserved_bytes += segment
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)
        block = Block(segment, self._next_address, small)
        self._next_address += segment + 1  # blocks of two segments are no neighbours
        self._segments.add(block)
        return block


FAITHFUL = 0.1
"""A forecast that misses by more what the allocator held in a run is not used: PyTorch may have other rules."""


class Forecast:
    """The allocator's answer to any batch size, under one budget in bytes."""

    def __init__(self, low: AllocationTrace, high: AllocationTrace, budget_bytes: int) -> None:
        self._idle_bytes, self._traced_size = high.idle_bytes, high.batch_size
        self._last_step = high.step_starts[-1]
        self._events, self._budget_bytes = high.events, budget_bytes
        asked = {num_bytes for _, num_bytes in low.events if num_bytes}
        # Sizes that do not depend on the batch: those of both traces, unless `low` also holds the scaled twin.
        self._fixed = {
            each for _, each in high.events if each in asked and each * low.batch_size // high.batch_size not in asked
        }

    def retries(self, batch_size: int) -> int | None:
        """Allocator retries within the last step of the trace. None: it would run out of memory."""
        allocator = self.played(batch_size)
        return None if allocator is None else allocator.num_retries

    def played(self, batch_size: int) -> CachingAllocator | None:
        """After these steps; its retries are those within the last one. None: it would run out of memory."""
        allocator = CachingAllocator(self._budget_bytes, self._idle_bytes)
        blocks: dict[int, Block] = {}
        scale = batch_size / self._traced_size
        for at, (address, num_bytes) in enumerate(self._events):
            if at == self._last_step:
                allocator.num_retries = 0
            if num_bytes:
                block = allocator.allocate(num_bytes if num_bytes in self._fixed else int(num_bytes * scale))
                if block is None:
                    return None
                blocks[address] = block
            elif address in blocks:
                allocator.free(blocks.pop(address))
        return allocator

    def largest(self, at_least: int, at_most: int) -> int:
        """Largest size between the two that would fit, found by halves; `at_least` is known to."""
        low, high = at_least, at_most + 1
        while high - low > max(1, low // 500):
            middle = (low + high) // 2
            if self.retries(middle) is None:
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
    allocator = forecast.played(high.batch_size)
    if allocator is None or abs(allocator.reserved_peak_bytes / checked.reserved_peak_bytes - 1) > FAITHFUL:
        return None
    return forecast
