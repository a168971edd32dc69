"""Samples out of a dataset: fetched one by one, collated, and every way they can be unusable said in words."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import default_collate

from loadtune.errors import WorkloadError
from loadtune.workload.batches import Batch, Places, check_dim, places_of, places_of_ready, structure_text
from loadtune.workload.user_code import cause, last_line, user_traceback

if TYPE_CHECKING:
    from loadtune.workload.build import Workload

# Batches of so many samples are compared to find where samples lie in a batch.
_FEWER, _MORE = 2, 3
_WANTED = (
    "A sample has to be a pair (input, target): the input is a tensor, the target a class index or a tensor of class "
    "indices. Return such a pair from __getitem__; or give a function `fn(model, batch) -> scalar` that trains on "
    "other samples: --loss FILE.py:fn."
)


def reads_at_once(dataset: Any) -> bool:
    """Whether a DataLoader asks the dataset for all samples of a batch in one call."""
    return bool(getattr(dataset, "__getitems__", None))


def fetch_samples(dataset: Any, indices: Sequence[Any], *, one_by_one: bool = False) -> list[Any]:
    """The samples at these indices, as a DataLoader fetches them. Raises WorkloadError with the user's traceback.

    ``one_by_one``: as without automatic batching, where ``__getitems__`` is not called.
    """
    if reads_at_once(dataset) and not one_by_one:
        read: list[Any] = _called(dataset.__getitems__, list(indices), f"__getitems__({_listed(indices)})")
        return read
    return [_called(partial(getitem, dataset), index, f"[{index!r}]") for index in indices]


def _called(read: Callable[[Any], Any], wanted: Any, what: str) -> Any:
    try:
        return read(wanted)
    except Exception as error:
        raise WorkloadError(
            f"{cause(error) or f'dataset{what} raised {last_line(error)}'}. Every index that the sampler draws has to "
            "return a sample; by default these are 0 to len(dataset) - 1. Correct the dataset, or leave this sample "
            "out of it.",
            user_traceback(error),
        ) from error


def _listed(indices: Sequence[Any]) -> str:
    return f"[{', '.join(map(repr, indices[:3]))}{', …' if len(indices) > 3 else ''}]"


def stream_samples(dataset: Any) -> Iterator[Any]:
    """What one epoch of a stream yields. Raises WorkloadError where it raises, and where it yields nothing."""
    num_read = 0
    try:
        for sample in dataset:
            num_read += 1
            yield sample
    except Exception as error:
        raise WorkloadError(
            f"Reading the stream raised {last_line(error)}, after {num_read} samples. Correct it, and run again.",
            user_traceback(error),
        ) from error
    if not num_read:
        raise WorkloadError("The stream is empty: it ends without a sample. Check its path or filter.")


def make_batch(
    workload: "Workload", samples: Sequence[Any], indices: Sequence[Any], *, any_target: bool = False
) -> Batch:
    """Collate as the workload's loader does; `indices` are those of the samples. Raises WorkloadError."""
    return collate_samples(
        samples,
        indices,
        any_target=any_target or workload.own_loss,
        any_structure=workload.own_batches,
        collate=workload.loader.collate_fn,
    )


def ready_batch(workload: "Workload", drawn: Any, *, any_target: bool = False) -> Batch:
    """What the loader makes of a batch that the dataset itself has made (``batch_size=None``)."""
    collate = workload.loader.collate_fn
    batch = drawn if collate is None else _own_collated(collate, drawn, "a batch", drawn)
    _check_targets(batch, any_target=any_target or workload.own_loss, any_structure=workload.own_batches)
    return batch


def find_places(
    workload: "Workload", samples: Sequence[Any], indices: Sequence[Any], *, any_target: bool = False
) -> tuple[Batch, Places]:
    """A batch of two samples and where it keeps them, found beside one of three; of ready batches the first.

    Raises WorkloadError.
    """
    dim = workload.spec.batch_dim
    if workload.loader.batches_are_ready:
        batch = ready_batch(workload, samples[0], any_target=any_target)
        if dim is not None:
            check_dim(batch, dim)
        return batch, places_of_ready(batch, dim)
    chosen = [[at % len(samples) for at in range(num)] for num in (_FEWER, _MORE)]
    fewer, more = (
        make_batch(workload, [samples[at] for at in each], [indices[at] for at in each], any_target=any_target)
        for each in chosen
    )
    if dim is None:
        return fewer, places_of(fewer, more, _FEWER, _MORE)
    check_dim(fewer, dim)
    found = places_of(fewer, more, _FEWER, _MORE, dim)
    return fewer, found if found.count else places_of_ready(fewer, dim)


