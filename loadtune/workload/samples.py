"""Samples out of a dataset and batches of them: fetched, collated, and what makes them unusable said in words."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import Subset, default_collate, default_convert

from loadtune.errors import WorkloadError
from loadtune.workload.batches import Batch, Places, map_tensors, places_of, places_of_ready, structure_text
from loadtune.workload.build import Workload
from loadtune.workload.loaders import LoaderParts
from loadtune.workload.user_code import cause, last_line, reported, user_traceback

# Batches of so many samples are compared to find where samples lie in a batch.
_FEWER, _MORE = 2, 3


def fetch_samples(loader: LoaderParts, indices: Sequence[Any]) -> list[Any]:
    """The samples at these indices, as a DataLoader fetches them. Raises WorkloadError with the user's traceback."""
    dataset, read = loader.dataset, list[Any]()
    try:
        if loader.reads_at_once:
            return dataset.__getitems__(list(indices))  # type: ignore[no-any-return]
        for index in indices:
            read.append(dataset[index])
    except Exception as error:
        what = f".__getitems__({list(indices[:3])}…)" if loader.reads_at_once else f"[{indices[len(read)]!r}]"
        raise WorkloadError(
            f"{cause(error) or f'dataset{what} raised {last_line(error)}'}. Every index that the sampler draws has to "
            "return a sample; by default these are 0 to len(dataset) - 1. Correct the dataset, or leave this sample "
            "out of it.",
            user_traceback(error),
        ) from error
    return read


@contextmanager
def one_thread() -> Iterator[None]:
    """As DataLoader has it in each worker."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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


def make_batch(loader: LoaderParts, samples: Any, *, are_kept: bool = True) -> Batch:
    """What the workload's loader makes of these samples, or of what its dataset made. Raises WorkloadError.
    ``are_kept``: a collate function may change tensors (Ultralytics), so it gets copies where samples serve again."""
    ready = loader.batches_are_ready
    collate = loader.collate_fn or (default_convert if ready else default_collate)
    if collate is default_collate and not ready:
        seen = " and ".join(structure_text(sample) for sample in samples[:2])
        sentence = (
            f"The samples cannot be collated into a batch: {{}}. Found {seen}. PyTorch's default collate "
            "function needs tensors or numbers, of the same type and shape in every sample: convert pictures with "
            "torchvision.transforms.ToTensor(), and crop, resize or pad them in the dataset. Or give your own collate "
            "function with --collate or --loader."
        )
    else:
        many, sample = ("a batch", samples) if ready else (f"{len(samples)} samples", samples[0])
        sentence = f"The collate function raised {{}}, given {many} like {structure_text(sample)}."
    with reported(sentence):
        return collate(samples if ready else [map_tensors(each, torch.clone) if are_kept else each for each in samples])


def find_places(workload: Workload, samples: Sequence[Any]) -> tuple[Batch, Places]:
    """A batch of two samples and where it keeps them, found beside one of three; of ready batches the first."""
    if workload.loader.batches_are_ready:
        batch = make_batch(workload.loader, samples[0])
        return batch, places_of_ready(batch)
    fewer, more = (
        make_batch(workload.loader, [samples[at % len(samples)] for at in range(num)]) for num in (_FEWER, _MORE)
    )
    return fewer, places_of(fewer, more, _FEWER, _MORE)


def small_batch(workload: Workload) -> tuple[Batch, Places]:
    """As `find_places`, of the first samples. Raises WorkloadError."""
    loader = workload.loader
    if loader.is_iterable:
        samples = list(itertools.islice(stream_samples(loader.dataset), _MORE))
    else:
        samples = fetch_samples(loader, workload.epoch.indices[:1])
    return find_places(workload, samples)
