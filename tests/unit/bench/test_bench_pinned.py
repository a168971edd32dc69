"""Page-locked blocks: those that the next trial pins again are kept."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loadtune.bench import pinned
from loadtune.bench.pinned import PinnedBlocks, page_lock_s
from loadtune.bench.samples import Samples
from loadtune.bench.session import Session
from loadtune.bench.training import PAIR
from loadtune.records import LoaderConfig

SAMPLE_BYTES = 1000
BLOCK_BYTES = 1 << 18
"""What 256 samples go into."""
CUDA = torch.device("cuda", 0)


class CountingMemory:
    """Stands for a `DeviceMemory`: how often blocks were given back."""

    def __init__(self, held: int | None = None, *, integrated: bool = False) -> None:
        self.held, self.integrated, self.freed = held, integrated, 0

    def free_pinned(self) -> None:
        self.freed += 1
        self.held = None if self.held is None else 0

    def pinned_bytes(self) -> int | None:
        return self.held

    def is_the_hosts(self) -> bool:
        return self.integrated


def blocks(memory: CountingMemory, available_bytes: int = 1 << 40) -> PinnedBlocks:
    stand_in: Any = memory
    return PinnedBlocks(stand_in, lambda: available_bytes)


def config(batch_size: int = 256, *, pin_memory: bool = True, num_workers: int = 2) -> LoaderConfig:
    return LoaderConfig(batch_size=batch_size, num_workers=num_workers, pin_memory=pin_memory)


def freed_before(available_bytes: int, *asked: LoaderConfig) -> list[int]:
    """How often blocks had been given back when each of these runs began."""
    memory, freed = CountingMemory(), []
    kept = blocks(memory, available_bytes)
    for each in asked:
        kept.keep_for(each, SAMPLE_BYTES)
        freed.append(memory.freed)
    return freed


def test_blocks_are_kept_beside_those_of_other_sizes_and_through_runs_that_pin_nothing() -> None:
    asked = [config(256), config(512), config(pin_memory=False), config(512), config(256)]
    assert freed_before(1 << 40, *asked) == [0] * 5


def test_blocks_are_kept_for_batches_that_go_into_them() -> None:
    """Whatever they take of the memory; one sample more goes into blocks of another size."""
    largest = BLOCK_BYTES // SAMPLE_BYTES
    assert freed_before(0, config(256), config(largest), config(largest + 1)) == [0, 0, 1]


QUEUE = 6 * BLOCK_BYTES
"""Of two workers and 256 samples; of 512 twice that."""


def test_blocks_of_other_sizes_are_given_back_where_they_are_too_much_of_the_memory() -> None:
    """What is kept is not available: 15% are of both together."""
    whole = QUEUE / 0.15
    unpinned = config(pin_memory=False)
    assert freed_before(int(whole - QUEUE) + 10, config(256), config(512)) == [0, 0]
    assert freed_before(int(whole - QUEUE) - 10, config(256), config(512)) == [0, 1]
    assert freed_before(int(whole - QUEUE) - 10, config(256), unpinned, unpinned) == [0, 1, 1]
    assert freed_before(0, config(256), config(256)) == [0, 0], "its own are what it would lock again"


def test_what_was_given_back_counts_no_more() -> None:
    """512, 256 and 1024 samples: the first goes before the second run, so the third finds only the second's."""
    memory, whole = CountingMemory(), 2 * QUEUE / 0.15
    stand_in: Any = memory
    left = iter([whole, whole - 2 * QUEUE - 10, whole - QUEUE])
    kept, freed = PinnedBlocks(stand_in, lambda: int(next(left))), []
    for batch_size in (512, 256, 1024):
        kept.keep_for(config(batch_size), SAMPLE_BYTES)
        freed.append(memory.freed)
    assert freed == [0, 1, 1]


@pytest.mark.parametrize(("held", "freed"), [(3 * QUEUE, 1), (QUEUE, 0)])
def test_the_allocators_own_books_say_what_is_held(held: int, freed: int) -> None:
    """Targets are pinned as well, and the thread takes blocks that nobody asked for: 15% of 12 queues are 1.8."""
    memory = CountingMemory(held=0)
    kept = blocks(memory, 12 * QUEUE - held)
    kept.keep_for(config(256), SAMPLE_BYTES)
    memory.held = held
    kept.keep_for(config(512), SAMPLE_BYTES)
    assert memory.freed == freed


def test_blocks_of_a_run_with_more_workers_are_of_no_use_to_one_with_fewer() -> None:
    """34 blocks of 16 workers, of which one worker fills four."""
    sixteen, one = config(num_workers=16), config(num_workers=1)
    assert freed_before(100 * BLOCK_BYTES, sixteen, one, one) == [0, 1, 1]
    assert freed_before(200 * BLOCK_BYTES, sixteen, one, sixteen) == [0, 0, 0]


def test_blocks_go_back_where_a_run_has_more_to_lock_than_they_leave() -> None:
    """Six small ones are little, but half of what is available is not enough for 34 of four times their size."""
    large = config(1024, num_workers=16)
    assert freed_before(2 * 34 * 4 * BLOCK_BYTES + 10, config(256), large) == [0, 0]
    assert freed_before(2 * 34 * 4 * BLOCK_BYTES - 10, config(256), large) == [0, 1]


@pytest.mark.parametrize("held", [None, QUEUE + QUEUE // 20])
def test_no_other_sizes_are_kept_where_the_devices_memory_is_the_hosts(held: int | None) -> None:
    """Of its own size all are, and the small blocks of its labels beside them: the first run's, found by the second."""
    memory, freed = CountingMemory(integrated=True), []
    kept = blocks(memory, 12 * QUEUE)
    for each in (config(256), config(256), config(pin_memory=False), config(pin_memory=False)):
        kept.keep_for(each, SAMPLE_BYTES)
        memory.held = None if held is None else held if each.pin_memory else 0
        freed.append(memory.freed)
    assert freed == [0, 0, 1, 1]


def test_a_session_says_what_a_sample_takes() -> None:
    session = Session.__new__(Session)
    inputs = torch.zeros(16, 3, 8, 8)
    asked: list[int] = []
    samples = Samples.__new__(Samples)
    samples.batch, samples.places = (inputs, torch.zeros(16)), PAIR
    session._samples = samples
    session._pinned = SimpleNamespace(keep_for=lambda loader, sample_bytes: asked.append(sample_bytes))  # type: ignore[assignment]
    session._keep_pinned_for(config())
    assert asked == [3 * 8 * 8 * 4]


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
