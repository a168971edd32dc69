"""The private parts of torch's DataLoader and of multiprocessing that this package uses; no other module names one.

Nobody promises them. The tests run on the oldest and the newest torch that loadtune supports (2.6 and 2.14 now).
"""

import contextlib
import os
import signal
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from functools import cache, partial
from multiprocessing import connection, current_process, forkserver, resource_sharer
from typing import Any, NamedTuple

import torch
import torch.utils.data._utils as _utils
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher
from torch.utils.data._utils.worker import _ResumeIteration
from torch.utils.data.dataloader import (
    DataLoader,
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

MultiProcessIterator: Any = _MultiProcessingDataLoaderIter
SingleProcessIterator: Any = _SingleProcessDataLoaderIter
ResumeIteration: Any = _ResumeIteration
MAP_STYLE = _DatasetKind.Map
CHECK_S: float = _utils.MP_STATUS_CHECK_INTERVAL  # `_try_get_data` waits so long where the loader has no timeout
FETCHERS: tuple[Any, ...] = (_MapDatasetFetcher, _IterableDatasetFetcher)
"""Classes whose `fetch(index)` makes a batch, in a worker as in the training process."""
FEEDER = "QueueFeederThread"
"""Name of the thread of a queue: a worker's pickles its batches, copies tensors to shared memory and sends them."""


@cache
def as_torchs(kind: type, has_workers: bool) -> Any:
    """This class as one of torch's iterators: toolkits ask for these, to end their workers."""
    return type(kind.__name__, (kind, MultiProcessIterator if has_workers else SingleProcessIterator), {})


def dataset_of_worker() -> Any:
    """As this worker has it."""
    worker: Any = _utils.worker
    return worker._worker_info.dataset


def become_worker(num_workers: int, seed: int, dataset: Any) -> None:
    """What loads in this process sees the first of so many workers from now on."""
    worker: Any = _utils.worker
    worker._worker_info = worker.WorkerInfo(id=0, num_workers=num_workers, seed=seed, dataset=dataset)


def draws_as_torch() -> bool:
    """Whether torch's iterators draw indices in torch's own way. Ours do not call what a toolkit puts in its place."""
    return _BaseDataLoaderIter._next_index.__module__ == _BaseDataLoaderIter.__module__


class LoaderView:
    """A DataLoader as torch's iterators and samplers read it: what torch reads is as it is at this moment.

    All else is read from the loader and set there: toolkits that extend torch's iterators keep their marks in it. The
    view does not keep the loader alive, which refers to its iterator.
    """

    _NAMES = (
        "dataset", "collate_fn", "drop_last", "generator", "multiprocessing_context", "pin_memory_device", "timeout",
        "worker_init_fn", "batch_size", "sampler", "batch_sampler",
        "num_workers", "prefetch_factor", "pin_memory", "in_order", "persistent_workers",
        "_auto_collation", "_dataset_kind", "_IterableDataset_len_called",
    )  # fmt: skip

    def __init__(self, loader: Any, index_sampler: Any, **changes: Any) -> None:
        """``index_sampler``: index batches, not the loader's own. ``changes``: attributes in place of the loader's."""
        kept = {name: getattr(loader, name) for name in self._NAMES} | {"_index_sampler": index_sampler}
        if loader._auto_collation:
            kept["batch_sampler"] = index_sampler
        source = vars(loader)["_source"] if isinstance(loader, LoaderView) else weakref.ref(loader)
        vars(self).update(kept | changes, _source=source)

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_source"](), name)

    def __setattr__(self, name: str, value: Any) -> None:
        loader = None if name in vars(self) else vars(self)["_source"]()
        if loader is None:
            vars(self)[name] = value
        else:
            setattr(loader, name, value)


def view(loader: Any, num_workers: int, index_sampler: Any = (), **changes: Any) -> Any:
    """The loader as torch's iterators read it, with so many workers. Its batches come in order where the caller's do,
    as those of one worker. ``index_sampler``: in place of the caller's, which only the stream draws from."""
    return LoaderView(
        loader,
        index_sampler,
        **{
            "generator": torch.Generator(),  # torch draws a base seed from it, which `_Fed._base_seed` ignores
            "num_workers": num_workers,
            "prefetch_factor": loader.prefetch_factor or 2,
            "in_order": loader.in_order or loader.num_workers < 2,
            "persistent_workers": loader.persistent_workers and num_workers > 0,
            **changes,
            **({} if num_workers else {"timeout": 0, "multiprocessing_context": None}),
        },
    )


def start_method(context: Any) -> str:
    """``fork``, ``forkserver`` or ``spawn``. ``context``: of a loader. None: the default."""
    return str((context or torch.multiprocessing).get_start_method())


_USUAL, _LARGE = ["__main__"], ("numpy", "torch", "torchvision", "PIL.Image")


def preload_forkserver(context: Any) -> None:
    """Have the forkserver import what this process has of large libraries: each worker would import torch again, for
    3 s. Not where it runs already, or where the user has chosen what it imports."""
    server: Any = forkserver._forkserver
    if start_method(context) == "forkserver" and server._forkserver_pid is None and server._preload_modules == _USUAL:
        large = (name for name in _LARGE if name in sys.modules)
        server.set_forkserver_preload([*_USUAL, *large, "loadtune.stream.preloaded"])


_PATIENCE_S = 0.05
"""For a worker that reads samples which nobody wants."""

_signals: Any = _utils.signal_handling
set_worker_pids = _signals._set_worker_pids
remove_worker_pids = _signals._remove_worker_pids
error_if_any_worker_fails = _signals._error_if_any_worker_fails


def end_of_worker(iterator: Any, patience_s: float) -> Exception | None:
    """How a worker ended, in torch's words, from Python's own books: torch tells a death once, without its exit code
    where it asked Python first. ``patience_s``: for one that is about to end. None: none ended by an error."""
    workers, deadline = getattr(iterator, "_workers", ()), time.monotonic() + patience_s
    while not (ended := [each for each in workers if each.exitcode]):
        if not workers or time.monotonic() > deadline:
            return None
        time.sleep(0.01)
    pid, code = ended[0].pid, ended[0].exitcode
    how = f"exited unexpectedly with exit code {code}"
    if code < 0:
        how = f"is killed by signal: {signal.strsignal(-code)}"
    return RuntimeError(f"DataLoader worker (pid {pid}) {how}")


@contextlib.contextmanager
def waiting_for_workers(seconds: float) -> Iterator[None]:
    """`_shutdown_workers` joins each worker for this long before it terminates it."""
    usual, _utils.MP_STATUS_CHECK_INTERVAL = _utils.MP_STATUS_CHECK_INTERVAL, seconds
    try:
        yield
    finally:
        _utils.MP_STATUS_CHECK_INTERVAL = usual


@contextlib.contextmanager
def answering_within(seconds: float) -> Iterator[None]:
    """Taking a batch asks its worker for the shared memory, and waits without a limit: here up to BlockingIOError.

    In this thread alone: one that pins, or reads the user's own workers, waits as ever.
    """
    sharer: Any = resource_sharer._resource_sharer  # type: ignore[attr-defined]

    def connect(ident: Any, here: int = threading.get_ident()) -> Any:  # as usual, but for the limit
        if threading.get_ident() != here:
            return type(sharer).get_connection(ident)
        client: Any = connection.Client(ident[0])
        with socket.socket(fileno=os.dup(client.fileno())) as same:
            limit = int(seconds), int(seconds % 1 * 1e6)
            same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", *limit))
        for prove in (connection.answer_challenge, connection.deliver_challenge):
            prove(client, current_process().authkey)
        client.send((ident[1], os.getpid()))
        return client

    sharer.get_connection = connect
    try:
        yield
    finally:
        vars(sharer).pop("get_connection", None)  # another thread that reads so may have taken it away


class Depth(NamedTuple):
    """Batches made and not yet delivered. One is made in every step, so a tuple."""

    unpinned: int | None
    """Not yet taken by the pinning thread. None: there is none, as without pin_memory or without a GPU."""
    ready: int
    """In the queue, and set aside because they came before their turn."""
    untaken: int | None = None
    """Of those not yet taken by the training process, which rebuilds what it takes. None: the pinning thread does."""


def queue_depth(iterator: Any) -> Depth | None:
    """What stands ready in a torch iterator right now; a few microseconds. None: there is no queue."""
    if not hasattr(iterator, "_worker_result_queue"):
        return None
    pins = iterator._data_queue is not iterator._worker_result_queue
    # A task's entry goes when its batch is delivered; it is no longer outstanding once its batch has come.
    set_aside = len(iterator._task_info) - iterator._tasks_outstanding
    queued = iterator._data_queue.qsize()
    return Depth(
        unpinned=iterator._worker_result_queue.qsize() if pins else None,
        ready=queued + set_aside,
        untaken=None if pins else queued,
    )


class _AskedInfo:
    """Stands for `WorkerInfo`, of worker 0 of 2. Notes that it was asked which of how many it is, or for its dataset,
    which a `worker_init_fn` shares out."""

    def __init__(self, info: Any, asked: torch.Tensor) -> None:
        self._info, self._asked = info, asked

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("id", "num_workers", "dataset"):
            self._asked.fill_(1)
        return {"id": 0, "num_workers": 2}[name] if name in ("id", "num_workers") else getattr(self._info, name)


def _ask(asked: torch.Tensor, worker_init_fn: Any, worker_id: int) -> None:
    """A ``worker_init_fn`` that runs the caller's own, with `_AskedInfo` from then on."""
    worker: Any = _utils.worker
    worker._worker_info = _AskedInfo(worker._worker_info, asked)
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


def reads_worker_info(dataset: Any, worker_init_fn: Any, multiprocessing_context: str | None = None) -> bool:
    """Whether a stream asks by which worker it is read, up to its first sample. Only then can it be shared out. A
    worker reads it, so that nothing which the dataset or the function change is changed here."""
    asked = torch.zeros(1)
    one: dict[str, Any] = {"batch_size": None, "num_workers": 1, "prefetch_factor": 1, "collate_fn": id}  # quickly sent
    asking = partial(_ask, asked, worker_init_fn)
    loader: Any = DataLoader(dataset, worker_init_fn=asking, multiprocessing_context=multiprocessing_context, **one)
    # What is raised is raised again when it is read in earnest; without a /dev/shm nobody can have workers.
    with contextlib.suppress(Exception), waiting_for_workers(_PATIENCE_S):
        asked.share_memory_()  # type: ignore[no-untyped-call]
        batches: Any = iter(loader)
        try:
            next(batches, None)
        finally:
            batches._shutdown_workers()
    return bool(asked[0])
