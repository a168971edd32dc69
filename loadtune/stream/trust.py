"""Whether other workers read what the user's settings read: found out before anything is switched.

Four things can go wrong without an error. Workers share the offset of an open file. They have a copy of what the loop
changes in the dataset. A sampler is asked further ahead of the loop, although the two act on each other. A
``worker_init_fn`` computes with the number of workers.
"""

import dis
import fcntl
import gc
import io
import os
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import islice, pairwise, repeat
from pathlib import Path
from types import CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch
from torch.utils._pytree import tree_flatten

from loadtune.stream import torch_private as private
from loadtune.stream.worker_rows import read_states, same_states, write_states

_WATCHED = 8
"""First batches of an epoch whose draws are looked at."""
_MOST_PARTS = 16
_ATOMS = (int, float, complex, str, bytes, bool, type(None), range)
_DATA = (*_ATOMS, tuple, list, dict, set, frozenset, deque, torch.Tensor, numpy.ndarray)
_STDLIB = os.path.dirname(os.__file__)
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_MAX_CONTAINERS, _ENDS, _MANY_ITEMS, _MANY_BYTES = 150, 16, 20_000, 1 << 16
_NUMBER = "num_workers"
_YOURSELF = "if your training allows that, set num_workers yourself"


class Trust:
    """Of one iterator. What its questions answer is a reason against other workers; None: none is known."""

    def __init__(self, view: Any, sampler: "WatchedSampler") -> None:
        self.view, self.sampler, self._method = view, sampler, private.start_method(view.multiprocessing_context)
        self._roots = view.dataset, view.collate_fn
        self.in_process = view.num_workers == 0
        self._unchanged = Unchanged(*self._roots)
        self._reason = reason_against_init(view.worker_init_fn, view.num_workers)
        self._shares_files = self._method == "fork" and view.num_workers <= 1
        self._offsets = _read_offsets() if self._shares_files else {}

    def changed(self) -> str | None:
        """Whether the dataset is another one than its copies in workers."""
        what = self._unchanged.changed()
        return what and f"the loop, or reading it, changes the dataset ({what}), and workers have a copy; {_YOURSELF}"

    def reason_against(self) -> str | None:
        """What is known without starting a worker."""
        if self.in_process and self.sampler.reason is not None:
            return f"{self.sampler.reason}; workers ask it ahead of the loop, so it may give other batches; {_YOURSELF}"
        if (changed := self.changed()) is not None:
            return changed
        if self._shares_files:
            moved = (key[0] for key, at in _read_offsets().items() if self._offsets.get(key, at) != at)
            what = next((f"an open file ({path})" for path in moved), None) or shared_handle(*self._roots)
            if what is not None:
                return f"the dataset reads through {what}, which workers would share; open it in each worker"
        if not self.in_process or self._method == "fork":
            return self._reason
        if not hasattr(sys.modules["__main__"], "__file__") and "__main__" in (
            getattr(each, "__module__", None) for each in self._roots
        ):
            return f"a worker started by {self._method} cannot import what a notebook defines; put it in a module"
        if not _main_can_be_imported():
            return 'the script has no `if __name__ == "__main__":`, so workers would run it again; add it'
        return self._reason


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


# Of what the dataset refers to


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


def _read_globals(function: FunctionType, kinds: Any = _DATA) -> dict[str, Any]:
    """What a function of the user reads from its module: data, or other functions."""
    names = _names_read(function.__code__, "LOAD_GLOBAL").values() if _is_users(function) else ()
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    return {name: each for name, each in found.items() if isinstance(each, kinds)}


def _contents(roots: tuple[Any, ...], without: Any = None) -> Iterator[Any]:
    """These objects and what they refer to, the nearest first."""
    seen = {id(without)}
    waiting = deque(roots)
    while waiting and len(seen) < 20 * _MAX_CONTAINERS:
        each = waiting.popleft()
        if issubclass(type(each), (*_ATOMS, type, ModuleType, torch.dtype)) or id(each) in seen:
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


@lru_cache
def _names_read(code: CodeType, operation: str) -> dict[int, str]:
    """Offset of each instruction that reads a name in this way → the name."""
    return {each.offset: each.argval for each in dis.get_instructions(code) if each.opname == operation}


# Of the sampler


