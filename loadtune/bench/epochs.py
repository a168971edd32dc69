"""Time from an epoch's last batch to the next one's first, with the workers kept and with workers started anew."""

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import Sampler

from loadtune.bench.endless_loader import EndlessLoader
from loadtune.bench.line import Line
from loadtune.records import EpochCost, LoaderConfig, TrialFailure
from loadtune.workload import Workload

# The median of three is no single outlier.
_MAX_BOUNDARIES = 3


class ShortEpoch(Sampler[Any]):
    """The first indices of a whole epoch's order, which the loader's own sampler draws: that is part of the cost.

    `RandomSampler` draws all of them first: `torch.randperm(n).tolist()` takes some 60 ms for a million samples.
    """

    def __init__(self, whole: Iterable[Any], num_samples: int) -> None:
        self._whole = whole
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._whole, self._num_samples)


def time_epochs(workload: Workload, config: LoaderConfig, seconds: float, line: Line) -> EpochCost | TrialFailure:
    """One boundary with the workers kept whatever it takes; further ones, and those of new workers, in `seconds`.

    An epoch has a batch for each worker: fewer, and some would still be starting when they are told to end, which a
    whole epoch's are not.
    """
    line.enter("epochs")
    if workload.loader.is_iterable or not workload.loader.batch_size_is_free:
        message = "Epoch start-up is not measured for streams and batch samplers."
        return TrialFailure(kind="unsupported", phase="epochs", message=message)
    until = time.monotonic() + seconds
    first_batch_s, kept_s = _boundaries(workload, config, until - seconds / 2, line, persistent=True)
    anew_s: tuple[float, ...] = ()
    if time.monotonic() + 2 * first_batch_s < until:  # a start, and a second one at the boundary
        _, anew_s = _boundaries(workload, config, until, line, persistent=False)
    return EpochCost(loader=config, kept_s=kept_s, anew_s=anew_s)


def _boundaries(
    workload: Workload, config: LoaderConfig, until: float, line: Line, *, persistent: bool
) -> tuple[float, tuple[float, ...]]:
    """(Seconds to the first batch, seconds of each boundary)."""
    length = workload.epoch.num_draws
    most = config.num_workers if length is None else length // config.batch_size
    num_batches = max(1, min(config.num_workers, most))
    sampler = ShortEpoch(workload.loader.sampler, num_batches * config.batch_size)
    kept = dataclasses.replace(config, persistent_workers=persistent)
    loader = EndlessLoader(workload, kept, sampler, table=line.samples)
    boundaries: list[float] = []
    try:
        first_batch_s = _next_batch_s(loader, line)
        while len(boundaries) < _MAX_BOUNDARIES and (not boundaries or time.monotonic() + max(boundaries) < until):
            for _ in range(num_batches - 1):
                _next_batch_s(loader, line)
            boundaries.append(_next_batch_s(loader, line))
    finally:
        loader.close()
    return first_batch_s, tuple(boundaries)


def _next_batch_s(loader: EndlessLoader, line: Line) -> float:
    started = time.monotonic()
    loader.next_batch()
    took = time.monotonic() - started
    line.pulse()
    return took
