"""Which loaders are left alone, and why.

Whoever loads in two workers or more has shown that workers read the data. From none or one to several, three things can
go wrong without an error: workers share the offset of an open file, they have a copy of what the training loop changes
in the dataset, and a sampler that draws random numbers as it goes is asked further ahead.
"""

import fcntl
import io
import operator
import os
import stat
import sys
import threading
import types
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from typing import Any

import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import MapDataPipe

from loadtune.stream import torch_private as private
from loadtune.stream.random_states import read_states, same_states

_ATOMS = (int, float, complex, str, bytes, bool, type(None), range)
_MAX_CONTAINERS, _ENDS, _MANY_BYTES = 150, 16, 1024
_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def reason_against(loader: Any) -> str | None:
    """Why workers of this loader cannot change in flight, as a clause. None: they can."""
    if loader._dataset_kind != private.MAP_STYLE:
        return "an IterableDataset shares its samples out among workers when these start"
    if isinstance(loader.dataset, MapDataPipe):
        return "it reads a DataPipe"
    if hasattr(loader, "state_dict"):
        return f"{type(loader).__name__} keeps a state of its own, which counts its workers' batches"
    return None


def main_can_be_imported() -> bool:
    """Whether workers that are spawned can import the script without running it again."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if main is None or path is None or getattr(main, "__spec__", None) is not None:
        return True  # ``python -m``: imported under its name; or no script
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return False
    return "__name__" in text and "__main__" in text


class WatchedSampler:
    """Gives the index batches of a loader's own sampler. Looks whether it draws random numbers after its first batch.

    Such a sampler depends on how far ahead of the loop it is asked, and so on the number of workers.
    """

    KEPT, WATCHED = 6, 8

    def __init__(self, loader: Any) -> None:
        self._sampler = loader._index_sampler
        self._generators = [
            each
            for owner in (loader, loader.sampler, loader.batch_sampler)
            if isinstance(each := getattr(owner, "generator", None), torch.Generator)
        ]
        self.first: list[Any] = []
        """The first index batches of this epoch."""
        self.draws = False

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        self.first = []
        return self._watched(iter(self._sampler))

    def _watched(self, indices: Iterator[Any]) -> Iterator[Any]:
        for number in count():
            before = self._states() if 0 < number <= self.WATCHED and not self.draws else None
            try:
                drawn = next(indices)
            except StopIteration:
                return
            if before is not None:
                after = self._states()
                same = all(torch.equal(a, b) for a, b in zip(before[1], after[1], strict=True))
                self.draws = not same or not same_states(before[0], after[0])
            if number < self.KEPT:
                self.first.append(drawn)
            yield drawn

    def _states(self) -> Any:
        return read_states(), [each.get_state() for each in self._generators]


# Open files


def read_offsets() -> dict[tuple[str, int], int]:
    """Of the regular files that this process has open for reading. A forked worker that reads one moves it."""
    offsets = {}
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            number, path = int(name), os.readlink(f"/proc/self/fd/{name}")
            readable = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
            if readable and path.startswith("/") and stat.S_ISREG(os.fstat(number).st_mode):
                offsets[path, number] = os.lseek(number, 0, os.SEEK_CUR)
        except OSError:
            continue
    return {key: at for key, at in offsets.items() if not key[0].startswith(("/memfd:", "/dev/shm/", "/proc/"))}


def moved_file(before: dict[tuple[str, int], int]) -> str | None:
    """A file that was read through since then. None: none was."""
    return next((key[0] for key, at in read_offsets().items() if key in before and before[key] != at), None)


def shared_handle(*roots: Any) -> str | None:
    """The type of something in these objects that workers would share: an open file, a connection. None: none found."""
    for each in _contents(roots):
        if isinstance(each, io.BytesIO | io.StringIO):
            continue
        if isinstance(each, io.IOBase):
            return f"an open file ({getattr(each, 'name', type(each).__name__)})"
        if type(each).__module__ in ("builtins", "torch", "numpy") or isinstance(each, _LOCKS):
            continue
        if hasattr(each, "__dict__") or isinstance(each, types.MethodType | partial):
            continue
        try:
            each.__reduce_ex__(4)
        except Exception:  # what cannot be copied holds on to something outside of Python
            return f"a {type(each).__module__}.{type(each).__qualname__}"
    return None


# What the loop changes


class Unchanged:
    """Attributes of a dataset and of what it refers to, as they were; a look takes some 10 µs.

    Looks at 150 objects at the most, and at the ends of long lists: a change far inside of one is not seen.
    """

    def __init__(self, *roots: Any) -> None:
        self._kept = [(each, _items(each)) for each in islice(_containers(roots), _MAX_CONTAINERS)]

    def __bool__(self) -> bool:
        return self.changed() is None

    def changed(self) -> str | None:
        """The type of an object that changed, for people. None: none did."""
        for each, items in self._kept:
            now = _items(each)
            if len(now) != len(items) or not all(map(operator.is_, now, items)):
                if len(now) == len(items) and all(map(_same, now, items)):
                    continue
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
    if isinstance(each, partial):
        return (each.func, *each.args, *each.keywords.values())
    if isinstance(each, types.MethodType):
        return (each.__self__,)
    if isinstance(each, types.FunctionType):
        return tuple(_cell(cell) for cell in each.__closure__ or ())
    slots = [name for cls in type(each).__mro__ for name in _names(cls)]
    return (*getattr(each, "__dict__", {}).values(), *(getattr(each, name, None) for name in slots))


def _names(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    return () if cls.__module__ in ("torch", "builtins") else (slots,) if isinstance(slots, str) else tuple(slots)


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


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


def _containers(roots: tuple[Any, ...]) -> Iterator[Any]:
    return (each for each in _contents(roots) if _items(each) or isinstance(each, dict | list | set | deque))


# The same batch again


def kept_copy(batch: Any) -> Any:
    """Tensors copied, so that a step in place does not change them."""
    leaves, spec = tree_flatten(batch)
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec


def same_batch(batch: Any, kept: Any, *, values: bool) -> bool:
    """``values``: compare them, too, and not the structure alone."""
    leaves, spec = tree_flatten(batch)
    return spec == kept[1] and all(_same_leaf(a, b, values) for a, b in zip(leaves, kept[0], strict=True))


def _same_leaf(one: Any, other: Any, values: bool) -> bool:
    if type(one) is not type(other) or getattr(one, "dtype", None) != getattr(other, "dtype", None):
        return False
    if not values:
        return True
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())  # NaN
    same = one == other
    return bool(same.all()) if hasattr(same, "all") else bool(same)
