"""Puts a bench in the place of torch's DataLoader iterators, in the process of the user's script.

A loader trains once an optimizer stepped between its batches, twice. From then on its loop gets the batches of a
`ScriptSession`, without an end. Between two of these, others deliver two batches, so that a validation is short.
"""

import atexit
import json
import multiprocessing
import os
import sys
from functools import partial
from multiprocessing import util
from multiprocessing.connection import Client
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from loadtune.errors import ScriptEndedError
from loadtune.host.usable import num_local_ranks, num_ranks, rank
from loadtune.inflight.hook import is_worker
from loadtune.training.__main__ import leave, watch_lifeline

if TYPE_CHECKING:
    from loadtune.script.session import Handover

RUN_VARIABLE = "LOADTUNE_RUN"
"""Set by the controller for the script: ``{"folder": …, "socket": …}``, as JSON, perhaps with ``audit``."""

_VOTES = 2
"""Steps of an optimizer, each after a batch of a loader, from which on that trains."""
_OF_OTHERS = 2
"""Batches in a row of loaders that do not train, once another does: what is zipped with it goes on."""
_LONG = 1_000_000
"""``len()`` of a loader that may train: frameworks end an epoch by counting."""


class Hello(NamedTuple):
    """What a rank says first."""

    rank: int
    num_ranks: int
    """Of the job; some may load nothing, and then never say a word."""
    num_here: int
    """Of these on its machine."""


def install() -> None:
    """Called once torch's DataLoader is imported. Torch may not be imported to its end."""
    import torch.utils.data.dataloader as module

    patched = cast(Any, module.DataLoader)
    real, real_len = patched._get_iterator, patched.__len__
    bench: list[Bench] = []

    def here() -> bool:
        """Whether this is the script's own process and thread, and no worker of a loader."""
        is_others = bench and (bench[0].pid != os.getpid() or bench[0].is_loading)
        return not is_others and not is_worker()

    def _get_iterator(self: Any) -> Any:
        if not here():
            return real(self)
        if not bench:
            bench.append(Bench(real, json.loads(os.environ[RUN_VARIABLE])))
        return bench[0].iterator(self, sys._getframe(1))

    def __len__(self: Any) -> int:
        length: int = real_len(self)
        return max(length, _LONG) if here() and _is_shuffled(self) else length

    patched._get_iterator, patched.__len__ = _get_iterator, __len__


def _is_shuffled(loader: Any) -> bool:
    sampler = loader._index_sampler
    while (inner := getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)) is not None:
        sampler = inner
    from torch.utils.data import SequentialSampler

    return not isinstance(sampler, SequentialSampler) and getattr(sampler, "shuffle", True) is not False


