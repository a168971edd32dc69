"""Whether a ``worker_init_fn`` is given the number of workers, or reads it by itself."""

from argparse import Namespace
from functools import partial, wraps
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from loadtune.stream.switching import SwitchingIterator
from loadtune.stream.trust import reason_against_init

num_workers, args = 2, Namespace(num_workers=2)


def asks(worker_id: int) -> Any:
    info: Any = get_worker_info()
    return info.num_workers


def note(data: Any, worker_id: int, num_workers: int, rank: int) -> None:
    data[worker_id] = num_workers * rank + worker_id + 100 * asks(worker_id)


class Seeds(Namespace):
    def __call__(self, worker_id: int) -> Any:
        return self.num_workers


emptied: Any = (lambda later: lambda _: (asks(0), later))(0)
del emptied.__closure__[0].cell_contents
READ = [
    lambda _: num_workers, lambda _: args.num_workers, lambda _: asks.get_worker_info().num_workers + args.num_workers,
    lambda _: vars(args)["num_workers"], (lambda num_workers: lambda _: num_workers)(2), lambda _, num_workers=2: 0,
    Seeds(), partial(Seeds()), wraps(Seeds().__call__)(lambda _: 0), partial(note, None, num_workers=8, rank=0),
    lambda _: getattr(args, "num_workers", 0),
]  # fmt: skip
NOT_READ = [None, asks, torch.manual_seed, wraps(asks)(lambda _: 0), lambda _: print("num_workers"), emptied]


@pytest.mark.parametrize(("init", "reads"), [(each, True) for each in READ] + [(each, False) for each in NOT_READ])
def test_who_reads_it_by_itself_is_named(init: Any, reads: bool) -> None:
    assert ("set num_workers yourself" in (reason_against_init(init, 2) or "")) == reads


@pytest.mark.parametrize("given", [1, None])
def test_what_a_partial_gives_is_as_if_it_had_been_typed(given: int | None) -> None:
    data = torch.zeros(4, dtype=torch.int64).share_memory_()
    inner: Any = partial(note, data, num_workers=given)
    inner.is_nested = True
    loader: Any = DataLoader(range(8), num_workers=1, worker_init_fn=partial(inner, rank=7))
    assert reason_against_init(loader.worker_init_fn, 1) is None
    assert len(list(SwitchingIterator(loader, 3))) == 8
    assert data.tolist() == [321, 322, 323, 0]
    assert len(list(SwitchingIterator(loader, 3, told_workers=64))) == 8
    assert data.tolist() == [300 + 7 * 64, 301 + 7 * 64, 302 + 7 * 64, 0], "as ranks with other numbers compute"