def small_batch(workload: "Workload") -> tuple[Batch, Places]:
    """A batch of the first two samples, and where it keeps them; of a loader that makes batches itself, its first.

    Targets of any kind are taken. Raises WorkloadError.
    """
    loader = workload.loader
    if loader.is_iterable:
        samples = list(itertools.islice(stream_samples(loader.dataset), _MORE))
        return find_places(workload, samples, range(len(samples)), any_target=True)
    indices = workload.epoch.indices[:1]
    samples = fetch_samples(loader.dataset, indices, one_by_one=loader.batches_are_ready)
    return find_places(workload, samples, indices, any_target=True)


def collate_samples(
    samples: Sequence[Any],
    indices: Sequence[Any],
    *,
    any_target: bool = False,
    any_structure: bool = False,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Batch:
    """A batch. Raises WorkloadError where the samples do not make one; `indices` are theirs.

    Of pairs (input, target) the targets are class indices, of any shape; with ``any_target`` whatever they are.
    Mappings are taken as they are, and with ``any_structure`` everything. ``collate``: the user's own, which may make
    any batch of any samples.
    """
    if collate is not None:
        batch = _own_collated(collate, list(samples), f"{len(samples)} samples", samples[0])
        _check_targets(batch, any_target=any_target, any_structure=any_structure)
        return batch
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
    _check_targets(batch, any_target=any_target, any_structure=any_structure, example=_part_text(samples[0][1]))
    return inputs, targets.long()


def _own_collated(collate: Callable[[Any], Any], given: Any, what: str, example: Any) -> Batch:
    try:
        return collate(given)
    except Exception as error:
        raise WorkloadError(
            f"The collate function raised {last_line(error)}, given {what} like {sample_text(example)}.",
            user_traceback(error),
        ) from error


def _check_targets(batch: Batch, *, any_target: bool, any_structure: bool, example: str | None = None) -> None:
    """Raises WorkloadError for targets that cross entropy, the default loss, would take for other classes.

    ``example``: the target of one sample, in words.
    """
    pair = batch if isinstance(batch, (tuple, list)) and len(batch) == 2 else (None, None)
    targets = pair[1]
    if any_target or any_structure or not isinstance(targets, torch.Tensor):
        return
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        found = f"The target of a sample is {example}" if example else f"A batch has targets {_part_text(targets)}"
        raise WorkloadError(
            f"{found}. With cross entropy, the default loss, a target has to be a class index: an integer, or a "
            "tensor of integers where the model predicts a class for each position. For other targets give a loss "
            "function: --loss FILE.py:fn."
        )


def _not_collated(samples: Sequence[Any], indices: Sequence[int], error: Exception) -> str:
    """Which part of the samples keeps them from being stacked, where, and what to do."""
    cannot = "The samples cannot be collated into a batch"
    is_pairs = all(isinstance(sample, (tuple, list)) and len(sample) == 2 for sample in samples)
    for position, name in enumerate(("input", "target") if is_pairs else ()):
        first, *others = (sample[position] for sample in samples)
        found = f"dataset[{indices[0]}] has {_part_text(first)}"
        for index, other in zip(indices[1:], others, strict=True):
            if _kind(other) != _kind(first):
                return (
                    f"{cannot}, because the {name} differs from sample to sample: {found}, dataset[{index}] has "
                    f"{_part_text(other)}. PyTorch's default collate function needs every {name} to have the same type "
                    "and shape: crop, resize or pad them in the dataset, or give your own with --collate or --loader."
                )
        if not (hasattr(first, "shape") or isinstance(first, (int, float, list, tuple, dict))):
            return (
                f"{cannot}: the {name} of dataset[{indices[0]}] is {_part_text(first)}. It has to be a tensor or a "
                "number: convert it in the dataset, pictures with torchvision.transforms.ToTensor()."
            )
    seen = " and ".join(sample_text(sample) for sample in samples[:2])
    return f"{cannot}: {last_line(error)}. Found {seen}. Give your own collate function with --collate or --loader."


def _kind(part: Any) -> Any:
    """What default_collate needs to be the same in all samples. An integer and a float make a batch together."""
    shape = getattr(part, "shape", None)
    if shape is not None:
        return tuple(shape)
    return (type(part), len(part)) if isinstance(part, (list, tuple, dict)) else isinstance(part, (int, float))


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
