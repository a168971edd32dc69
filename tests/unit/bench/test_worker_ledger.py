"""What workers write of themselves: batches made, one in the making by how far it should have come."""

from types import SimpleNamespace
from typing import Any

import bench_workloads
import pytest

from loadtune.bench import worker_ledger
from loadtune.bench.worker_ledger import TimedDataset, WorkerLedger
from loadtune.records import WorkerShare
from loadtune.workload import last_line, sample_index


def made(ledger: WorkerLedger, worker: int, began_s: float, ended_s: float, *, counts: bool = True) -> None:
    ledger.end(ledger.begin(worker, [0], began_s), ended_s, counts=counts)


def test_a_batch_in_the_making_counts_by_how_far_it_should_have_come() -> None:
    ledger = WorkerLedger(2)
    made(ledger, 0, 10.0, 13.0, counts=False)
    made(ledger, 0, 13.0, 15.0)
    row = ledger.begin(0, [0], 15.0)
    assert ledger.num_made(15.5) == pytest.approx(2.25)
    assert ledger.num_made(99.0) == 3.0  # late, and not done before it is
    ledger.end(row, 99.0, counts=True)
    assert ledger.num_made(99.0) == 3.0


def test_workers_in_step_make_no_jumps() -> None:
    """Four of them, a batch a second each: four batches a second, wherever one looks."""
    ledger = WorkerLedger(4)
    for at in range(3):
        for worker in range(4):
            made(ledger, worker, at, at + 1)
    for worker in range(4):
        ledger.begin(worker, [0], 3.0)
    assert [ledger.num_made(3.0 + part) for part in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([12.0, 13.0, 14.0, 16.0])


def test_a_first_batch_is_made_and_no_measure_of_the_rest() -> None:
    ledger = WorkerLedger(1)
    made(ledger, 0, 0.0, 9.0, counts=False)
    assert ledger.num_made(9.0) == 1.0
    assert ledger.read(0) == WorkerShare()
    made(ledger, 0, 9.0, 10.0)
    made(ledger, 0, 10.0, 13.0)
    assert ledger.read(0) == WorkerShare(num_made=2, made_s=4.0, max_made_s=3.0)


def test_a_worker_still_at_its_first_batches_is_measured_by_the_others() -> None:
    """Its own first batch is no measure; without one, what it makes would come in jumps, up to a batch a worker."""
    ledger = WorkerLedger(2)
    made(ledger, 0, 0.0, 1.0, counts=False)
    made(ledger, 0, 1.0, 3.0)
    made(ledger, 1, 0.0, 2.0, counts=False)
    ledger.begin(0, [0], 3.0)
    ledger.begin(1, [0], 2.0)
    assert ledger.num_made(3.0) == pytest.approx(3.5)  # worker 1 is half through a batch that takes 2 s


class Single:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index


class Many(Single):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [100 + index for index in indices]


@pytest.mark.parametrize(("dataset", "samples"), [(Single(), [3, 4]), (Many(), [103, 104])])
def test_samples_are_fetched_as_the_dataset_offers_them(
    dataset: Any, samples: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_ledger, "get_worker_info", lambda: SimpleNamespace(id=1))
    ledger = WorkerLedger(2)
    timed = TimedDataset(dataset, 10, ledger)
    assert timed.__getitems__([3, 4]) == samples
    timed.__getitems__([3])
    assert ledger.read(1).num_made == 1
    assert ledger.num_made(0.0) == 2.0
    assert len(timed) == 10


def test_an_exception_carries_the_index_of_its_sample() -> None:
    timed = TimedDataset(bench_workloads.RaisesAtIndex(), 512, WorkerLedger(0))
    with pytest.raises(ValueError, match="broken sample") as raised:
        timed.__getitems__([3, bench_workloads.BAD_INDEX, 7])
    assert sample_index(raised.value) == bench_workloads.BAD_INDEX
    assert last_line(raised.value) == "ValueError: broken sample"


def test_a_process_that_raised_is_loading_nothing() -> None:
    ledger = WorkerLedger(0)
    with pytest.raises(ValueError, match="broken sample"):
        TimedDataset(bench_workloads.RaisesAtIndex(), 512, ledger).__getitems__([bench_workloads.BAD_INDEX])
    assert ledger.table.read() == ()
