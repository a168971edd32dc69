"""The private parts of torch's DataLoader that this package uses. No other module of it names one that is not here.

torch promises none of them. `missing` says what an installed torch lacks; a test runs it, and everything else here, on
the oldest and the newest torch that loadtune supports (2.11 and 2.14 when this was written).
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.data._utils as _utils
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher
from torch.utils.data._utils.worker import _ResumeIteration
from torch.utils.data.dataloader import (
    DataLoader,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

MultiProcessIterator: Any = _MultiProcessingDataLoaderIter
SingleProcessIterator: Any = _SingleProcessDataLoaderIter
ResumeIteration: Any = _ResumeIteration
MAP_STYLE = _DatasetKind.Map
FETCHERS: tuple[Any, ...] = (_MapDatasetFetcher, _IterableDatasetFetcher)
"""Classes whose `fetch(index)` makes a batch, in a worker as in the training process."""

LOADER_ATTRIBUTES = (
    "dataset",
    "collate_fn",
    "drop_last",
    "generator",
    "multiprocessing_context",
    "pin_memory_device",
    "timeout",
    "worker_init_fn",
    "_auto_collation",
    "_dataset_kind",
    "_IterableDataset_len_called",
)
"""What torch's iterators read of a loader, beside the settings that can switch and `_index_sampler`."""

OVERRIDDEN = ("_get_data", "_next_index", "_process_data", "_shutdown_workers", "_try_get_data")
"""Methods of `_MultiProcessingDataLoaderIter` that `Pool` extends."""

SWITCHED_ATTRIBUTES = ("num_workers", "prefetch_factor", "pin_memory", "in_order", "persistent_workers")
SAMPLER_ATTRIBUTES = ("batch_size", "sampler", "batch_sampler", "_index_sampler")


class _LoaderView:
    """A DataLoader as it is at this moment. It does not refer to the loader, which refers to its iterator."""

    def __init__(self, loader: Any, index_sampler: Any, **changes: Any) -> None:
        """``index_sampler``: gives the index batches, in place of the loader's own. ``changes``: attributes in place of
        the loader's."""
        for name in (*LOADER_ATTRIBUTES, *SWITCHED_ATTRIBUTES, *SAMPLER_ATTRIBUTES):
            setattr(self, name, getattr(loader, name))
        self._index_sampler = index_sampler
        if self._auto_collation:
            self.batch_sampler = index_sampler
        vars(self).update(changes)

    _auto_collation: bool

    def __len__(self) -> int:
        return len(self._index_sampler)


LoaderView: Any = _LoaderView

USED = ("_reset", "_try_put_index")
"""Methods of it that `Pool` calls."""

ITERATOR_ATTRIBUTES = (
    "_data_queue",
    "_index_queues",
    "_in_order",
    "_num_workers",
    "_prefetch_factor",
    "_profile_name",
    "_send_idx",
    "_shared_seed",
    "_shutdown",
    "_task_info",
    "_tasks_outstanding",
    "_worker_pids_set",
    "_worker_result_queue",
    "_workers",
)
"""Attributes of its instances. `_base_seed` is replaced by a property, and `_dataset_fetcher` of a
`_SingleProcessDataLoaderIter` is looked at."""

_PATIENCE_S = 0.05
"""For a worker that reads samples which nobody wants."""

_signals: Any = _utils.signal_handling
set_worker_pids = _signals._set_worker_pids
remove_worker_pids = _signals._remove_worker_pids
error_if_any_worker_fails = _signals._error_if_any_worker_fails


@contextlib.contextmanager
def waiting_for_workers(seconds: float) -> Iterator[None]:
    """`_shutdown_workers` joins each worker for this long before it terminates it."""
    usual, _utils.MP_STATUS_CHECK_INTERVAL = _utils.MP_STATUS_CHECK_INTERVAL, seconds
    try:
        yield
    finally:
        _utils.MP_STATUS_CHECK_INTERVAL = usual


def missing(loader: DataLoader[Any], iterator: Any) -> list[str]:
    """Names that this torch lacks, given a loader with workers and an iterator over it. Empty: all are there."""
    wanted = [(loader, name) for name in (*LOADER_ATTRIBUTES, "_index_sampler")]
    wanted += [(iterator, name) for name in (*OVERRIDDEN, *USED, *ITERATOR_ATTRIBUTES, "_base_seed")]
    return [f"{type(owner).__name__}.{name}" for owner, name in wanted if not hasattr(owner, name)]


class _AskedInfo:
    """Stands for `WorkerInfo`, of worker 0 of 2, and notes that it was asked which of how many it is.

    A `worker_init_fn` shares a stream out by its dataset, which is asked for here.
    """

    def __init__(self, info: Any, asked: torch.Tensor) -> None:
        self._info, self._asked = info, asked

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("id", "num_workers", "dataset"):
            self._asked.fill_(1)
        return {"id": 0, "num_workers": 2}[name] if name in ("id", "num_workers") else getattr(self._info, name)


@dataclass(frozen=True, slots=True)
class _Asking:
    """A ``worker_init_fn`` that runs the caller's own, with `_AskedInfo` from then on."""

    asked: torch.Tensor
    worker_init_fn: Any

    def __call__(self, worker_id: int) -> None:
        worker: Any = _utils.worker
        worker._worker_info = _AskedInfo(worker._worker_info, self.asked)
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


def _nothing(sample: Any) -> None:
    """Collates a sample into what is quickly sent."""


def reads_worker_info(dataset: Any, worker_init_fn: Any, multiprocessing_context: str | None = None) -> bool:
    """Whether a stream asks by which worker it is read, up to its first sample. Only then can it be shared out.

    A worker reads it, so that nothing which the dataset or the function change is changed here.
    """
    asked = torch.zeros(1)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=None,
        num_workers=1,
        prefetch_factor=1,
        collate_fn=_nothing,
        worker_init_fn=_Asking(asked, worker_init_fn),
        multiprocessing_context=multiprocessing_context,
    )
    # What is raised is raised again when it is read in earnest; without a /dev/shm nobody can have workers.
    with contextlib.suppress(Exception), waiting_for_workers(_PATIENCE_S):
        asked.share_memory_()  # type: ignore[no-untyped-call]
        batches: Any = iter(loader)
        try:
            next(batches, None)
        finally:
            batches._shutdown_workers()
    return bool(asked[0])
