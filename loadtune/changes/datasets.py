"""A job's dataset, behind any number of `Subset`, its transform and its batches: read, taken apart and replaced.

Torch's side; imported late.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import Subset, default_convert
from torchvision import transforms as v1
from torchvision.datasets.vision import StandardTransform
from torchvision.transforms import v2

from loadtune.changes.base import NotApplicableError
from loadtune.workload import (
    Batch,
    Workload,
    collate_samples,
    fetch_samples,
    is_pair,
    map_tensors,
    structure_text,
    tensors_of,
)


def batch_of(workload: Workload, indices: Sequence[Any]) -> Batch:
    """A batch of the samples at these indices, as a worker makes it."""
    loader = workload.loader
    if loader.batched_fetch:
        return default_convert(loader.dataset[indices])  # type: ignore[no-untyped-call]
    samples = fetch_samples(loader.dataset, indices)
    return collate_samples(samples, indices, any_target=True, any_structure=True, collate=loader.collate_fn)


def small_batch(workload: Workload) -> Batch:
    """A batch of the first two samples."""
    drawn = workload.epoch.indices
    return batch_of(workload, [drawn[at % len(drawn)] for at in range(2)])


def pair_of_tensors(workload: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """A small batch, where it is (inputs, targets), which the lines to paste take apart. Raises NotApplicableError."""
    batch = small_batch(workload)
    if not is_pair(batch) or not all(isinstance(part, torch.Tensor) for part in batch):
        raise NotApplicableError("a batch is no pair (inputs, targets) of tensors")
    inputs, targets = batch
    return inputs, targets


def equal(one: Any, other: Any) -> bool:
    """Whether both have the same tensors in the same places."""
    if structure_text(one) != structure_text(other):
        return False
    return all(torch.equal(a, b) for a, b in zip(tensors_of(one), tensors_of(other), strict=True))


@dataclass(frozen=True, slots=True)
class OnInputs:
    """Changes the first tensor of a batch, and no other."""

    change: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, batch: Batch) -> Batch:
        waiting = [self.change]
        return map_tensors(batch, lambda tensor: waiting.pop()(tensor) if waiting else tensor)


def owner_of(dataset: Any) -> Any:
    """The dataset that loads samples: behind any number of `Subset`."""
    return owner_of(dataset.dataset) if isinstance(dataset, Subset) else dataset


def steps_of(dataset: Any) -> list[Any]:
    """The steps of the dataset's transform. Raises NotApplicableError where it has none that can be taken apart."""
    transform = getattr(owner_of(dataset), "transform", None)
    if transform is None:
        raise NotApplicableError("the dataset has no transform in an attribute `transform`")
    return list(transform.transforms) if isinstance(transform, (v1.Compose, v2.Compose)) else [transform]


def with_owner(workload: Workload, *, steps: Sequence[Any] | None = None, read: Any = None) -> Workload:
    """The same job over a changed copy of the dataset that loads samples. The user's own stays as it is.

    ``steps``: of its transform from now on. ``read``: its reader of files. None: as it is.
    """

    def changed(dataset: Any) -> Any:
        made = copy.copy(dataset)
        if isinstance(dataset, Subset):
            made.dataset = changed(dataset.dataset)
            return made
        if read is not None:
            made.loader = read
        if steps is not None:
            compose = v2.Compose if any(isinstance(step, v2.Transform) for step in steps) else v1.Compose
            made.transform = compose(list(steps))
            if _has_second(made):
                made.transforms = StandardTransform(made.transform, getattr(made, "target_transform", None))
        return made

    return replace(workload, loader=replace(workload.loader, dataset=changed(workload.dataset)))


def _has_second(dataset: Any) -> bool:
    """Whether torchvision holds the transform a second time."""
    return isinstance(getattr(owner_of(dataset), "transforms", None), StandardTransform)


def path_of(dataset: Any) -> str:
    """How the dataset that loads samples is reached in code: ``dataset.dataset``, behind a `Subset`."""
    return f"{path_of(dataset.dataset)}.dataset" if isinstance(dataset, Subset) else "dataset"


def copy_lines(dataset: Any) -> list[str]:
    """Lines of code that give a `Subset` a dataset of its own, before that is changed; none for another dataset."""
    path = path_of(dataset)
    copied = [path[:at] for at in range(len("dataset.dataset"), len(path) + 1, len(".dataset"))]
    copied += [f"{path}.transforms"] if copied and _has_second(dataset) else []
    if not copied:
        return []
    comment = "# other splits of the dataset, such as validation, stay as they are"
    return ["import copy", comment, *(f"{each} = copy.copy({each})" for each in copied)]


def transform_lines(dataset: Any, steps: Sequence[str]) -> list[str]:
    """Lines of code that give the dataset a transform of these steps, also where torchvision holds it twice."""
    path = path_of(dataset)
    second = f"{path}.transforms.transform = {path}.transform  # where torchvision holds it a second time"
    return [f"{path}.transform = Compose([{', '.join(steps)}])", *([second] if _has_second(dataset) else [])]