class Bench:
    """Of one process."""

    def __init__(self, real: Any, given: dict[str, str]) -> None:
        import torch

        from loadtune.script.precision import Precisions

        self.real, self.pid = real, os.getpid()
        self.precisions = Precisions("cuda" if torch.cuda.is_available() else "cpu")
        self.handover: Handover | None = None
        """With the session. None: no loader trains yet."""
        self.trains: Any = None
        """Key of the loader that does."""
        self.num_delivered = 0
        """Batches up to then, of all loaders."""
        self.is_loading = False
        """Whether the session has its turn: loaders that it iterates are torch's own."""
        self.num_in_a_row = 0
        """Of loaders that do not train, since the last one of the loader that does."""
        self._connection, self._lifeline = _connected(given["socket"]), _connected(given["socket"])
        watch_lifeline(self._lifeline.fileno(), Path(given["folder"]))
        if (audit := sys.modules.get("_loadtune_audit")) is not None:
            audit.watch_writers()
        self._seen: dict[Any, tuple[int, int]] = {}

    def iterator(self, loader: Any, frame: FrameType) -> Any:
        from loadtune.inflight.iterator import place_of
        from loadtune.stream import torch_private as private

        return private.as_torchs(_Iterator, loader.num_workers > 0)(self, loader, place_of(frame))

    def has_trained(self, key: Any) -> bool:
        """Whether the loop trains on this loader: asked at each of its batches."""
        import torch

        steps, (before, votes) = self.precisions.num_steps, self._seen.get(key, (-1, 0))
        votes += before >= 0 and steps > before and torch.is_grad_enabled()
        self._seen[key] = steps, votes
        return votes >= _VOTES

    def say_hello(self) -> None:
        """A loader trains: the controller waits for the other ranks."""
        number, num = _rank()
        here = num_local_ranks(num) if num == num_ranks() else num  # else the launcher speaks of other processes
        self._connection.send(Hello(number, num, here))

    def begin(self, loader: Any, key: Any, place: str) -> None:
        """This loader trains. The session begins with the next batch."""
        from loadtune.script.session import Handover, Script, serve_script

        self.trains = key
        accumulate = max(1, round((self.num_delivered - 1) / max(1, self.precisions.num_steps)))
        serve = partial(serve_script, self._connection, Script(loader, place, self.precisions, accumulate))
        self.handover, hook = Handover(serve), sys.excepthook

        def raised(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            hook(kind, error, trace)
            self.end(error)

        sys.excepthook = raised
        atexit.register(self.end, ScriptEndedError())
        if multiprocessing.parent_process() is not None:  # one that mp.spawn started calls neither of them
            util.Finalize(None, self._finalized, exitpriority=0)

    def _finalized(self) -> None:
        """While what the process's function raised is on its way."""
        error = sys.exc_info()[1]
        self.end((error.__context__ if isinstance(error, SystemExit) else error) or ScriptEndedError())

    def next_batch(self) -> Any:
        """Of the loader that trains."""
        assert self.handover is not None
        self.num_in_a_row, self.is_loading = 0, True
        try:
            handed = self.handover.next_batch(self.precisions.end())
        finally:
            self.is_loading = False
        self.precisions.begin(handed.recipe, is_probed=handed.is_probed)
        return handed.batch

    def end(self, error: BaseException) -> None:
        """The script ends: the session answers, and waits for the end of the process."""
        if self.handover is not None and self.pid == os.getpid() and not self.handover.has_ended:
            self.is_loading = True
            self.handover.end(error)


class _Iterator:
    def __init__(self, bench: Bench, loader: Any, place: str) -> None:
        size = getattr(loader, "batch_size", None)
        self._bench, self._loader, self._place = bench, loader, place
        self._key = type(loader.dataset), size, place
        self._plain = None if bench.trains == self._key else bench.real(loader)

    def __iter__(self) -> Any:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        bench = self._bench
        if bench.pid != os.getpid():
            return next(cast(Any, self._plain))
        if bench.trains is None and bench.has_trained(self._key):
            bench.say_hello()
            self._shutdown_workers()
            bench.begin(self._loader, self._key, self._place)
        if bench.trains == self._key:
            self._plain = None
            return bench.next_batch()
        bench.num_in_a_row += 1
        bench.precisions.pause()
        if bench.trains is not None and bench.num_in_a_row > _OF_OTHERS:
            raise StopIteration
        bench.num_delivered += bench.trains is None
        return next(cast(Any, self._plain))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_plain", "_bench"):
            raise AttributeError(name)
        return getattr(self._plain, name)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if self._plain is not None:
            self._plain._reset(loader, first_iter)

    def _shutdown_workers(self) -> None:
        plain = self.__dict__.get("_plain")
        if plain is not None and hasattr(plain, "_shutdown_workers"):
            plain._shutdown_workers()

    def __del__(self) -> None:
        self._shutdown_workers()


def _rank() -> tuple[int, int]:
    """This process's, and how many there are."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return rank(), num_ranks()


def _connected(address: str) -> Any:
    try:
        return Client(address, "AF_UNIX")
    except OSError:  # the controller is gone
        leave(1)
