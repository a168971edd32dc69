"""A DataLoader taken apart and made again: the same samples with other settings."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from loadtune.records import LoaderConfig
from loadtune.workload import Endless, LoaderParts


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


class Uneven:
    """Batches of one and of three."""

    def __iter__(self) -> Iterator[list[int]]:
        yield [0]
        yield [3, 2, 1]


def init(worker: int) -> None: ...


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


LOADERS = {
    "in order": lambda: DataLoader(Numbers(), 4),
    "shuffled": lambda: DataLoader(Numbers(), 4, shuffle=True, generator=seeded()),
    "sampler": lambda: DataLoader(Numbers(), 4, sampler=RandomSampler(Numbers(), generator=seeded()), drop_last=True),
    "PyTorch's batch sampler": lambda: DataLoader(
        Numbers(), batch_sampler=BatchSampler(SequentialSampler(Numbers()), 4, drop_last=True)
    ),
    "own batch sampler": lambda: DataLoader(Numbers(), batch_sampler=Uneven()),  # type: ignore[arg-type]
    "stream": lambda: DataLoader(Stream(), 4),
    "no batches": lambda: DataLoader(Numbers(), batch_size=None),
}


def drawn(loader: DataLoader[Any]) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader]


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS.keys())
def test_the_same_samples_in_the_same_order(make: Any) -> None:
    expected = drawn(make())
    parts = LoaderParts.of(make())
    assert drawn(parts.make(parts.settings(4))) == expected


def test_all_else_is_kept() -> None:
    loader = DataLoader(
        Numbers(), 4, num_workers=2, worker_init_fn=init, timeout=9.0, multiprocessing_context="spawn",
        generator=seeded(), collate_fn=list, drop_last=True, prefetch_factor=5, persistent_workers=True,
    )  # fmt: skip
    made = LoaderParts.of(loader).make(LoaderConfig(batch_size=3, num_workers=1, prefetch_factor=4))
    assert (made.batch_size, made.num_workers, made.prefetch_factor) == (3, 1, 4)
    kept = ("dataset", "worker_init_fn", "timeout", "generator", "collate_fn", "drop_last", "sampler")
    assert all(getattr(made, name) == getattr(loader, name) for name in kept)
    assert made.multiprocessing_context.get_start_method() == "spawn"
    alone = LoaderParts.of(loader).make(LoaderConfig(batch_size=3))
    assert (alone.num_workers, alone.timeout) == (0, 0)


@pytest.mark.parametrize(
    ("name", "is_free"),
    [("shuffled", True), ("PyTorch's batch sampler", True), ("own batch sampler", False), ("no batches", False)],
)
def test_a_batch_size_is_free_where_pytorch_makes_the_batches(name: str, is_free: bool) -> None:
    assert LoaderParts.of(LOADERS[name]()).batch_size_is_free == is_free


def test_the_users_settings_are_those_of_the_loader() -> None:
    loader = DataLoader(Numbers(), 4, num_workers=2, prefetch_factor=3, in_order=False)
    assert LoaderParts.of(loader).settings(99) == LoaderConfig(
        batch_size=4, num_workers=2, prefetch_factor=3, persistent_workers=False, in_order=False
    )
    assert LoaderParts.of(LOADERS["own batch sampler"]()).settings(2).batch_size == 2


def test_a_sampler_begins_again_where_it_ends() -> None:
    endless = iter(Endless([1, 2]))
    assert [next(endless) for _ in range(5)] == [1, 2, 1, 2, 1]
    with pytest.raises(ValueError, match="draws no sample"):
        next(iter(Endless([])))
