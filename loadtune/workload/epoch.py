"""What one epoch of a loader draws: how many samples, and which indices it asks the dataset for. Needs torch."""

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler, SequentialSampler

from loadtune.errors import WorkloadError
from loadtune.workload.loaders import LoaderParts
from loadtune.workload.user_code import last_line, user_traceback

_MOST_DRAWN = 1 << 16
"""Indices that a sampler is asked for, to know some of them."""


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
    drawn, has_ended = _draw(sampler, seed, by_batch=parts.batch_sampler is not None)
    num_draws = len(drawn) if has_ended else _length(sampler)
    if parts.batch_sampler is None:
        return Epoch(num_draws=num_draws, indices=drawn)
    return Epoch(num_draws=num_draws, indices=[index for batch in drawn for index in batch], batches=drawn)


def _draw(sampler: Any, seed: int, *, by_batch: bool) -> tuple[list[Any], bool]:
    """(The first that it draws, whether these are all)."""
    drawn: list[Any] = []
    num_indices = 0
    try:
        with _seeded(seed):
            for each in sampler:
                if max(num_indices, len(drawn)) >= _MOST_DRAWN:
                    return drawn, False
                drawn.append(list(each) if by_batch else each)
                num_indices += len(drawn[-1]) if by_batch else 1
    except Exception as error:
        raise WorkloadError(
            f"The sampler of the loader raised {last_line(error)}. Correct it, and run again.", user_traceback(error)
        ) from error
    if not num_indices:
        if by_batch:
            raise WorkloadError("The loader's batch sampler returned no batch. It has to yield lists of indices.")
        raise WorkloadError("The loader's sampler returned no index. It has to yield the indices of samples.")
    return drawn, True


def _length(sized: Any) -> int | None:
    """None: it has none, or does not tell."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The same draws in every run: a resumed one compares the length of the epoch. Restores all states."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        torch.default_generator.manual_seed(seed)  # and no GPU's
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
