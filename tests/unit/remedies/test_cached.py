"""Samples kept in RAM: where they fit, and are the same each time."""

from typing import Any

import pytest
import torch
from remedy_rig import Table, equal, fake_images, job_with, lines_of, pasted_batch, situation, trained_on
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from workload_rig import workload_of

from loadtune.remedies import REMEDIES, NotApplicableError, cached


class Counting(Table):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return super().__getitem__(index)


class NoisyArrays(Dataset[Any]):
    """Augmented, as NumPy arrays."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.rand(3).numpy(), index


def test_the_same_samples_and_the_dataset_is_not_asked_again() -> None:
    dataset = Counting()
    job = workload_of(dataset)
    changed = job_with(job, "cached")
    dataset.asked.clear()
    assert equal(trained_on(changed, range(40)), (Table().inputs, Table().targets))
    assert dataset.asked == []
    assert job.dataset is dataset


def test_of_a_large_dataset_some_samples_stand_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "NUM_TRIED", 5)
    changed = job_with(workload_of(Table()), "cached")
    assert len(changed.dataset) == 40
    assert equal(trained_on(changed, [7, 39]), Table()[[2, 4]])


@pytest.mark.parametrize("seed", range(8))
def test_refused_with_augmentation(seed: int) -> None:
    """Also with a flip alone, which leaves every second sample as it is."""
    for step in (v1.RandomHorizontalFlip(), v1.RandomCrop(30)):
        torch.manual_seed(seed)
        with pytest.raises(NotApplicableError, match="augmentation"):
            job_with(workload_of(fake_images(v1.Compose([step, v1.ToTensor()]))), "cached")


def test_refused_with_augmented_arrays() -> None:
    with pytest.raises(NotApplicableError, match="augmentation"):
        job_with(workload_of(NoisyArrays()), "cached")


def test_kept_without_augmentation() -> None:
    job = workload_of(fake_images(v1.ToTensor()))
    assert equal(trained_on(job), trained_on(job_with(job, "cached")))


def test_the_pasted_lines_give_the_same_samples() -> None:
    dataset = fake_images(v1.ToTensor())
    names: dict[str, Any] = {"dataset": dataset, "DataLoader": DataLoader}
    exec(lines_of("cached", workload_of(dataset)).replace("DataLoader(samples)", "DataLoader(samples, 6)"), names)
    assert equal(pasted_batch(dataset), next(iter(names["loader"])))


def test_offered_where_half_of_the_ram_is_enough() -> None:
    remedy = REMEDIES["cached"]
    size = {"dataset_length": 1000, "sample_bytes": 1000}
    assert remedy.offer(situation(facts=size, ram_bytes=2_000_000)) == situation().config
    assert remedy.offer(situation(facts=size, ram_bytes=1_999_999)) is None
    assert remedy.offer(situation(facts={"dataset_length": None})) is None
    assert remedy.offer(situation(facts={"fixed_batch_size": 8})) is None
    assert remedy.only_predicted
