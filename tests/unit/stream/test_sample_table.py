"""Which samples are being loaded: written by one process, read by another, also after the first was killed."""

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from loadtune.stream.sample_table import Loading, SampleTable, begin_batch
from loadtune.stream.switching import SwitchingIterator


class Looks:
    """Reads at its sample 41 what is being loaded."""

    def __init__(self, table: SampleTable) -> None:
        self.table, self.seen = table, tuple[Loading, ...]()

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        if index == 41:
            self.seen = self.table.read()
        return index


class LooksInBatches(Looks):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


@pytest.mark.parametrize(("kind", "index"), [(Looks, 41), (LooksInBatches, None)])
def test_what_the_training_process_loads_can_be_read_meanwhile(kind: type[Looks], index: int | None) -> None:
    table = SampleTable()
    dataset: Any = kind(table)
    next(SwitchingIterator(DataLoader(dataset, batch_size=12, sampler=[*range(20, 30), 41, 50]), table=table))
    (found,) = dataset.seen
    assert (found.worker, found.pid, found.index) == (None, os.getpid(), index)
    assert (found.batch, found.batch_size) == (tuple(range(20, 27)), 12)
    assert table.read() == ()


def test_pools_have_rows_of_their_own_which_another_handle_reads() -> None:
    table = SampleTable()
    other = SampleTable(os.dup(table.fileno()))
    first, second = table.reserve(3), table.reserve(2)
    assert not set(first) & set(second)
    begin_batch(table.row(first[2]), [8, 9])
    assert [(each.worker, each.batch) for each in other.read()] == [(first[2], (8, 9))]
    begin_batch(table.row(second[1]), ["a name", 7])
    table.release(first)
    assert [(each.worker, each.batch) for each in other.read()] == [(second[1], (7,))]
    table.release(second)
    assert other.read() != (), "what a pool that failed was loading can be read until the next begins"
    assert table.reserve(3) == first, "rows are used again"
    assert table.reserve(2) == second
    assert other.read() == (), "nothing of an earlier pool is left"
    with pytest.raises(ValueError, match="more than this table"):
        table.reserve(1 << 20)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def test_workers_of_a_stream_note_what_they_load() -> None:
    batches = SwitchingIterator(DataLoader(Stream(), 4, num_workers=2))
    assert len(list(batches)) == 6, "each worker reads all of it"
    rows = batches.workers()
    assert [(row.num_begun, row.num_ended, row.batch_size) for row in rows] == [(3, 3, 0)] * 2
    assert all(row.made_s > 0 and row.cpu_s > 0 for row in rows)


def test_a_table_that_nobody_holds_closes_its_descriptor() -> None:
    """A loader makes one in each epoch, in the user's own process."""
    table = SampleTable()
    descriptor = table.fileno()
    del table
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
