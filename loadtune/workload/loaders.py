"""A user's `DataLoader`, taken apart: what it loads and draws stays, its settings change. Samples of its dataset and
batches of them: fetched, collated, and what makes them unusable said in words."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
    default_convert,
)

from loadtune.errors import WorkloadError
from loadtune.records.config import LoaderConfig
from loadtune.units import counted
from loadtune.workload.batches import Batch, Places, map_tensors, places_of, places_of_ready, structure_text
from loadtune.workload.user_code import call_named, cause, last_line, reported, user_traceback

_TAKEN = ("dataset", "collate_fn", "worker_init_fn", "timeout", "generator")
_GIVEN = ("sampler", "batch_sampler", "drop_last", "collate_fn", "worker_init_fn", "generator")
_PLAIN = (DataLoader.__module__, "loadtune.inflight.loader")  # modules of the DataLoaders that are nothing else
_USUAL = LoaderConfig(batch_size=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderParts:
    """What a `DataLoader` was made of, but for the settings that are tuned. Its workers and iterator are not in it."""

    dataset: Any
    sampler: Any = None
    """None: an iterable dataset, or a `batch_sampler` of the user's own."""
    batch_sampler: Any = None
    """One of the user's own, which makes batches as it likes. None: PyTorch's."""
    collate_fn: Callable[[list[Any]], Any] | None = None
    drop_last: bool = False
    worker_init_fn: Callable[[int], None] | None = None
    timeout: float = 0.0
    multiprocessing_context: str | None = None
    """Name of the start method."""
    generator: Any = None
    batch_size: int | None = None
    """None: of a `batch_sampler`, or batches that the dataset itself makes (``batch_size=None``)."""
    own: LoaderConfig = _USUAL
    """The settings that are tuned, but for `batch_size`."""
    loader_class: str | None = None
    """Name of a subclass of `DataLoader`, of which nothing else is kept. None: it was a `DataLoader` itself."""
    batched_fetch: bool = False
    """Whether a batch is fetched with one indexing call, ``dataset[[4, 1, 7]]``, which returns it collated."""

    @classmethod
    def shuffled(cls, dataset: Any, collate_fn: Callable[[list[Any]], Any] | None = None) -> "LoaderParts":
        """Of a dataset alone, which is read in random order."""
        sampler = None if isinstance(dataset, IterableDataset) else RandomSampler(dataset)
        return cls(dataset=dataset, sampler=sampler, collate_fn=collate_fn, batch_size=1)

    @classmethod
    def of(cls, loader: "DataLoader[Any]") -> "LoaderParts":
        """The parts of this loader, which stays as it is."""
        batches: Any = loader.batch_sampler if loader.batch_size is None else None
        drawn_by: Any = loader
        if type(batches) is BatchSampler:  # with a size of its own, like PyTorch's
            batches, drawn_by = None, batches
        elif _is_share(batches):
            batches, drawn_by = None, _Share(batches)
        is_stream = isinstance(loader.dataset, IterableDataset)
        context = loader.multiprocessing_context
        own = LoaderConfig(
            batch_size=1,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            prefetch_factor=loader.prefetch_factor or 2,
            persistent_workers=loader.persistent_workers or loader.num_workers == 0,  # without meaning at 0
            in_order=loader.in_order,
        )
        return cls(
            **{name: getattr(loader, name) for name in _TAKEN},
            sampler=None if is_stream or batches is not None else drawn_by.sampler,
            batch_sampler=batches,
            drop_last=drawn_by.drop_last,
            multiprocessing_context=None if context is None else context.get_start_method(),
            batch_size=drawn_by.batch_size,
            own=own,
            loader_class=None if type(loader).__module__ in _PLAIN else type(loader).__name__,
        )

    @property
    def is_iterable(self) -> bool:
        return isinstance(self.dataset, IterableDataset)

    @property
    def batch_size_is_free(self) -> bool:
        """Whether another batch size can be chosen: samples are put together by PyTorch."""
        return self.batch_size is not None

    @property
    def batches_are_ready(self) -> bool:
        """Whether the dataset itself makes the batches (``batch_size=None``)."""
        return self.batch_size is None and self.batch_sampler is None

    @property
    def reads_at_once(self) -> bool:
        """Whether a DataLoader asks the dataset for all samples of a batch in one call."""
        return bool(getattr(self.dataset, "__getitems__", None)) and not self.batches_are_ready

    def settings(self, batch_size: int) -> LoaderConfig:
        """The user's own; ``batch_size``: what its batches have where it names no size."""
        return replace(self.own, batch_size=self.batch_size or batch_size)

    def make(self, config: LoaderConfig, **others: Any) -> "DataLoader[Any]":
        """A new loader of the same samples with these settings. ``others``: arguments in place of the loader's own."""
        kwargs = config.kwargs() | {name: getattr(self, name) for name in _GIVEN}
        if config.num_workers > 0:
            kwargs |= {"multiprocessing_context": self.multiprocessing_context, "timeout": self.timeout}
        if not self.batch_size_is_free:
            kwargs["batch_size"] = None if self.batches_are_ready else 1  # 1: as where it is left out
        kwargs |= others
        if self.batched_fetch:
            batches = BatchSampler(kwargs["sampler"], config.batch_size, kwargs.pop("drop_last"))
            kwargs |= {"sampler": batches, "batch_size": None}
        return DataLoader(self.dataset, **kwargs)