class WatchedSampler:
    """Gives the index batches of a loader's own sampler, and looks at how it makes the first of them. It may be asked
    further ahead of the loop unless it draws random numbers, changes attributes or reads attributes for each batch.
    """

    def __init__(self, loader: Any, is_known: bool = False, reason: str | None = None) -> None:
        """``is_known``, ``reason``: as an earlier epoch left them."""
        self._sampler = loader._index_sampler
        self._parts = list(_sampler_parts(loader))
        generators = (getattr(owner, "generator", None) for owner in (loader, *self._parts))
        self._generators = [each for each in generators if isinstance(each, torch.Generator)]
        self._others = [each for each in self._parts if not type(each).__module__.startswith("torch.utils.data")]
        self._not_its_own = loader.dataset
        self.reason = reason
        """Why it may not be asked ahead, as a clause. None: nothing was seen."""
        self.is_known = is_known or not self._others
        """Whether enough of its batches were looked at, or all of it is torch's."""
        self._length: int | None = None

    def may_ask_ahead(self) -> bool:
        return self.is_known and self.reason is None

    def __len__(self) -> int:
        if self._length is None:  # torch's loop asks for it never, so once, and without a trace
            states, self._length = read_states(), len(self._sampler)
            write_states(states)
        return self._length

    def __iter__(self) -> Iterator[Any]:
        self._number, self._last, self._length = -1, None, None
        # Torch's own begins here, and not with the first index. It is asked again after an exception, as torch does.
        return map(partial(self._draw, iter(self._sampler)), repeat(None))

    def _draw(self, indices: Iterator[Any], _: None) -> Any:
        self._number += 1
        if self._number > _WATCHED or self.reason is not None or (self.is_known and self._others):
            self.is_known = True
            return next(indices)
        states, kept = self._states(), Unchanged(*self._others, without=self._not_its_own)
        names = set[str]().union(*map(_data_names, self._others if self._number == 1 else ()))
        with _reading(names) as read:
            drawn = next(indices)
        if drawn is self._last and not isinstance(drawn, _ATOMS):
            read.append("the same list")
        if self._number:
            self.reason = self._seen(states, kept, read)
        self._last = drawn
        return drawn

    def _seen(self, states: tuple[list[bytes], Any], kept: Unchanged, read: list[str]) -> str | None:
        own, after = self._states()
        name = type((self._others or self._parts)[-1]).__name__
        if own != states[0] or not same_states(states[1], after):
            return f"its sampler ({name}) draws random numbers for each batch"
        if kept.changed() is not None:
            return f"its sampler ({name}) changes its attributes with each batch"
        if read:
            return f"its sampler ({name}) uses {read[0]}, which the loop may change, for each batch"
        return None

    def _states(self) -> tuple[list[bytes], Any]:
        return [each.get_state().numpy().tobytes() for each in self._generators], read_states()


def _sampler_parts(loader: Any) -> Iterator[Any]:
    """A loader's samplers, and those that they were made from."""
    waiting, seen = [loader.batch_sampler, loader.sampler], list[Any]()
    while waiting:
        each = waiting.pop(0)
        if each is None or any(each is other for other in seen) or len(seen) > _MOST_PARTS:
            continue
        seen.append(each)
        yield each
        waiting += [getattr(each, name, None) for name in ("batch_sampler", "sampler")]


def _data_names(sampler: Any) -> set[str]:
    """Of its attributes that are no methods, its classes' own included."""
    owners = [getattr(sampler, "__dict__", {}), *(vars(kind) for kind in type(sampler).__mro__[:-1])]
    found = ((name, type(each)) for owner in owners for name, each in owner.items() if name[:2] != "__")
    return {name for name, kind in found if issubclass(kind, _DATA)}


@contextmanager
def _reading(names: set[str]) -> Iterator[list[str]]:
    """Those of these names that code reads as attributes meanwhile; torch's own samplers do not count."""
    read, left = list[str](), iter(range(10_000))

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if "/torch/utils/data/" in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if next(left, None) is None:  # a batch that takes long to make: what was not seen counts as seen
            sys.settrace(None)
            read.extend(names)
            return None
        if event == "opcode" and (name := _names_read(frame.f_code, "LOAD_ATTR").get(frame.f_lasti, "")) in names:
            read.append(name)
        return trace

    if not names or sys.gettrace() is not None:  # with a debugger nothing can be seen, and counts as seen
        yield [*names]
        return
    sys.settrace(trace)
    try:
        yield read
    finally:
        sys.settrace(None)


# Of the worker_init_fn


def gets_number(init: Any, own: int) -> bool:
    """Whether a partial passes ``num_workers`` to a ``worker_init_fn``: the loader's own, or None as mmengine does."""
    return isinstance(init, partial) and (init.keywords.get(_NUMBER, ...) in (own, None) or gets_number(init.func, own))


def reason_against_init(init: Any, own: int) -> str | None:
    """Why a ``worker_init_fn`` would compute with the loader's own number of workers in others, too, as for seeds that
    no two ranks share. None: nothing is known."""
    is_known = gets_number(init, own)
    while init is not None:
        function = init if hasattr(init, "__code__") else init.__call__
        if isinstance(function, FunctionType | MethodType) and _reads_number(function, is_known):
            return f"its worker_init_fn ({function.__qualname__}) reads {_NUMBER} by itself; set {_NUMBER} yourself"
        init = init.func if isinstance(init, partial) else getattr(init, "__wrapped__", None)
    return None


def _reads_number(function: Any, is_known: bool) -> bool:
    """Not by ``get_worker_info()``, which tells the number of its own pool."""
    code, known, steps = function.__code__, function.__globals__, list(dis.get_instructions(function))
    is_typed = not is_known and _NUMBER in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    ways = {each.opname for each in steps if each.argval == _NUMBER}
    cells = [each.cell_contents for each in function.__closure__ or () if each != CellType()]  # not the empty ones
    seen = [*cells, *(known[name] for name in code.co_names if name in known)]
    if "get_worker_info" in code.co_names and not any(_NUMBER in getattr(each, "__dict__", ()) for each in seen):
        ways -= {"LOAD_ATTR"}
    is_key = any(a.argval == _NUMBER and (b.opname == "BINARY_SUBSCR" or b.argrepr == "[]") for a, b in pairwise(steps))
    is_key |= _NUMBER in code.co_consts and not {"get", "getattr"}.isdisjoint(code.co_names)
    return bool(is_key or is_typed or _NUMBER in code.co_freevars or ways & {"LOAD_GLOBAL", "LOAD_ATTR"})


# Of what workers loaded


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
