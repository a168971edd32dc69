"""Samples out of a dataset and batches of them: fetched, collated, and what makes them unusable said in words."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Subset, default_collate, default_convert

from loadtune.errors import WorkloadError
from loadtune.workload.batches import Batch, Places, is_pair, places_of, places_of_ready, structure_text
from loadtune.workload.user_code import cause, last_line, reported, user_traceback

if TYPE_CHECKING:
    from loadtune.workload.build import Workload

# Batches of so many samples are compared to find where samples lie in a batch.
_FEWER, _MORE = 2, 3


def reads_at_once(dataset: Any) -> bool:
    """Whether a DataLoader asks the dataset for all samples of a batch in one call."""
    return bool(getattr(dataset, "__getitems__", None))


def fetch_samples(dataset: Any, indices: Sequence[Any], *, one_by_one: bool = False) -> list[Any]:
    """The samples at these indices, as a DataLoader fetches them. Raises WorkloadError with the user's traceback.

    ``one_by_one``: as without automatic batching, where ``__getitems__`` is not called.
    """
    read: list[Any] = []
    what = ""
    try:
        if reads_at_once(dataset) and not one_by_one:
            what = f".__getitems__({list(indices[:3])}…)"
            return dataset.__getitems__(list(indices))  # type: ignore[no-any-return]
        for index in indices:
            what = f"[{index!r}]"
            read.append(dataset[index])
    except Exception as error:
        raise WorkloadError(
            f"{cause(error) or f'dataset{what} raised {last_line(error)}'}. Every index that the sampler draws has to "
            "return a sample; by default these are 0 to len(dataset) - 1. Correct the dataset, or leave this sample "
            "out of it.",
            user_traceback(error),
        ) from error
    return read


def owner_of(dataset: Any) -> Any:
    """The dataset that loads samples: behind any number of `Subset`."""
    return owner_of(dataset.dataset) if isinstance(dataset, Subset) else dataset


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


def collate_samples(samples: Sequence[Any], collate: Callable[[list[Any]], Any] | None = None) -> Batch:
    """A batch, as a DataLoader with this collate function makes it. Raises WorkloadError."""
    if collate not in (None, default_collate):
        return _collated(collate, list(samples), f"{len(samples)} samples like {structure_text(samples[0])}")
    seen = " and ".join(structure_text(sample) for sample in samples[:2])
    with reported(
        f"The samples cannot be collated into a batch: {{}}. Found {seen}. PyTorch's default collate "
        "function needs tensors or numbers, of the same type and shape in every sample: convert pictures with "
        "torchvision.transforms.ToTensor(), and crop, resize or pad them in the dataset. Or give your own collate "
        "function with --collate or --loader."
    ):
        return default_collate(list(samples))


def _collated(collate: Any, given: Any, what: str) -> Batch:
    with reported(f"The collate function raised {{}}, given {what}."):
        return collate(given)


def batch_of(workload: "Workload", indices: Sequence[Any]) -> Batch:
    """A batch of the samples at these indices, as a worker makes it."""
    loader = workload.loader
    if loader.batched_fetch:
        return default_convert(loader.dataset[indices])  # type: ignore[no-untyped-call]
    return collate_samples(fetch_samples(loader.dataset, indices), loader.collate_fn)


def make_batch(workload: "Workload", samples: Any, *, any_target: bool = False) -> Batch:
    """What the workload's loader makes of these samples, or of what its dataset made (``batch_size=None``).

    Raises WorkloadError where they do not make a batch, and for targets that cross entropy, the default loss, would
    take for other classes, unless ``any_target`` will do.
    """
    loader = workload.loader
    if not loader.batches_are_ready:
        batch = collate_samples(samples, loader.collate_fn)
    elif loader.collate_fn is None:
        batch = samples
    else:
        batch = _collated(loader.collate_fn, samples, f"a batch like {structure_text(samples)}")
    targets = batch[1] if is_pair(batch) else None
    if any_target or workload.own_loss or workload.own_batches or not isinstance(targets, torch.Tensor):
        return batch
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        found = structure_text(samples if loader.batches_are_ready else samples[0])
        raise WorkloadError(
            f"The dataset returns {found}. With cross entropy, the default loss, a target has to be a class index: an "
            "integer, or a tensor of integers where the model predicts a class for each position. For other targets "
            "give a loss function: --loss FILE.py:fn."
        )
    return batch


def find_places(workload: "Workload", samples: Sequence[Any], *, any_target: bool = False) -> tuple[Batch, Places]:
    """A batch of two samples and where it keeps them, found beside one of three; of ready batches the first.

    Raises WorkloadError.
    """
    if workload.loader.batches_are_ready:
        batch = make_batch(workload, samples[0], any_target=any_target)
        return batch, places_of_ready(batch)
    fewer, more = (
        make_batch(workload, [samples[at % len(samples)] for at in range(num)], any_target=any_target)
        for num in (_FEWER, _MORE)
    )
    return fewer, places_of(fewer, more, _FEWER, _MORE)


def small_batch(workload: "Workload") -> tuple[Batch, Places]:
    """A batch of the first two samples, and where it keeps them; of a loader that makes batches itself, its first.

    Targets of any kind are taken. Raises WorkloadError.
    """
    loader = workload.loader
    if loader.is_iterable:
        samples = list(itertools.islice(stream_samples(loader.dataset), _MORE))
    else:
        samples = fetch_samples(loader.dataset, workload.epoch.indices[:1], one_by_one=loader.batches_are_ready)
    return find_places(workload, samples, any_target=True)
