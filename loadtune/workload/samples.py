"""Samples out of a dataset: fetched one by one, collated, and every way they can be unusable said in words."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate

from loadtune.errors import WorkloadError
from loadtune.workload.tasks import Batch
from loadtune.workload.user_code import last_line, sample_index, user_traceback

_WANTED = "A sample has to be (input tensor, class index), or (input tensor, tensor of class indices)."


def fetch_samples(dataset: Dataset[Any], indices: Sequence[int]) -> list[Any]:
    """The samples at these indices. Raises WorkloadError with the index and the user's traceback."""
    samples = []
    for index in indices:
        try:
            samples.append(dataset[index])
        except Exception as error:
            at = sample_index(error)
            raise WorkloadError(
                f"dataset[{index if at is None else at}] raised {last_line(error)}. Every index from 0 to "
                "len(dataset) - 1 has to give a sample.",
                user_traceback(error),
            ) from error
    return samples


def collate_samples(samples: Sequence[Any], *, any_target: bool = False) -> Batch:
    """A batch (inputs, targets). Raises WorkloadError where the samples do not make one.

    Targets are class indices, of any shape, as int64; with ``any_target`` whatever tensors they are.
    """
    for sample in samples:
        if not isinstance(sample, (tuple, list)) or len(sample) != 2:
            raise WorkloadError(f"a sample of the dataset is {sample_text(sample)}. {_WANTED}")
    try:
        inputs, targets = default_collate(list(samples))
    except Exception as error:
        seen = " and ".join(sample_text(sample) for sample in samples[:2])
        raise WorkloadError(
            f"samples do not collate into a batch: {last_line(error)}. Found {seen}. {_collate_advice(samples)}",
            user_traceback(error),
        ) from error
    if not isinstance(inputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        raise WorkloadError(f"a sample of the dataset is {sample_text(samples[0])}. {_WANTED}")
    if any_target:
        return inputs, targets
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise WorkloadError(
            f"the target of a sample is {_part_text(samples[0][1])}; it has to be a class index: one whole number, or "
            "a tensor of them where the model answers for each position. Other targets need a loss of your own, which "
            "loadtune.find_batch_size takes."
        )
    return inputs, targets.long()


def _collate_advice(samples: Sequence[Any]) -> str:
    if all(hasattr(sample[0], "shape") for sample in samples):
        return "All inputs need one shape: crop or resize them in the dataset."
    return "Inputs have to be tensors: convert them in the dataset, pictures with torchvision.transforms.ToTensor()."


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
