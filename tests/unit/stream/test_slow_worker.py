"""A worker that takes longer than the others is told, by the workers' own clocks."""

import time

import pytest
from torch.utils.data import DataLoader, Dataset, get_worker_info

from loadtune.stream.sample_table import Row
from loadtune.stream.switching import SwitchingIterator
from loadtune.stream.worker_rows import slow_worker


def rows(*batches_s):
    """``batches_s``: for each worker the seconds of its batches."""
    return [Row(num_timed=len(each), made_s=sum(each), made_s2=sum(value**2 for value in each)) for each in batches_s]


USUAL = [0.9, 1.0, 1.1, 1.0] * 5


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ((USUAL, [2.0, 2.2] * 10, USUAL), (1, pytest.approx(2.1))),
        ((USUAL, [1.3, 1.5] * 10, USUAL), None),  # less than 1.5 times
        ((USUAL, [1.0] * 19 + [30.0], USUAL), None),  # one batch is not the worker
        ((USUAL, [2.0, 2.2] * 10), None),  # which of two is the usual one?
        ((USUAL, USUAL, [2.0, 2.2] * 3), None),  # too few batches
        ((USUAL, USUAL, []), None),
        ((), None),
    ],
)
def test_it_is_told_where_it_is_clearly_slower(workers, expected):
    assert slow_worker(rows(*workers)) == expected


class SlowInWorkerTwo(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(0.2 if get_worker_info().id == 2 else 0.02)
        return index


def test_the_present_pool_counts():
    batches = SwitchingIterator(DataLoader(SlowInWorkerTwo(), num_workers=3))
    limit = time.monotonic() + 100
    while (found := slow_worker(batches.workers())) is None and time.monotonic() < limit:
        next(batches)
    assert found[0] == 2
    batches.switch(4)
    while batches.num_delivering != 4 and time.monotonic() < limit:
        next(batches)
    assert slow_worker(batches.workers()) is None, "these have just begun"
    batches._shutdown_workers()