def _is_share(batches: Any) -> bool:
    """Whether it is Accelerate's, which gives each rank whole batches of a BatchSampler."""
    is_accelerates = type(batches).__module__ == "accelerate.data_loader"
    whole = is_accelerates and not getattr(batches, "split_batches", True)
    return whole and type(getattr(batches, "batch_sampler", None)) is BatchSampler


class _Share:
    """Batches of one rank, out of those that PyTorch's BatchSampler makes, as samples: other batches can be made of
    them."""

    def __init__(self, batches: Any) -> None:
        self._batches, self.sampler, self.drop_last = batches, self, batches.drop_last
        self.batch_size: int = batches.batch_sampler.batch_size

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._batches)

    def __len__(self) -> int:
        return len(self._batches) * self.batch_size


def named_collate(function: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """A collate function whose errors are reported as its own, and not as those of the last sample. What it calls is
    its ``__wrapped__``: the steps of loading are named by that."""
    own = function or default_collate
    return update_wrapper(partial(collate, own), own, (), ())


def collate(function: Callable[[Any], Any], given: Any) -> Any:
    size = f", for a batch of {counted(len(given), 'sample')}" if isinstance(given, list) else ""
    must = "It has to accept every batch size; --max-batch-size limits them"
    return call_named(f"The collate function raised {{}}{size}. {must}", function, given)


class Endless:
    """What a sampler draws, then again, without end. Raises ValueError where it draws nothing."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            drawn = False
            for each in self._sampler:
                drawn = True
                yield each
            if not drawn:
                raise ValueError("The sampler draws no sample.")


_MOST_DRAWN = 1 << 16  # indices that a sampler is asked for, to know some of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Of the user's sampler or batch sampler, or of a stream."""

    num_draws: int | None
    """Samples; batches where a batch sampler of the user's own or the dataset makes them. None: not told."""
    indices: Sequence[Any] = ()
    """Some of those that are drawn, from all over the epoch; keys and tuples too. Empty: a stream."""
    batches: Sequence[Sequence[Any]] = ()
    """Some of the batches of indices that a batch sampler of the user's own draws."""


def epoch_of(parts: LoaderParts, seed: int) -> Epoch:
    """Raises WorkloadError where the sampler raises or draws nothing."""
    if parts.is_iterable:
        return Epoch(num_draws=_length(parts.dataset))
    sampler = parts.sampler if parts.batch_sampler is None else parts.batch_sampler
    if type(sampler) in (RandomSampler, SequentialSampler) and (length := _length(sampler.data_source)):
        return Epoch(num_draws=len(sampler), indices=range(length))  # all are known, and need not be drawn
    by_batch = parts.batch_sampler is not None
    random.seed(seed)  # the same draws in every run: a resumed one compares the length of the epoch
    np.random.seed(seed % (1 << 32))
    torch.default_generator.manual_seed(seed)  # and no GPU's
    drawn: list[Any] = []
    indices: list[Any] = []
    with reported("The sampler of the loader raised {}. Correct it, and run again."):
        for each in sampler:
            if max(len(indices), len(drawn)) >= _MOST_DRAWN:
                num_draws = _length(sampler)
                break
            drawn.append(list(each) if by_batch else each)
            indices += drawn[-1] if by_batch else [each]
        else:
            num_draws = len(drawn)
    if not indices:
        kind, wanted = ("batch sampler", "lists of indices") if by_batch else ("sampler", "the indices of samples")
        raise WorkloadError(f"The loader's {kind} returned no index. It has to yield {wanted}.")
    return Epoch(num_draws=num_draws, indices=indices, batches=drawn if by_batch else ())


def _length(sized: Any) -> int | None:
    """None: it has none, or does not tell."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


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
    """What the loader makes of these samples, or of what its dataset made. Raises WorkloadError.
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


def find_places(loader: LoaderParts, samples: Sequence[Any]) -> tuple[Batch, Places]:
    """A batch of two samples and where it keeps them, found beside one of three; of ready batches the first."""
    if loader.batches_are_ready:
        batch = make_batch(loader, samples[0])
        return batch, places_of_ready(batch)
    fewer, more = (make_batch(loader, [samples[at % len(samples)] for at in range(num)]) for num in (2, 3))
    return fewer, places_of(fewer, more, 2, 3)
