"""PyTorch's caching allocator for CUDA, as arithmetic: what it would hold from the driver for a list of requests.

Rules of ``c10/cuda/CUDACachingAllocator.cpp`` in its default configuration, torch 2.11: sizes are rounded up to 512
bytes, the smallest cached block that is large enough is taken and split, neighbours merge when freed, and when the
driver has no more, every segment that is wholly free goes back before the request is tried once again.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

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

    @property
    def key(self) -> tuple[int, int]:
        return self.size, self.address


@dataclass(slots=True)
class _Pool:
    """Free blocks, smallest first."""

    keys: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[int, Block] = field(default_factory=dict)

    def add(self, block: Block) -> None:
        insort(self.keys, block.key)
        self.blocks[block.address] = block

    def remove(self, block: Block) -> None:
        del self.keys[bisect_left(self.keys, block.key)]
        del self.blocks[block.address]

    def take_best_fit(self, size: int) -> Block | None:
        at = bisect_left(self.keys, (size, -1))
        if at == len(self.keys):
            return None
        return self.blocks.pop(self.keys.pop(at)[1])


class OutOfBudgetError(Exception):
    """A request that the allocator could not have met."""


class CachingAllocator:
    """One device's allocator with a budget in bytes, `idle_bytes` of which it holds already and cannot give back."""

    def __init__(self, budget_bytes: int, idle_bytes: int = 0) -> None:
        self.reserved_bytes = self.reserved_peak_bytes = idle_bytes
        self.num_retries = 0
        self._budget_bytes = budget_bytes
        self._pools = {True: _Pool(), False: _Pool()}
        self._next_address = 0

    def allocate(self, num_bytes: int) -> Block:
        """A block for this request. Raises OutOfBudgetError."""
        size = max(_ROUND, -(-num_bytes // _ROUND) * _ROUND)
        small = size <= _SMALL
        block = self._pools[small].take_best_fit(size) or self._new_segment(size, small)
        remaining = block.size - size
        if remaining >= _ROUND if small else remaining > _SMALL:
            self._split(block, size)
        block.used = True
        return block

    def free(self, block: Block) -> None:
        """Back into the cache, merged with what is free beside it."""
        block.used = False
        pool = self._pools[block.small]
        if block.after is not None and not block.after.used:
            pool.remove(block.after)
            _join(block, block.after)
        if block.before is not None and not block.before.used:
            pool.remove(block.before)
            block = _join(block.before, block)
        pool.add(block)

    def _new_segment(self, size: int, small: bool) -> Block:
        segment = _segment_bytes(size, small)
        if self.reserved_bytes + segment > self._budget_bytes:
            self._give_back_free_segments()
            self.num_retries += 1
            if self.reserved_bytes + segment > self._budget_bytes:
                raise OutOfBudgetError
        self.reserved_bytes += segment
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)
        block = Block(segment, self._next_address, small)
        self._next_address += segment
        return block

    def _give_back_free_segments(self) -> None:
        for pool in self._pools.values():
            whole = [block for block in pool.blocks.values() if block.before is None and block.after is None]
            for block in whole:
                pool.remove(block)
                self.reserved_bytes -= block.size

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.size - size, block.address + size, block.small, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        block.size = size
        self._pools[block.small].add(rest)


def _segment_bytes(size: int, small: bool) -> int:
    if small:
        return _SMALL_SEGMENT
    return _MIDDLE_SEGMENT if size < _MIDDLE else -(-size // _SEGMENT_ROUND) * _SEGMENT_ROUND


def _join(low: Block, high: Block) -> Block:
    low.size += high.size
    low.after = high.after
    if high.after is not None:
        high.after.before = low
    return low
