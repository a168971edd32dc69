"""What a thread that loads executes: names of its step, from torch's fetcher inwards. No code of the user's runs."""

import linecache
import os
import sys
import sysconfig
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from traceback import walk_stack
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

from torch import nn
from torch.utils.data import Dataset

from loadtune.stream import torch_private as private

_FETCHER = private.FETCHERS[0].fetch.__code__.co_filename
_AROUND = (_FETCHER, os.path.join(os.path.dirname(__file__), "worker_rows.py"))
_COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
_READS = ("__getitem__", "__getitems__", "__iter__", "__next__")
_CALLS = ("__call__", "_wrapped_call_impl", "_call_impl", "forward")
_MOST_HELD, _LOOK_AHEAD, _MOST_LINES, _SEVERAL = 64, 10, 4, 3
_MODULE_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_LIBRARIES = (
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ""),
    *(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")),
)

Path = tuple[str, ...]
"""Names of a step, each within the one before, as lines of the user's code are; then what the last one calls, or an
empty text. Empty: the process is not loading."""


class Place(NamedTuple):
    """Where a frame is."""

    file: str
    line: int
    qualname: str

    @property
    def function(self) -> str:
        return self.qualname.rpartition(".")[2]


Places = tuple[Place, ...]
"""Those of a stack, the outermost first."""


def places_of(frame: FrameType | None) -> Places:
    codes = ((each.f_code, line) for each, line in (walk_stack(frame) if frame is not None else ()))
    found = [Place(code.co_filename, line or code.co_firstlineno, code.co_qualname) for code, line in codes]
    return tuple(reversed(found))


def path_of(places: Places, dataset: Any, collate_fn: Any) -> Path:
    """What a thread executes. Of a dataset that has just returned, it is freed what that had used, as frames of a
    video."""
    fetching = [at for at, place in enumerate(places) if place.file == _FETCHER and place.function == "fetch"]
    if not fetching:
        return ()
    collates, at = places[fetching[-1]].line in _collating_lines(), fetching[-1] + 1
    while at < len(places) and places[at].file in _AROUND:  # comprehensions, up to Python 3.11
        at += 1
    inner = places[at:]
    if collates:
        *names, called = _walk(collate_fn, inner, in_datasets=False)
        return (*(f"collate_fn: {name}" for name in names), called)
    if not inner and issubclass(type(dataset), Dataset):
        return f"{_label(dataset)}: returning a sample", ""
    return _walk(dataset, inner, in_datasets=True)


@cache
def _collating_lines() -> frozenset[int]:
    """Of the file of torch's fetchers."""
    return frozenset(number for number, line in enumerate(linecache.getlines(_FETCHER), 1) if "collate_fn" in line)


def _walk(owner: Any, places: Sequence[Place], *, in_datasets: bool) -> Path:
    """The innermost object that matters, or the lines of the user's code that lead to what is executed.

    Frames of one object are one. A frame is followed if its object or function is held by the object before it: by a
    dataset in any attribute, if it is called or read as a dataset is; by others in a list or dict, as transforms are,
    or if it is the user's code. In the user's code the line says more than a single object that it calls.
    """
    name, lines, at, begins, users = _label(owner), list[str](), 0, 0, None
    while at < len(places):
        place, own = places[at], _run_by(owner, places[at])
        if at == begins or place.function in _COMPREHENSIONS or own is not None:
            users = (own or users) if _is_users(place) else None
            lines += [_line_text(place)] if _is_users(place) else []
            at += 1
            continue
        held = _held_ahead(owner, places[at : at + _LOOK_AHEAD], users)
        if held is None:
            break
        ahead, value, part, is_element = held
        if part is owner:
            at += ahead
            continue
        is_dataset = issubclass(type(part), Dataset)
        inner = places[at + ahead]
        is_read = in_datasets and (is_dataset or callable(value) or inner.function in _READS)
        is_kept = is_read or (is_element and part is not None) or _is_users(inner)
        if not is_kept or (lines and not (is_element or is_dataset or _is_container(part))):
            break
        at = begins = at + ahead
        name, lines = f"{name}: {_label(value)}" if part is None else _label(value), []
        owner, in_datasets = _unwrapped(value) if part is None else part, in_datasets and is_dataset
    if not (lines or in_datasets):
        return name, ""
    while at < len(places) and _is_users(places[at]):
        lines, at = [*lines, _line_text(places[at])], at + 1
    outside = (place for place in places[at:] if _run_by(owner, place) is None and not _is_users(place))
    called = next(filter(None, map(_called, outside)), "")
    if lines:
        return (*list(dict.fromkeys(lines))[:_MOST_LINES], called)
    return (f"{name}: {called}" if called else name, "")


