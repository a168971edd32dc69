"""Page-locked blocks: those that the next run pins again are kept, and a loader's are locked before it trains."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loadtune.bench import pinned
from loadtune.bench.pinned import PinnedBlocks, page_lock_s
from loadtune.bench.prefetch_queue import Depth
from loadtune.records import LoaderConfig

SAMPLE_BYTES = 1000
CUDA = torch.device("cuda", 0)


class CountingMemory:
    """Stands for a `DeviceMemory`: how often blocks were given back, and the sizes of those locked."""

    def __init__(self, most_blocks: int = 1000) -> None:
        self.freed, self.locked, self.most_blocks = 0, list[int](), most_blocks

    def free_pinned(self) -> None:
        self.freed += 1

    def lock_block(self, num_bytes: int) -> Any:
        if len(self.locked) == self.most_blocks:
            return None
        self.locked.append(num_bytes)
        return object()


def blocks(memory: CountingMemory, available_bytes: int = 1 << 40) -> PinnedBlocks:
    stand_in: Any = memory
    return PinnedBlocks(stand_in, lambda: available_bytes)


def config(batch_size: int = 256, *, pin_memory: bool = True, num_workers: int = 2) -> LoaderConfig:
    return LoaderConfig(batch_size=batch_size, num_workers=num_workers, pin_memory=pin_memory)


def test_blocks_are_kept_for_batches_that_go_into_them() -> None:
    memory = CountingMemory()
    kept = blocks(memory)
    largest = (1 << (256 * SAMPLE_BYTES - 1).bit_length()) // SAMPLE_BYTES
    freed = []
    for batch_size in (256, 256, largest, largest + 1):
        kept.keep_for(config(batch_size), SAMPLE_BYTES)
        freed.append(memory.freed)
    assert freed == [1, 1, 1, 2]


def test_blocks_outlast_a_run_that_pins_nothing() -> None:
    memory = CountingMemory()
    kept = blocks(memory)
    kept.keep_for(config(), SAMPLE_BYTES)
    kept.keep_for(config(64, pin_memory=False), SAMPLE_BYTES)
    kept.keep_for(config(), SAMPLE_BYTES)
    assert memory.freed == 1


def test_blocks_make_way_for_a_run_that_needs_the_memory() -> None:
    """2 workers hold 6 batches in flight; half of what is available is a byte less than they take."""
    memory = CountingMemory()
    kept = blocks(memory, available_bytes=2 * 6 * 256 * SAMPLE_BYTES - 1)
    kept.keep_for(config(), SAMPLE_BYTES)
    kept.keep_for(config(pin_memory=False), SAMPLE_BYTES)
    assert memory.freed == 2
    kept.keep_for(config(pin_memory=False), SAMPLE_BYTES)
    assert memory.freed == 2, "there is nothing left to give back"


def locked(memory: CountingMemory, asked: LoaderConfig, depths: list[Depth | None]) -> list[int]:
    """Sizes of the blocks locked for a loader whose queue looks like this from one look to the next."""
    ahead = blocks(memory)
    ahead.keep_for(asked, SAMPLE_BYTES)
    looks = iter(depths)
    loader: Any = SimpleNamespace(config=asked, depth=lambda: next(looks, depths[-1]))
    ahead.lock_ahead(loader)
    return memory.locked


def test_a_queue_is_locked_while_its_first_batch_is_made() -> None:
    empty = Depth(unpinned=0, ready=0)
    assert locked(CountingMemory(), config(), [empty]) == [1 << 18] * 4
    assert locked(CountingMemory(most_blocks=3), config(), [empty]) == [1 << 18] * 3


@pytest.mark.parametrize(
    "made", [Depth(unpinned=1, ready=0), Depth(unpinned=0, ready=1), Depth(unpinned=None, ready=1)]
)
def test_nothing_more_is_locked_once_a_batch_is_there(made: Depth) -> None:
    empty = Depth(unpinned=0, ready=0)
    assert len(locked(CountingMemory(), config(), [empty, empty, empty, made])) == 2  # the first look: is there a queue


def test_nothing_is_locked_for_a_loader_that_pins_nothing_or_has_no_queue() -> None:
    empty = Depth(unpinned=None, ready=0)
    assert locked(CountingMemory(), config(pin_memory=False), [empty]) == []
    assert locked(CountingMemory(), config(num_workers=0), [None]) == []


@pytest.mark.parametrize(
    ("books", "seconds"), [({"host_alloc_time": {"total": 250_000}}, 0.25), ({}, None), ({"host_alloc_time": {}}, None)]
)
def test_the_allocator_counts_in_microseconds(
    books: dict[str, Any], seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned.torch.cuda, "host_memory_stats_as_nested_dict", lambda: books)
    assert page_lock_s(CUDA) == seconds
    assert page_lock_s(torch.device("cpu")) is None


def test_a_torch_that_keeps_no_such_books_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pinned.torch.cuda, "host_memory_stats_as_nested_dict")
    assert page_lock_s(CUDA) is None
