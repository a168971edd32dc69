"""Page-locked blocks: those that the next trial pins again are kept."""

from typing import Any

import torch

from loadtune.bench.memory import PinnedBlocks
from loadtune.bench.samples import Samples
from loadtune.bench.training import PAIR
from loadtune.records.config import LoaderConfig

SAMPLE_BYTES = 1000
BLOCK_BYTES = 1 << 18
"""What 256 samples go into."""


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


def test_samples_say_what_one_takes() -> None:
    samples = Samples.__new__(Samples)
    samples.batch, samples.places = (torch.zeros(16, 3, 8, 8), torch.zeros(16)), PAIR
    assert samples.pinned_bytes == 3 * 8 * 8 * 4
