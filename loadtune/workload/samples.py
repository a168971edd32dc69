"""Samples out of a dataset: fetched one by one, collated, and every way they can be unusable said in words."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate

from loadtune.errors import WorkloadError
from loadtune.workload.tasks import Batch
from loadtune.workload.user_code import last_line, sample_index, user_traceback

_WANTED = (
    "A sample has to be a pair (input, target): the input is a tensor, the target a class index or a tensor of class "
    "indices. Return such a pair from __getitem__."
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


def collate_samples(samples: Sequence[Any], indices: Sequence[int], *, any_target: bool = False) -> Batch:
    """A batch (inputs, targets). Raises WorkloadError where the samples do not make one; `indices` are theirs.

    Targets are class indices, of any shape, as int64; with ``any_target`` whatever tensors they are.
    """
    for sample in samples:
        if not isinstance(sample, (tuple, list)) or len(sample) != 2:
            raise WorkloadError(f"A sample of the dataset is {sample_text(sample)}. {_WANTED}")
    try:
        inputs, targets = default_collate(list(samples))
    except Exception as error:
        raise WorkloadError(_not_collated(samples, indices, error), user_traceback(error)) from error
    if not isinstance(inputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        raise WorkloadError(f"A sample of the dataset is {sample_text(samples[0])}. {_WANTED}")
    if any_target:
        return inputs, targets
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise WorkloadError(
            f"The target of a sample is {_part_text(samples[0][1])}. With cross entropy, the default loss, it has to "
            "be a class index: an integer, or a tensor of integers where the model predicts a class for each position. "
            "For other targets pass a loss function in Python: tune_loader(config, loss=...) or "
            "find_batch_size(..., loss=...)."
        )
    return inputs, targets.long()


def _not_collated(samples: Sequence[Any], indices: Sequence[int], error: Exception) -> str:
    """Which part of the samples keeps them from being stacked, where, and what to do."""
    for position, name in enumerate(("input", "target")):
        parts = [sample[position] for sample in samples]
        other = next((at for at, part in enumerate(parts) if _kind(part) != _kind(parts[0])), None)
        if other is not None:
            return (
                f"The samples cannot be collated into a batch, because the {name} differs from sample to sample: "
                f"dataset[{indices[0]}] has {_part_text(parts[0])}, dataset[{indices[other]}] has "
                f"{_part_text(parts[other])}. Every {name} must have the same type and shape. loadtune uses PyTorch's "
                f"default collate function and cannot take another one yet: {_SAME_SHAPE[name]} in the dataset."
            )
        if not _is_collatable(parts[0]):
            return (
                f"The samples cannot be collated into a batch: the {name} of dataset[{indices[0]}] is "
                f"{_part_text(parts[0])}. It has to be a tensor{_OR_ELSE[name]}: convert it in the dataset, pictures "
                "with torchvision.transforms.ToTensor()."
            )
    seen = " and ".join(sample_text(sample) for sample in samples[:2])
    return f"The samples cannot be collated into a batch: {last_line(error)}. Found {seen}. {_WANTED}"


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
    return _part_text(sample)


def _part_text(part: Any) -> str:
    if isinstance(part, torch.Tensor):
        return f"{str(part.dtype).removeprefix('torch.')} tensor {tuple(part.shape)}"
    shape = getattr(part, "shape", None)
    if shape is not None:
        return f"{type(part).__name__} {tuple(shape)}"
    text = re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(part))
    return (text if text.startswith("<") else f"{type(part).__name__} {text}")[:60]
