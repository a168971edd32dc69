"""Which loaders are left alone, and why: found out before anything is switched.

Whoever loads in two workers or more has shown that workers read the data. From none or one to several, three things can
go wrong without an error: workers share the offset of an open file, they have a copy of what the training loop changes
in the dataset, and a sampler that draws random numbers as it goes is asked further ahead.
"""

import fcntl
import gc
import io
import operator
import os
import stat
import sys
import threading
import types
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import IterDataPipe, MapDataPipe

from loadtune.stream import torch_private as private
from loadtune.stream.worker_rows import read_states, same_states

_ATOMS = (int, float, complex, str, bytes, bool, type(None), range)
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_MAX_CONTAINERS, _ENDS, _MANY_BYTES = 150, 16, 1024
COMPARED, _WATCHED = 6, 8
"""First batches of other workers, which the training process reads, too; and first ones of an epoch, whose draws by the
sampler are looked at."""


def reason_against(loader: Any) -> str | None:
    """Why a loader is left to torch, as a clause. None: it can be watched."""
    if isinstance(loader.dataset, IterDataPipe | MapDataPipe):
        return "it reads a DataPipe"
    if hasattr(loader, "state_dict"):
        return f"{type(loader).__name__} keeps a state of its own, which counts its workers' batches"
    return None


class Trust:
    """Of one iterator: whether other workers read what the user's settings read.

    What its questions answer is a reason against other workers; None: none is known.
    """

    def __init__(self, view: Any, sampler: "WatchedSampler") -> None:
        self._sampler, self._method = sampler, private.start_method(view.multiprocessing_context)
        self._roots = view.dataset, view.collate_fn
        self.in_process = view.num_workers == 0
        # Where the training process loads, a change counts from the first batch on; else since workers have a copy.
        self._unchanged = None if self.in_process else Unchanged(*self._roots)
        self._shares_files = self._method == "fork" and view.num_workers <= 1
        self._offsets = _read_offsets() if self._shares_files else {}

    def before_batch(self) -> None:
        """The training process is about to load a batch, if the user has no workers."""
        if self._unchanged is None:
            self._unchanged = Unchanged(*self._roots)

    def changed(self) -> str | None:
        """Whether the dataset is another one than its copies in workers."""
        what = None if self._unchanged is None else self._unchanged.changed()
        copy = "workers have a copy of the dataset; set num_workers yourself where that is no problem"
        return None if what is None else f"the loop, or reading it, changes the dataset ({what}); {copy}"

    def reason_against(self) -> str | None:
        """What is known without starting a worker."""
        if self._sampler.draws:
            return "its sampler draws random numbers as it goes, so the order depends on the number of workers"
        if (changed := self.changed()) is not None:
            return changed
        if self._shares_files:
            moved = (key[0] for key, at in _read_offsets().items() if self._offsets.get(key, at) != at)
            what = next((f"an open file ({path})" for path in moved), None) or shared_handle(*self._roots)
            if what is not None:
                return f"the dataset reads through {what}, which several workers would share"
        if not self.in_process or self._method == "fork":
            return None
        if not hasattr(sys.modules["__main__"], "__file__") and "__main__" in (
            getattr(each, "__module__", None) for each in self._roots
        ):
            return f"a worker started by {self._method} cannot import what is defined in a notebook or at a prompt"
        if not _main_can_be_imported():
            return 'the script has no `if __name__ == "__main__":`, so workers would run it again'
        return None


class WatchedSampler:
    """Gives the index batches of a loader's own sampler. Looks whether it draws random numbers after its first batch.

    Such a sampler depends on how far ahead of the loop it is asked, and so on the number of workers.
    """

    def __init__(self, loader: Any) -> None:
        self._sampler = loader._index_sampler
        owners = (loader, loader.sampler, loader.batch_sampler)
        generators = (getattr(owner, "generator", None) for owner in owners)
        self._generators = [each for each in generators if isinstance(each, torch.Generator)]
        self.draws = False

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        return self._watched(iter(self._sampler))  # torch's own begins here, and not with the first index

    def _watched(self, indices: Iterator[Any]) -> Iterator[Any]:
        before = None
        for number, drawn in enumerate(indices):
            if before is not None:
                own, after = self._states()
                self.draws = own != before[0] or not same_states(before[1], after)
            yield drawn
            before = self._states() if number < _WATCHED and not self.draws else None

    def _states(self) -> tuple[list[bytes], Any]:
        return [each.get_state().numpy().tobytes() for each in self._generators], read_states()


