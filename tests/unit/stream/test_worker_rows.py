"""What workers write of themselves: batches made, one in the making by how far it should have come, and its samples."""

import time
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from loadtune.stream.switching import SwitchingIterator


class Many(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitems__(self, indices: list[int]) -> list[int]:
        time.sleep(0.002 * len(indices))
        return [100 + index for index in indices]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_fetched_as_the_dataset_offers_them_and_workers_tell_of_it(num_workers: int) -> None:
    batches = SwitchingIterator(DataLoader(Many(), batch_size=4, num_workers=num_workers))
    assert [index for _ in range(8) for index in next(batches).tolist()] == list(range(100, 132))
    workers = batches.workers()
    assert len(workers) == num_workers
    assert all(worker.num_ended >= 4 for worker in workers)
    assert all(worker.made_s >= worker.num_timed * 4 * 0.002 and worker.first_s >= 4 * 0.002 for worker in workers)
    # They sleep: their CPU time grows by less than the time they take.
    before = workers
    time.sleep(0.3)
    assert all(now.cpu_s - then.cpu_s < 0.3 for now, then in zip(batches.workers(), before, strict=True))
