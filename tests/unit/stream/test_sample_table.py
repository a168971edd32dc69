"""Which samples are being loaded: written by one process, read by another, also after the first was killed."""

import gc
import multiprocessing
import os
import signal
from typing import Any

import pytest
from torch.utils.data import DataLoader

from loadtune.stream.sample_table import (
    Loading,
    SampleTable,
    begin_batch,
    did_not_return_text,
)
from loadtune.stream.switching import SwitchingLoader


def loading(**given: Any) -> Loading:
    usual = {"worker": 0, "pid": 5, "index": 41, "batch": (7, 41), "batch_size": 2, "num_begun": 1}
    return Loading(**(usual | given))


class Kills:
    """Its sample 41 ends the process that loads it."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        if index == 41:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


class KillsBatches(Kills):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


def load(dataset: Any, table: SampleTable) -> None:
    sampler = [*range(20, 30), 41, 50]
    next(iter(SwitchingLoader(DataLoader(dataset, batch_size=12, sampler=sampler), table=table)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(("dataset", "index"), [(Kills(), 41), (KillsBatches(), None)])
def test_what_a_killed_process_was_loading_can_still_be_read(method: str, dataset: Any, index: int | None) -> None:
    table = SampleTable()
    context: Any = multiprocessing.get_context(method)
    child = context.Process(target=load, args=(dataset, table))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    (found,) = table.read()
    assert (found.worker, found.pid, found.index) == (None, child.pid, index)
    assert found.batch == tuple(range(20, 27))
    assert found.batch_size == 12


def test_another_handle_reads_the_same_table_and_new_rows_are_clear() -> None:
    table = SampleTable()
    other = SampleTable(os.dup(table.fileno()))
    rows = table.reserve(3)
    begin_batch(table.row(rows[2]), [8, 9])
    assert [(each.worker, each.batch) for each in other.read()] == [(2, (8, 9))]
    table.release(rows)
    assert other.read() != (), "what a pool that failed was loading can be read until the next begins"
    assert table.reserve(1) == range(1)
    assert other.read() == ()
    table.reserve(3)
    assert other.read() == (), "nothing of an earlier pool is left"


def test_pools_that_are_there_at_a_time_have_rows_of_their_own() -> None:
    table = SampleTable()
    first, second = table.reserve(3), table.reserve(2)
    assert not set(first) & set(second)
    begin_batch(table.row(first[0]), [1])
    begin_batch(table.row(second[1]), ["a name", 7])
    table.release(first)
    assert [(each.worker, each.batch) for each in table.read()] == [(second[1], (7,))]
    assert table.reserve(3) == first, "rows are used again"
    with pytest.raises(ValueError, match="more than this table"):
        table.reserve(1 << 20)


@pytest.mark.parametrize(
    ("still", "text"),
    [
        ([loading()], "dataset[41] (in a batch of 2: 7, 41) did not return for 28 s, in a worker"),
        ([loading(worker=None, batch_size=1)], "dataset[41] did not return for 28 s, in the training process"),
        (
            [loading(index=None, batch=(7, 41), batch_size=64)],
            "one of dataset[7], dataset[41], … (a batch of 64) did not return for 28 s, in a worker",
        ),
        (
            [loading(batch_size=1), loading(worker=1, index=3, batch_size=1), loading(worker=2)],
            "dataset[41]; dataset[3]; … did not return for 28 s, in 3 workers",
        ),
    ],
)
def test_what_did_not_return_is_named(still: list[Loading], text: str) -> None:
    assert did_not_return_text(still, 28.2) == text


def test_a_table_that_nobody_holds_closes_its_descriptor() -> None:
    """A loader makes one in each epoch, in the user's own process."""
    table = SampleTable()
    descriptor = table.fileno()
    del table
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
