"""What the first samples say of all others."""

import time
from types import SimpleNamespace
from typing import Any

from torch.utils.data import Dataset

from loadtune.bench.describe import Samples

COLD_S, WARM_S = 0.02, 0.002
LINE: Any = SimpleNamespace(enter=lambda phase: None, pulse=lambda: None)


class Cached(Dataset[Any]):
    """A sample is slow to read, and quick to read again."""

    def __init__(self, length: int = 100) -> None:
        self.length, self.read = length, set[int]()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(WARM_S if index in self.read else COLD_S)
        self.read.add(index)
        return index, index


class Whole(Cached):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(index, index) for index in indices]


def first_samples(dataset: Cached) -> Samples:
    workload: Any = SimpleNamespace(dataset=dataset, dataset_length=len(dataset), own_loss=True)
    return Samples(workload, LINE)


def test_a_sample_costs_what_reading_it_first_takes_and_at_the_least_what_reading_it_again_does() -> None:
    samples = first_samples(Cached())
    assert samples.sample_s >= COLD_S
    assert samples.least_sample_s is not None
    assert 0.5 * WARM_S < samples.least_sample_s < COLD_S
    assert len(samples.samples) == 16


def test_reading_samples_one_by_one_says_nothing_of_a_dataset_that_reads_whole_batches() -> None:
    assert first_samples(Whole()).least_sample_s is None


def test_a_dataset_of_one_sample_is_timed_too() -> None:
    samples = first_samples(Cached(length=1))
    assert samples.sample_s > 0
    assert len(samples.batch[0]) == 16
