"""Whether a dataset, or a sampler, is as it was, and what it refers to."""

import dis
import functools
import gc
import io
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch

ATOMS = (int, float, complex, str, bytes, bool, type(None), range)
DATA = (*ATOMS, tuple, list, dict, set, frozenset, deque, torch.Tensor, numpy.ndarray)
_STDLIB = os.path.dirname(os.__file__)
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_MAX_CONTAINERS, _ENDS, _MANY_ITEMS, _MANY_BYTES = 150, 16, 20_000, 1 << 16


class Unchanged:
    """A dataset and what it refers to, with the data that its functions read from their module, as they were. Looks at
    150 objects at most: lists of 20,000 items, arrays of 64 KiB, and the ends of longer ones. A look takes 50 µs."""

    def __init__(self, *roots: Any, without: Any = None) -> None:
        """``without``: an object that is not looked into."""
        self._kept: list[tuple[str, Callable[[], Any], Any]] = []
        for each in _contents(roots, without):
            with suppress(Exception):  # of an object that cannot be looked into
                read = None if isinstance(each, tuple | frozenset) else _reader(each)
                if read is not None and (state := read()) is not None:
                    copied = (kind(state) for kind in (dict, list, set, deque) if isinstance(state, kind))
                    self._kept.append((type(each).__name__, read, next(copied, state)))
            if len(self._kept) == _MAX_CONTAINERS:
                return

    def changed(self) -> str | None:
        """The type of an object that changed, for people. None: none did."""
        for name, read, before in self._kept:
            try:
                same = bool(read() == before)
            except Exception:  # an array in the place of another, say
                same = False
            if not same:
                return name
        return None


def _reader(each: Any) -> Callable[[], Any] | None:
    """Reads what is compared, by equality, before each step: so what to read is found out once. None, or a reader of
    None: nothing of it can change."""
    if isinstance(each, torch.Tensor):
        is_kept = not each.is_inference() and not isinstance(each, torch.nn.Parameter)
        return partial(getattr, each, "_version") if is_kept else None
    if isinstance(each, numpy.ndarray):
        flat = each.reshape(-1) if each.flags.c_contiguous else each[:0].reshape(-1)
        half = _MANY_BYTES // 2 // max(1, each.itemsize)
        if each.nbytes <= _MANY_BYTES:
            return each.tobytes
        return lambda: (flat[:half].tobytes(), flat[-half:].tobytes())
    if isinstance(each, dict | list | set | deque):
        return lambda: each if len(each) <= _MANY_ITEMS else (len(each), _items(each))
    if isinstance(each, FunctionType):
        read, named = _read_globals(each), each.__globals__
        return (lambda: {name: named.get(name) for name in read}) if read else None
    if isinstance(each, partial | MethodType) or not hasattr(each, "__dict__"):
        return lambda: tuple(gc.get_referents(each)) or None
    return partial(vars, each)


def _items(each: Any) -> tuple[Any, ...]:
    """What an object refers to; of a long list its ends."""
    if isinstance(each, torch.Tensor | numpy.ndarray | set | frozenset | deque):
        return ()
    if isinstance(each, dict):
        return tuple(each.values()) if len(each) <= _MAX_CONTAINERS else tuple(islice(each.values(), _ENDS))
    if isinstance(each, list | tuple):
        return tuple(each) if len(each) <= 2 * _ENDS else (*each[:_ENDS], *each[-_ENDS:])
    if isinstance(each, FunctionType):
        return (*(each.__closure__ or ()), *_read_globals(each, FunctionType).values(), *_read_globals(each).values())
    if isinstance(each, partial | MethodType) or not hasattr(each, "__dict__"):
        return tuple(gc.get_referents(each))
    methods = (own for kind in type(each).__mro__ for own in vars(kind).values() if isinstance(own, FunctionType))
    return (*vars(each).values(), *filter(_is_users, methods))


def _is_users(function: FunctionType) -> bool:
    path = function.__code__.co_filename
    return not path.startswith(("<frozen", _STDLIB)) and "site-packages" not in path and "dist-packages" not in path


def _read_globals(function: FunctionType, kinds: Any = DATA) -> dict[str, Any]:
    """What a function of the user reads from its module: data, or other functions."""
    names = names_read(function.__code__, "LOAD_GLOBAL").values() if _is_users(function) else ()
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    return {name: each for name, each in found.items() if isinstance(each, kinds)}


def _contents(roots: tuple[Any, ...], without: Any = None) -> Iterator[Any]:
    """These objects and what they refer to, the nearest first."""
    seen = {id(without)}
    waiting = deque(roots)
    while waiting and len(seen) < 20 * _MAX_CONTAINERS:
        each = waiting.popleft()
        if issubclass(type(each), (*ATOMS, type, ModuleType, torch.dtype)) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        with suppress(Exception):  # of an object that cannot be looked into
            waiting.extend(_items(each))


def shared_handle(*roots: Any) -> str | None:
    """The type of something in these objects that workers would share: an open file, a connection. None: none found."""
    harmless = (io.BytesIO, io.StringIO, MethodType, partial, *_LOCKS)
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


def shared_state(*roots: Any) -> str | None:
    """The type of something in these objects that processes change together: shared memory, a lock, a queue. None: none
    found."""
    for each in _contents(roots):
        kind, is_shared = type(each), getattr(each, "is_shared", bool)
        if kind.__module__.startswith("multiprocessing.") or (isinstance(each, torch.Tensor) and is_shared()):
            return f"{kind.__module__}.{kind.__qualname__}"
    return None


@functools.lru_cache
def names_read(code: CodeType, operation: str) -> dict[int, str]:
    """Offset of each instruction that reads a name in this way → the name."""
    return {each.offset: each.argval for each in dis.get_instructions(code) if each.opname == operation}