def _held_ahead(owner: Any, places: Sequence[Place], users: FunctionType | None) -> tuple[int, Any, Any, bool] | None:
    """The first frame that runs the owner again, or what it holds: (its place, what is held, the object that runs or
    None for a function, whether it is in a list or dict). One that may be of objects of several classes says nothing.
    ``users``: the function in which the user's code runs."""
    values = [(_unwrapped(value), value, is_element) for value, is_element in _held(owner, users)]
    for ahead, place in enumerate(places):
        running = [each for each in values if _run_by(each[0], place) is not None]
        if len({real if type(real) is FunctionType else type(real) for real, *_ in running}) == 1:
            real, value, is_element = next((each for each in running if _leads(each[0], places[ahead:])), running[0])
            return ahead, value, None if type(real) is FunctionType else real, is_element
        if not running and _run_by(owner, place) is not None:
            return ahead, owner, owner, False
    return None


def _leads(part: Any, places: Sequence[Place]) -> bool:
    """Of several objects of one class: whether it is this one, whose parts run."""
    return any(_run_by(_unwrapped(value), place) is not None for value, _ in _held(part) for place in places)


def _run_by(owner: Any, place: Place) -> FunctionType | None:
    """The method of the object, or the function that it is, in whose source this is. None: it is elsewhere."""
    if type(owner) is FunctionType:
        return owner if _is_within(owner.__code__, place) else None
    kind: Any = type(owner)
    return next((each for each in _methods(kind).get(place.file, ()) if _is_within(each.__code__, place)), None)


@cache
def _methods(kind: Any) -> dict[str, list[FunctionType]]:
    """By the file that they are in."""
    found = dict[str, list[FunctionType]]()
    values: list[Any] = [value for base in kind.__mro__ if base is not object for value in vars(base).values()]
    for value in values:
        function: Any = value.fget if type(value) is property else getattr(value, "__func__", value)
        while type(function) is FunctionType:
            found.setdefault(function.__code__.co_filename, []).append(function)
            function = vars(function).get("__wrapped__")
    return found


def _is_within(code: CodeType, place: Place) -> bool:
    return code.co_filename == place.file and code.co_firstlineno <= place.line <= _last_line(code)


@cache
def _last_line(code: CodeType) -> int:
    inner = [_last_line(each) for each in code.co_consts if type(each) is CodeType]
    return max([line for *_, line in code.co_lines() if line is not None] + inner, default=code.co_firstlineno)


def _held(owner: Any, users: FunctionType | None = None) -> Iterator[tuple[Any, bool]]:
    """(what an object holds, whether it is in a list or dict). No code of the user's runs for it.

    ``users``: a function that reads attributes of the class and global names, too.
    """
    values, parts = list[Any](), None
    with suppress(AttributeError):
        own = object.__getattribute__(owner, "__dict__")
        values += own.values()
        parts = None if issubclass(type(owner), _MODULE_LISTS) else own.get("_modules")
    if users is not None:
        values += vars(type(owner)).values()
        names, known = users.__code__.co_names, users.__globals__
        values += (known[name] for name in names if name in known)
    for value in values:
        yield value, False
        several = vars(value)["_modules"] if issubclass(type(value), nn.ModuleList) else value
        if type(several) in (list, tuple, dict, OrderedDict) and len(several) <= _MOST_HELD:
            elements = list(several.values() if isinstance(several, dict) else several)
            for each in () if _are_parts(elements) else elements:
                yield each, several is not parts  # submodules are attributes, but of a Sequential
                yield from ((inner, True) for inner in (each if type(each) is tuple else ()))


def _are_parts(elements: list[Any]) -> bool:
    """Whether these say less than what holds them: several objects of one class, as the operations of RandAugment."""
    kind = type(elements[0]) if len(elements) >= _SEVERAL else FunctionType
    is_object = kind not in (FunctionType, BuiltinFunctionType, MethodType, partial) and not issubclass(kind, Dataset)
    return is_object and all(type(each) is kind and callable(each) for each in elements)


def _is_container(value: Any) -> bool:
    return any(is_element and (callable(each) or issubclass(type(each), Dataset)) for each, is_element in _held(value))


def _unwrapped(value: Any) -> Any:
    while type(value) in (partial, MethodType):
        value = value.func if type(value) is partial else value.__func__
    return value


def _label(value: Any) -> str:
    value = _unwrapped(value)
    if type(value) is FunctionType:
        return value.__qualname__.replace("<locals>.", "")
    is_named = type(value) is BuiltinFunctionType or issubclass(type(value), type)
    return str(value.__name__ if is_named else type(value).__name__)


def _called(place: Place) -> str:
    """``DataFrame.drop``. Empty: it is a decorator's, whose name says nothing."""
    owner, _, name = place.qualname.rpartition(".")
    return "" if "<" in place.qualname else owner if owner and name in _CALLS else place.qualname


def _is_users(place: Place) -> bool:
    is_library = place.file.startswith(("<", *_LIBRARIES)) or "-packages" in place.file
    return not is_library or place.file == vars(sys.modules["__main__"]).get("__file__")


def _line_text(place: Place) -> str:
    source = linecache.getline(place.file, place.line).strip()[:80]
    return f"{os.path.basename(place.file)}:{place.line} {source}".strip()
