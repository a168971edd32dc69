"""Samples fetched with one indexing call a batch: the same ones in the same order."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from remedy_rig import Table, equal, job_with, lines_of, parts_of
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler
from workload_rig import workload_of

from loadtune.records.config import LoaderConfig
from loadtune.records.loading import NotApplicableError

BATCH_SIZE = 6


class Arrays(Dataset[Any]):
    """Rows of NumPy arrays, which only DataLoader makes tensors of."""

    def __init__(self) -> None:
        self.table = Table()

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: Any) -> Any:
        return tuple(part.numpy() for part in self.table[index])


class Fetching(Table):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


class Rows(Table):
    """Reads the rows of the table, or one row, as a function (read, index) does."""

    def __init__(self, change: Callable[[Callable[[Any], Any], Any], Any]) -> None:
        super().__init__()
        self.change = change

    def __getitem__(self, index: Any) -> Any:
        return self.change(super().__getitem__, index)


def increasing(read: Callable[[Any], Any], index: Any) -> Any:
    """Takes increasing indices alone, as an HDF5 file does."""
    if isinstance(index, list) and index != sorted(index):
        raise TypeError("Indexing elements must be in increasing order")
    return read(index)


def augmented(read: Callable[[Any], Any], index: Any) -> Any:
    inputs, targets = read(index)
    return inputs + torch.rand(inputs.shape), targets


def batches(loader: "DataLoader[Any]", seed: int = 0) -> list[Any]:
    """Of an epoch."""
    torch.manual_seed(seed)
    return list(loader)


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))


DATASETS: dict[str, Callable[[], Any]] = {
    "table": Table,
    "TensorDataset": lambda: TensorDataset(Table().inputs, Table().targets),
    "arrays": Arrays,
    "subset": lambda: Subset(Table(), range(39, 4, -1)),
    "two rows": lambda: Table(2),
}


@pytest.mark.parametrize("make", DATASETS.values(), ids=DATASETS.keys())
def test_each_batch_is_the_same(make: Callable[[], Any]) -> None:
    dataset = make()
    order = [at % len(dataset) for at in (9, 4, 4, 1, 0, 3, 2, 7, 5)]
    config = LoaderConfig(batch_size=4)
    plain = workload_of(dataset)
    changed = job_with(plain, "batched_fetch")
    one, other = (job.loader.make(config, sampler=order) for job in (plain, changed))
    assert [len(targets) for _, targets in batches(other)] == [4, 4, 1]
    assert same(batches(one), batches(other))


REFUSED: dict[str, tuple[Any, str]] = {
    "fetches": (Fetching(), "__getitems__"),
    "one by one": (Rows(lambda read, index: read(int(index))), "cannot be indexed with a list"),
    "increasing": (Rows(increasing), "cannot be indexed with a list in any order"),
    "augmented": (Rows(augmented), "other values"),
}


@pytest.mark.parametrize(("dataset", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(dataset: Any, reason: str) -> None:
    with pytest.raises(NotApplicableError, match=reason):
        job_with(workload_of(dataset), "batched_fetch")


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


OWN_LOADERS: dict[str, Callable[[Any], "DataLoader[Any]"]] = {
    "own generator": lambda data: DataLoader(data, BATCH_SIZE, shuffle=True, generator=seeded(), drop_last=True),
    "in order": lambda data: DataLoader(data, BATCH_SIZE),
    "weighted": lambda data: DataLoader(
        data, BATCH_SIZE, sampler=WeightedRandomSampler([1.0, 9.0] * 20, num_samples=25, generator=seeded())
    ),
}


@pytest.mark.parametrize("make", OWN_LOADERS.values(), ids=OWN_LOADERS.keys())
def test_the_pasted_lines_give_the_same_samples_in_the_same_order(make: Callable[[Any], "DataLoader[Any]"]) -> None:
    dataset = Table()
    expected = batches(make(dataset))
    loader = make(dataset)
    asked = workload_of(dataset, **parts_of(make(dataset)))  # in the training process: its own copy of the sampler
    code = lines_of("batched_fetch", asked, loader=LoaderConfig(batch_size=6))
    names: dict[str, Any] = {"torch": torch, "dataset": dataset, "loader": loader}
    exec(code, names)
    assert names["loader"] is not loader
    assert same(expected, batches(names["loader"]))


def test_the_pasted_lines_of_a_dataset_that_was_named_shuffle_it() -> None:
    dataset = Table()
    config = LoaderConfig(batch_size=6, num_workers=1, prefetch_factor=3, persistent_workers=False)
    names: dict[str, Any] = {"dataset": dataset}
    exec(lines_of("batched_fetch", workload_of(dataset), loader=config), names)
    loader = names["loader"]
    plain = DataLoader(dataset, 6, shuffle=True, drop_last=True)
    assert same(batches(plain), batches(loader))
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 3, False)
