"""A DataLoader taken apart and made again: the same samples with other settings."""

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from loadtune.errors import WorkloadError
from loadtune.records.config import LoaderConfig
from loadtune.workload.loaders import LoaderParts, epoch_of
from loadtune.workload.user_code import pack_parts, unpack_parts


class Unlike(Dataset[int]):
    """Without a length."""

    def __getitem__(self, index: Any) -> int:
        return index


class Numbers(Unlike):
    def __len__(self) -> int:
        return 12


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


class Draws:
    """A sampler without a length."""

    def __init__(self, draw: Callable[[], Iterable[Any]]) -> None:
        self._draw = draw

    def __iter__(self) -> Iterator[Any]:
        return iter(self._draw())


UNEVEN: Any = Draws(lambda: [[0], [3, 2, 1]])


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


LOADERS = {
    "shuffled": lambda: DataLoader(Numbers(), 4, shuffle=True, generator=seeded()),
    "sampler": lambda: DataLoader(Numbers(), 4, sampler=RandomSampler(Numbers(), generator=seeded()), drop_last=True),
    "PyTorch's batch sampler": lambda: DataLoader(
        Numbers(), batch_sampler=BatchSampler(SequentialSampler(Numbers()), 4, drop_last=True)
    ),
    "own batch sampler": lambda: DataLoader(Numbers(), batch_sampler=UNEVEN),
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


def test_what_only_workers_take_is_left_out_without_them() -> None:
    loader = DataLoader(Numbers(), 4, num_workers=2, timeout=9.0, multiprocessing_context="spawn", prefetch_factor=5)
    alone = LoaderParts.of(loader).make(LoaderConfig(batch_size=3))
    assert (alone.num_workers, alone.timeout) == (0, 0)


class SizedStream(Stream):
    def __len__(self) -> int:
        return 12


@pytest.mark.parametrize(
    ("loader", "num_draws", "indices"),
    [
        (DataLoader(Numbers(), 4), 12, set(range(12))),
        (DataLoader(Numbers(), 4, sampler=RandomSampler(Numbers(), num_samples=5)), 5, set(range(12))),
        (DataLoader(Numbers(), 4, sampler=SubsetRandomSampler([3, 5, 8])), 3, {3, 5, 8}),
        (DataLoader(Numbers(), 4, sampler=["a", ("b", 2)]), 2, {"a", ("b", 2)}),
        (DataLoader(Numbers(), 4, sampler=Draws(lambda: [4, 2, 4])), 3, {2, 4}),
        (DataLoader(Numbers(), 4, sampler=Draws(lambda: repeat(7))), None, {7}),
        (DataLoader(Unlike(), 4, sampler=RandomSampler(range(9))), 9, set(range(9))),
        (DataLoader(Numbers(), batch_sampler=UNEVEN), 2, {0, 1, 2, 3}),
        (DataLoader(Numbers(), batch_sampler=BatchSampler(SubsetRandomSampler([3, 5]), 2, False)), 2, {3, 5}),
        (DataLoader(Stream(), 4), None, set()),
        (DataLoader(SizedStream(), 4), 12, set()),
    ],
)
def test_an_epoch_is_what_the_sampler_draws(loader: Any, num_draws: int | None, indices: set[Any]) -> None:
    epoch = epoch_of(LoaderParts.of(loader), seed=0)
    assert (epoch.num_draws, set(epoch.indices)) == (num_draws, indices)
    torch.rand(1)
    assert epoch_of(LoaderParts.of(loader), seed=0) == epoch, "the same each time"


@pytest.mark.parametrize(
    ("sampler", "words"),
    [([], "returned no index"), (Draws(lambda: 1 / 0), "sampler of the loader raised ZeroDivisionError")],
)
def test_a_sampler_that_draws_nothing_is_said(sampler: Any, words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        epoch_of(LoaderParts.of(DataLoader(Numbers(), 4, sampler=sampler)), seed=0)


SCRIPT = """
from typing import NamedTuple
import torch
from torch.utils.data import DataLoader, Dataset

class Pair(NamedTuple):
    values: torch.Tensor
    indices: torch.Tensor

class Rows(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.full((3,), float(index)), index

def collate(samples):
    values, indices = zip(*samples)
    return Pair(torch.stack(values), torch.tensor(indices))

loader = DataLoader(Rows(), 2, num_workers=1, collate_fn=collate, timeout=100)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_a_script_or_notebook_defines_reaches_workers_and_comes_back(method: str) -> None:
    main: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, main)  # as in the training process, no module has these definitions
    main["loader"].multiprocessing_context = method
    parts = unpack_parts(pack_parts({"loader": LoaderParts.of(main["loader"])}), torch.device("cpu"))["loader"]
    batches = list(parts.make(parts.settings(2)))
    assert [batch.indices.tolist() for batch in batches] == [[0, 1], [2, 3]]
    assert {type(batch).__name__ for batch in batches} == {"Pair"}