def _main_can_be_imported() -> bool:
    """Whether workers that are spawned can import the script without running it again."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if path is None or getattr(main, "__spec__", None) is not None:
        return True  # ``python -m``: imported under its name; or no script
    with suppress(OSError):
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        return "__name__" in text and "__main__" in text
    return False


# Open files


def _read_offsets() -> dict[tuple[str, int], int]:
    """Of the regular files that this process has open for reading. A forked worker that reads one moves it."""
    offsets = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            number, path = int(name), os.readlink(f"/proc/self/fd/{name}")
            readable = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
            is_file = path.startswith("/") and stat.S_ISREG(os.fstat(number).st_mode)
            if readable and is_file and not path.startswith(("/memfd:", "/dev/shm/", "/proc/")):
                offsets[path, number] = os.lseek(number, 0, os.SEEK_CUR)
    return offsets


def shared_handle(*roots: Any) -> str | None:
    """The type of something in these objects that workers would share: an open file, a connection. None: none found."""
    harmless = (io.BytesIO, io.StringIO, types.MethodType, partial, *_LOCKS)
    for each in _contents(roots):
        kind = type(each)
        if isinstance(each, io.IOBase) and not isinstance(each, harmless):
            return f"an open file ({getattr(each, 'name', kind.__name__)})"
        known = kind.__module__ in ("builtins", "torch", "numpy") or isinstance(each, harmless)
        if not known and not hasattr(each, "__dict__"):
            try:
                each.__reduce_ex__(4)
            except Exception:  # what cannot be copied holds on to something outside of Python
                return f"a {kind.__module__}.{kind.__qualname__}"
    return None


# What the loop changes


class Unchanged:
    """Attributes of a dataset and of what it refers to, as they were; a look takes some 10 µs.

    Looks at 150 objects at the most, and at the ends of long lists: a change far inside of one is not seen.
    """

    def __init__(self, *roots: Any) -> None:
        found = ((each, _items(each)) for each in _contents(roots))
        kept = ((each, items) for each, items in found if items or isinstance(each, dict | list | set | deque))
        self._kept = list(islice(kept, _MAX_CONTAINERS))

    def changed(self) -> str | None:
        """The type of an object that changed, for people. None: none did."""
        for each, items in self._kept:
            now = _items(each)
            if len(now) != len(items) or not (all(map(operator.is_, now, items)) or all(map(_same, now, items))):
                return type(each).__name__
        return None


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _ATOMS) and one == other)


def _items(each: Any) -> tuple[Any, ...]:
    """What an object refers to, its length where it is long."""
    if isinstance(each, torch.Tensor):
        return () if each.is_inference() or isinstance(each, torch.nn.Parameter) else (each._version,)
    if type(each).__module__ == "numpy" and getattr(each, "nbytes", _MANY_BYTES) < _MANY_BYTES:
        return (each.tobytes(),)
    if isinstance(each, dict):
        return tuple(each.values()) if len(each) <= _MAX_CONTAINERS else (len(each), *islice(each.values(), _ENDS))
    if isinstance(each, list | tuple):
        return tuple(each) if len(each) <= 2 * _ENDS else (len(each), *each[:_ENDS], *each[-_ENDS:])
    if isinstance(each, set | frozenset | deque):
        return (len(each),)
    if isinstance(each, types.FunctionType):
        return each.__closure__ or ()
    if isinstance(each, partial | types.MethodType) or not hasattr(each, "__dict__"):
        return tuple(gc.get_referents(each))
    return tuple(vars(each).values())


def _contents(roots: tuple[Any, ...]) -> Iterator[Any]:
    """These objects and what they refer to, the nearest first."""
    seen: set[int] = set()
    waiting = deque(roots)
    while waiting and len(seen) < 20 * _MAX_CONTAINERS:
        each = waiting.popleft()
        if isinstance(each, (*_ATOMS, type, types.ModuleType, torch.dtype)) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting.extend(_items(each))


# The same batch again


def same_batch(one: Any, other: Any, *, values: bool) -> bool:
    """Of other workers and of the training process. ``values``: not the structure alone."""
    (leaves, spec), (others, other_spec) = tree_flatten(one), tree_flatten(other)
    return spec == other_spec and all(_same_leaf(a, b, values) for a, b in zip(leaves, others, strict=True))


def _same_leaf(one: Any, other: Any, values: bool) -> bool:
    if type(one) is not type(other) or getattr(one, "dtype", None) != getattr(other, "dtype", None):
        return False
    if not values:
        return True
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())  # NaN
    same = one == other
    return bool(same.all()) if hasattr(same, "all") else bool(same)
