"""Where batches of any structure keep their samples, and what is made of them with that."""

import dataclasses
from collections import UserDict, namedtuple
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from loadtune.workload.batches import (
    moved,
    num_bytes,
    num_tokens,
    own_structure,
    places_of,
    places_of_ready,
    sample_shape,
    structure_text,
)


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    names: list[str]


Named = namedtuple("Named", ["rows", "scale"])


def detection(num: int) -> Any:
    return [torch.rand(3, 4 + at, 5) for at in range(num)], [{"boxes": torch.rand(at + 1, 4)} for at in range(num)]


def padded(num: int) -> Any:
    return {"input_ids": torch.ones(num, 5 + num, dtype=torch.long), "labels": torch.zeros(num)}


class Graph:
    """As graph libraries have it: tensors in a store, and a way of its own to a device."""

    def __init__(self, **store: Any) -> None:
        self._store = store

    def to(self, device: torch.device) -> "Graph":
        self._store = {key: value.to(device) for key, value in self._store.items()} | {"moved": torch.ones(())}
        return self


class Frozen(Mapping[str, Any]):
    """A mapping that cannot be changed, over a dict that a copy shares."""

    def __init__(self, **data: Any) -> None:
        self.data = data

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)


class Changeable(Frozen):
    def update(self, others: Mapping[str, Any]) -> None:
        self.data.update(others)


MAKERS = {
    "tensor": lambda num: torch.rand(num, 7),
    "as default_collate makes pairs": lambda num: [torch.rand(num, 7), torch.zeros(num)],
    "mapping": lambda num: {"x": torch.rand(num, 2), "weights": torch.ones(9), "nested": {"y": torch.rand(num)}},
    "user's mapping": lambda num: UserDict(x=torch.rand(num, 2)),
    "mapping that cannot be changed": lambda num: Frozen(x=torch.rand(num, 2)),
    "mapping whose copy shares its dict": lambda num: Changeable(x=torch.rand(num, 2)),
    "detection": detection,
    "padded": padded,
    "time first": lambda num: torch.rand(6, num, 4),
    "dataclass": lambda num: Pair(torch.rand(num, 2), ["a"] * num),
    "object with a store": lambda num: Graph(x=torch.rand(num, 2), y=torch.rand(num)),
    "named tuple": lambda num: Named(torch.rand(num, 2), 0.5),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_batches_are_counted_cut_and_repeated(make: Any) -> None:
    places = places_of(make(2), make(3), 2, 3)
    assert places.are_known
    assert places.count
    batch = make(4)
    assert places.num_samples(batch) == 4
    taken = places.take(batch, [3, 0, 3, 1, 1, 2, 0])
    assert type(taken) is type(batch)
    assert places.num_samples(taken) == 7
    assert places.num_samples(batch) == 4, "the batch itself is as it was"


def test_samples_are_those_that_were_asked_for() -> None:
    places = places_of(torch.zeros(6, 2), torch.zeros(6, 3), 2, 3)
    assert places.take(torch.arange(8).reshape(2, 4), [3, 0]).tolist() == [[3, 0], [7, 4]]
    places = places_of(detection(2), detection(3), 2, 3)
    images, targets = places.take(detection(3), [2, 2])
    assert [image.shape[1] for image in images] == [6, 6]
    assert [len(target["boxes"]) for target in targets] == [3, 3]


UNUSUAL = {
    "packed": lambda num: pack_sequence([torch.rand(5 - at, 2) for at in range(num)]),
    "jagged": lambda num: torch.nested.nested_tensor([torch.rand(2 + at, 2) for at in range(num)], layout=torch.jagged),
    "nested": lambda num: torch.nested.nested_tensor([torch.rand(2 + at, 2) for at in range(num)]),
    "sparse": lambda num: torch.eye(num).to_sparse(),
    "rows compressed": lambda num: torch.eye(num).to_sparse_csr(),
}


@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_sparse_nested_and_packed_tensors_are_described_and_never_cut(make: Any) -> None:
    def batch(num: int) -> Any:
        return {"x": make(num), "y": torch.zeros(num)}

    places = places_of(batch(2), batch(3), 2, 3)
    assert not places.are_known
    assert not places_of_ready(batch(4)).are_known
    assert places.num_samples(batch(4)) == 4
    assert num_bytes(batch(4)) > 16
    assert structure_text(batch(4))
    assert sample_shape(batch(4), places_of(batch(2), batch(3), 2, 3)) is not None
    there = moved(batch(4), torch.device("cpu"), lambda tensor: tensor.to("cpu", non_blocking=True))
    assert type(there["x"]) is type(batch(4)["x"])
    assert type(own_structure(batch(4))["x"]) is type(batch(4)["x"])


def test_the_users_code_may_change_the_structure_of_its_own() -> None:
    batch = {"x": [torch.rand(2)], "labels": torch.zeros(2)}
    own = own_structure(batch)
    own.pop("labels")
    own["x"].pop()
    assert (len(batch), len(batch["x"])) == (2, 1)


def test_the_first_dimension_of_the_first_tensor_counts_in_a_batch_that_comes_ready() -> None:
    batch = (torch.zeros(6, 4), torch.zeros(4), torch.zeros(6))
    places = places_of_ready(batch)
    assert places.num_samples(batch) == 6
    assert [part.shape for part in places.take(batch, [0, 1])] == [(2, 4), (4,), (2,)]


def test_tokens_are_elements_of_input_ids() -> None:
    assert num_tokens(padded(3)) == 24
    assert num_tokens((torch.zeros(3), torch.zeros(3))) is None
    assert num_tokens(namedtuple("Text", ["input_ids"])(torch.ones(2, 3))) == 6
