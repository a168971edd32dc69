"""Batches of the workload without end, from a loader of one configuration."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import reduction
from pickle import PicklingError
from typing import Any

import torch
from torch.utils.data import RandomSampler

from loadtune.records.config import LoaderConfig
from loadtune.records.measurement import WorkerShare
from loadtune.stream import torch_private
from loadtune.stream.sample_table import SampleTable
from loadtune.stream.switching import SwitchingIterator, SwitchingLoader
from loadtune.stream.torch_private import Depth
from loadtune.stream.worker_rows import WorkerTimes, num_made
from loadtune.units import counted
from loadtune.workload import Batch, Endless, LoaderParts, NamedCollate, Workload, note_cause, note_index

# From a connection that a dying worker closed until its death can be seen.
_DEATH_S = 5.0
# Patience with workers that are in the middle of a batch nobody wants, all of them together.
_PATIENCE_S = 0.05


class NoBatchError(Exception):
    """An epoch has no full batch: what to do about it."""


def _drawn(workload: Workload, seed: int) -> dict[str, Any]:
    """What is drawn, in which order, as arguments of a DataLoader: the user's own order without end.

    The last batches of an epoch leave the workers nothing to make. The queue runs down, and the next epoch's first
    batches fill it again. A window that sees the one without the other is wrong: of a dataset of 20 batches, 52
    samples/s where 867 trained. What an epoch's end costs is timed apart.
    """
    parts: LoaderParts = workload.loader
    if parts.is_iterable:
        return {}
    if parts.batch_sampler is not None:
        return {"batch_sampler": Endless(parts.batch_sampler)}
    if type(parts.sampler) is RandomSampler and not parts.sampler.replacement:
        generator = torch.Generator().manual_seed(seed)
        return {"sampler": Endless(RandomSampler(range(len(workload.epoch.indices)), generator=generator))}
    return {"sampler": Endless(parts.sampler)}


class EndlessLoader:
    """Batches without end, and without the end of an epoch.

    Loaders of another `number` read in another order, as epochs do, because files that the last one has read come from
    memory.
    """

    def __init__(
        self, workload: Workload, config: LoaderConfig, *, number: int = 0, table: SampleTable | None = None
    ) -> None:
        """``table``: says which samples are being loaded, to whoever else can read it."""
        seed = workload.spec.seed + number
        parts = self._parts = workload.loader
        self.config = config
        given = _drawn(workload, seed)
        if parts.batch_size_is_free:
            given["drop_last"] = True
        if not (parts.batched_fetch or parts.batches_are_ready):
            given["collate_fn"] = NamedCollate(parts.collate_fn)
        loader = parts.make(config, **given, generator=torch.Generator().manual_seed(seed))
        self._loader = SwitchingLoader(loader, table=table, sample_error=note_index)
        self._iterator: SwitchingIterator | None = None
        self._waits_s: list[list[float]] = [[] for _ in range(config.num_workers)]
        """For each batch of each worker."""
        self._position = 0
        self._first_s: float | None = None

    def start(self) -> SwitchingIterator:
        """Start the workers, where they are not running."""
        if self._iterator is None:
            self._begun_s = time.monotonic()
            with _unpicklable_named(self._parts):
                self._iterator = iter(self._loader)
        return self._iterator

    def ready_s(self) -> float:
        """Seconds from the start of a loader of this configuration until all workers were ready. 0: there are none."""
        return max((times.ready_s - self._begun_s for times in self._clocks() if times.ready_s), default=0.0)

    def first_batch_s(self) -> float:
        """Seconds from there to its first batch, as far as they were seen: until all workers were ready, and until the
        first had made one. Later batches were begun meanwhile."""
        if not self._waits_s:
            return self._first_s or 0.0
        return self.ready_s() + min((times.first_s for times in self._clocks() if times.first_s), default=0.0)

    def next_batch(self) -> Batch:
        """The next batch; the first call starts the workers. Raises NoBatchError where an epoch has none."""
        batch = self._next(self.start())
        if batch is None:  # the epoch of the stream is over
            self._position = 0
            self._iterator = iter(self._loader)
            batch = self._next(self._iterator)
        if batch is None:
            raise NoBatchError(
                f"an epoch of the stream has no full batch of {self.config.batch_size} samples for "
                f"{counted(self.config.num_workers, 'worker')}: use a smaller batch or a longer stream, and check that "
                "it gives each worker its share of the samples"
            )
        if self._first_s is None:
            self._first_s = time.monotonic() - self._begun_s
        self._position += 1
        return batch

    def _next(self, batches: Iterator[Batch]) -> Batch | None:
        """None: there is no further one."""
        try:
            return next(batches, None)
        except (OSError, EOFError, RuntimeError) as error:
            closed = not isinstance(error, RuntimeError) or "ancdata" in str(error)  # what a closed socket gives
            is_workers = str(error).startswith("Caught ")  # as an exception out of a worker does
            if self._waits_s and closed and not is_workers:
                _raise_worker_end()
            raise

    def depth(self) -> Depth | None:
        """Where in the prefetch queue batches stand. None: there is no queue, or it does not tell."""
        return self._iterator.depth() if self._iterator is not None else None

    def num_ahead(self) -> float | None:
        """Batches made and not handed out, those in the making by how far they have come. None: there is no worker."""
        workers = self._clocks()
        if not workers or self._iterator is None:
            return None
        return num_made(workers, time.monotonic()) - self._iterator.num_delivered()

    def waited(self, seconds: float) -> None:
        """Book the wait for the batch that was just handed out with the worker that made it: they take turns."""
        if self._waits_s:
            self._waits_s[(self._position - 1) % len(self._waits_s)].append(seconds)

    def shares(self) -> tuple[WorkerShare, ...]:
        """What each worker did so far. Empty: there are none, or they have no clocks, as those of a stream."""
        return tuple(
            WorkerShare(
                num_made=int(times.num_timed),
                made_s=times.made_s,
                max_made_s=times.max_made_s,
                wait_s=sum(waits_s),
                max_wait_s=max(waits_s, default=0.0),
            )
            for waits_s, times in zip(self._waits_s, self._clocks(), strict=False)
        )

    def _clocks(self) -> list[WorkerTimes]:
        """Of the workers of this configuration. Empty: there are none, or they tell no times."""
        return [] if not self._waits_s or self._iterator is None else self._iterator.workers()

    def close(self) -> None:
        """End the workers."""
        # While the iterator is there: by itself it ends as patiently as torch.
        self._loader.close(patience_s=_PATIENCE_S)
        self._iterator = None


@contextmanager
def _unpicklable_named(parts: LoaderParts) -> Iterator[None]:
    """What starting workers raises names the part of the loader that cannot be pickled."""
    try:
        yield
    except (PicklingError, TypeError, AttributeError) as error:
        method = parts.multiprocessing_context or multiprocessing.get_start_method()
        for name in () if method == "fork" else ("collate_fn", "worker_init_fn", "dataset"):
            try:
                reduction.ForkingPickler.dumps(getattr(parts, name))
            except Exception:
                note_cause(
                    error,
                    f'The {name} of the loader cannot be pickled, which workers started with "{method}" need: {{}}. '
                    'Define it at the top level of a module, or use multiprocessing_context="fork"',
                )
                break
        raise


def _raise_worker_end() -> None:
    """Raise PyTorch's own error where a worker of any loader has died, or does so within a moment.

    Batches that a worker had sent and nobody has taken yet cannot be opened once it is dead. PyTorch then raises what
    the connection says (ConnectionResetError, FileNotFoundError) where it does not know of the death yet.
    """
    deadline = time.monotonic() + _DEATH_S
    while time.monotonic() < deadline:
        torch_private.error_if_any_worker_fails()
        time.sleep(0.01)
