"""Samples out of a dataset: fetched one by one, collated, and every way they can be unusable said in words."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset, default_collate

from loadtune.errors import WorkloadError
from loadtune.workload.batches import Batch, Places, places_along, places_of, places_of_ready, structure_text
from loadtune.workload.user_code import last_line, sample_index, user_traceback

if TYPE_CHECKING:
    from loadtune.workload.build import Workload

_WANTED = (
    "A sample has to be a pair (input, target): the input is a tensor, the target a class index or a tensor of class "
    "indices. Return such a pair from __getitem__; or give a function `fn(model, batch) -> scalar` that trains on "
    "other samples: --compute-loss FILE.py:fn, or compute_loss=fn in Python."
)


def fetch_samples(dataset: Dataset[Any], indices: Sequence[int]) -> list[Any]:
    """The samples at these indices. Raises WorkloadError with the index and the user's traceback."""
    samples = []
    for index in indices:
        try:
            samples.append(dataset[index])
        except Exception as error:
            at = sample_index(error)
            raise WorkloadError(
                f"dataset[{index if at is None else at}] raised {last_line(error)}. Every index from 0 to len(dataset) "
                "- 1 has to return a sample. Correct the dataset, or leave this sample out of it.",
                user_traceback(error),
            ) from error
    return samples


def collate_samples(
    samples: Sequence[Any],
    indices: Sequence[int],
    *,
    any_target: bool = False,
    any_structure: bool = False,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Batch:
    """A batch. Raises WorkloadError where the samples do not make one; `indices` are theirs.

    Of pairs (input, target) the targets are class indices, of any shape, as int64; with ``any_target`` whatever they
    are. Mappings are taken as they are, and with ``any_structure`` everything. ``collate``: the user's own.
    """
    if collate is not None:
        try:
            return collate(list(samples))
        except Exception as error:
            raise WorkloadError(
                f"The collate function raised {last_line(error)}, given {len(samples)} samples like "
                f"{sample_text(samples[0])}.",
                user_traceback(error),
            ) from error
    for sample in samples:
        if not (
            any_structure or isinstance(sample, Mapping) or (isinstance(sample, (tuple, list)) and len(sample) == 2)
        ):
            raise WorkloadError(f"A sample of the dataset is {sample_text(sample)}. {_WANTED}")
    try:
        batch = default_collate(list(samples))
    except Exception as error:
        raise WorkloadError(_not_collated(samples, indices, error), user_traceback(error)) from error
    if any_structure or any_target or isinstance(batch, Mapping):
        return batch
    inputs, targets = batch
    if not isinstance(inputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        raise WorkloadError(f"A sample of the dataset is {sample_text(samples[0])}. {_WANTED}")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise WorkloadError(
            f"The target of a sample is {_part_text(samples[0][1])}. With cross entropy, the default loss, it has to "
            "be a class index: an integer, or a tensor of integers where the model predicts a class for each position. "
            "For other targets give a loss function: --loss FILE.py:fn, or loss=fn in Python."
        )
    return inputs, targets.long()


def small_batch(workload: "Workload") -> tuple[Batch, Places]:
    """A batch of the first two samples, and where it keeps them; of a loader that makes batches itself, its first.

    Targets of any kind are taken. Raises WorkloadError.
    """
    loader, dim = workload.loader, workload.spec.batch_dim
    if loader.is_iterable:
        try:
            samples = list(itertools.islice(loader.dataset, 3))
        except Exception as error:
            raise WorkloadError(f"Reading the stream raised {last_line(error)}.", user_traceback(error)) from error
    else:
        samples = fetch_samples(loader.dataset, [0])
    if not samples:
        raise WorkloadError("The stream is empty: it ends without a sample. Point it to data.")
    if not loader.batch_size_is_free and loader.is_iterable:
        ready = samples[0] if loader.collate_fn is None else loader.collate_fn(samples[0])
        return ready, places_of_ready(ready) if dim is None else places_along(ready, dim)
    fewer, more = (
        collate_samples(
            [samples[at % len(samples)] for at in range(num)],
            [0] * num,
            any_target=True,
            any_structure=workload.own_batches,
            collate=loader.collate_fn,
        )
        for num in (2, 3)
    )
    return fewer, places_of(fewer, more, 2, 3) if dim is None else places_along(fewer, dim)


def _not_collated(samples: Sequence[Any], indices: Sequence[int], error: Exception) -> str:
    """Which part of the samples keeps them from being stacked, where, and what to do."""
    is_pairs = all(isinstance(sample, (tuple, list)) and len(sample) == 2 for sample in samples)
    for position, name in enumerate(("input", "target") if is_pairs else ()):
        parts = [sample[position] for sample in samples]
        other = next((at for at, part in enumerate(parts) if _kind(part) != _kind(parts[0])), None)
        if other is not None:
            return (
                f"The samples cannot be collated into a batch, because the {name} differs from sample to sample: "
                f"dataset[{indices[0]}] has {_part_text(parts[0])}, dataset[{indices[other]}] has "
                f"{_part_text(parts[other])}. PyTorch's default collate function needs every {name} to have the "
                f"same type and shape: {_SAME_SHAPE[name]} in the dataset, or give your own with --collate or --loader."
            )
        if not _is_collatable(parts[0]):
            return (
                f"The samples cannot be collated into a batch: the {name} of dataset[{indices[0]}] is "
                f"{_part_text(parts[0])}. It has to be a tensor{_OR_ELSE[name]}: convert it in the dataset, pictures "
                "with torchvision.transforms.ToTensor()."
            )
    seen = " and ".join(sample_text(sample) for sample in samples[:2])
    return (
        f"The samples cannot be collated into a batch: {last_line(error)}. Found {seen}. Give your own collate "
        "function with --collate or --loader."
    )


_SAME_SHAPE = {"input": "crop, resize or pad the inputs", "target": "pad or cut the targets to one shape"}
_OR_ELSE = {"input": "", "target": " or a number"}


def _kind(part: Any) -> Any:
    """What default_collate needs to be the same in all samples. An integer and a float make a batch together."""
    shape = getattr(part, "shape", None)
    if shape is not None:
        return tuple(shape)
    return (type(part), len(part)) if isinstance(part, (list, tuple, dict)) else isinstance(part, (int, float))


def _is_collatable(part: Any) -> bool:
    return hasattr(part, "shape") or isinstance(part, (int, float, list, tuple, dict))


def sample_text(sample: Any) -> str:
    """``(float32 tensor (3, 224, 224), int 7)``: what a sample looks like, for an error."""
    if isinstance(sample, (tuple, list)):
        return f"({', '.join(_part_text(part) for part in sample[:4])}{', …' if len(sample) > 4 else ''})"
    return structure_text(sample) if isinstance(sample, Mapping) else _part_text(sample)


def _part_text(part: Any) -> str:
    if isinstance(part, torch.Tensor):
        return f"{str(part.dtype).removeprefix('torch.')} tensor {tuple(part.shape)}"
    shape = getattr(part, "shape", None)
    if shape is not None:
        return f"{type(part).__name__} {tuple(shape)}"
    text = re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(part))
    return (text if text.startswith("<") else f"{type(part).__name__} {text}")[:60]
