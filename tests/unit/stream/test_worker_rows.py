"""What workers write of themselves: batches made, one in the making by how far it should have come, and its samples."""

import time
from typing import Any

import pytest
import training_workloads
from torch.utils.data import DataLoader, Dataset

from loadtune.stream.switching import SwitchingLoader
from loadtune.workload import last_line, note_index
from loadtune.workload.user_code import sample_index


class Single(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        time.sleep(0.002)
        return index


class Many(Single):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [100 + self[index] for index in indices]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("dataset", "first"), [(Single(), 0), (Many(), 100)])
def test_samples_are_fetched_as_the_dataset_offers_them_and_workers_tell_of_it(
    dataset: Any, first: int, num_workers: int
) -> None:
    loader = SwitchingLoader(DataLoader(dataset, batch_size=4, num_workers=num_workers))
    batches = iter(loader)
    assert [index for _ in range(8) for index in next(batches).tolist()] == list(range(first, first + 32))
    workers = batches.workers()
    assert len(workers) == num_workers
    assert all(worker.num_ended >= 4 for worker in workers)
    assert all(worker.made_s >= worker.num_timed * 4 * 0.002 and worker.first_s >= 4 * 0.002 for worker in workers)
    # They sleep: their CPU time grows by less than the time they take.
    before = workers
    time.sleep(0.3)
    assert all(now.cpu_s - then.cpu_s < 0.3 for now, then in zip(batches.workers(), before, strict=True))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_exception_carries_the_index_of_its_sample(num_workers: int) -> None:
    sampler = [3, training_workloads.BAD_INDEX, 7]
    plain = DataLoader(training_workloads.RaisesAtIndex(), batch_size=3, sampler=sampler, num_workers=num_workers)
    loader = SwitchingLoader(plain, sample_error=note_index)
    with pytest.raises(ValueError, match="broken sample") as raised:
        next(iter(loader))
    assert sample_index(raised.value) == training_workloads.BAD_INDEX
    assert num_workers or last_line(raised.value) == "ValueError: broken sample"
    assert loader.table.read() == (), "a process that raised is loading nothing"
