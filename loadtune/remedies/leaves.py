"""Tensors of a batch that a remedy changes, by their place in its structure. Torch's side; imported late."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from loadtune.workload import Batch, Workload, collate_samples, fetch_samples, is_pair, map_tensors, tensors_of


def small_batch(workload: Workload, num: int = 2) -> Batch:
    """A batch of the first samples, as a worker would make it."""
    drawn = workload.epoch.indices
    indices = [drawn[at % len(drawn)] for at in range(num)]
    samples = fetch_samples(workload.dataset, indices)
    return collate_samples(samples, indices, any_target=True, any_structure=True, collate=workload.loader.collate_fn)


def changed_places(before: Batch, after: Batch, dtype: torch.dtype) -> tuple[int, ...]:
    """Places of tensors that are of this type now and were floats before."""
    pairs = zip(tensors_of(before), tensors_of(after), strict=True)
    return tuple(at for at, (old, new) in enumerate(pairs) if new.dtype == dtype and old.is_floating_point())


def is_pair_of_tensors(batch: Batch) -> bool:
    """Whether it is (inputs, targets), both tensors: what the lines to paste take apart."""
    return is_pair(batch) and all(isinstance(part, torch.Tensor) for part in batch)


@dataclass(frozen=True, slots=True)
class AtPlaces:
    """Changes the tensors at some places of a batch, and no others."""

    places: Collection[int]
    change: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, batch: Batch) -> Batch:
        at = -1

        def changed(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal at
            at += 1
            return self.change(tensor) if at in self.places else tensor

        return map_tensors(batch, changed)


@dataclass(frozen=True, slots=True)
class Collated:
    """A collate function with one more step. A class, so that workers started by spawn can pickle it."""

    collate: Callable[[list[Any]], Batch]
    then: Callable[[Batch], Batch]

    def __call__(self, samples: list[Any]) -> Batch:
        return self.then(self.collate(samples))
