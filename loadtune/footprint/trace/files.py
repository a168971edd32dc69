"""Whose lines are shown: the user's own files, or the files and folders asked for. What others do is their caller's."""

import os
import site
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import torch

from loadtune.errors import UsageError

Only = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None

_PACKAGE = str(Path(__file__).resolve().parents[2])
_INLINED = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Frames that 3.12 no longer makes for most of these: on every version they belong to the line they stand on."""


class KeptFiles:
    """Answers once for a file and remembers it, because a tracer asks at every call."""

    def __init__(self, only: Only = None) -> None:
        self._only = None if only is None else _named(only)
        self._known: dict[str, bool] = {}

    def keeps(self, filename: str, function: str = "") -> bool:
        if function in _INLINED:
            return False
        kept = self._known.get(filename)
        if kept is None:
            kept = self._known[filename] = self._decide(filename)
        return kept

    def _decide(self, filename: str) -> bool:
        path = os.path.realpath(filename)
        if self._only is not None:
            return _below(path, self._only)
        if filename.startswith("<"):  # generated code has no lines to show; what is typed at a prompt has
            return filename.startswith(("<stdin", "<ipython"))
        return not _below(path, _others())


def _named(only: Only) -> tuple[str, ...]:
    paths = [only] if isinstance(only, str | os.PathLike) else list(only or ())
    missing = [str(path) for path in paths if not os.path.exists(path)]
    if missing or not paths:
        found = ", ".join(missing) or "an empty list"
        raise UsageError(
            f"only={found}: no such file or folder. It can be a path or a list of paths whose lines are recorded. Leave"
            " it out to record all files outside site-packages and the standard library."
        )
    return tuple(os.path.realpath(path) for path in paths)


def _others() -> tuple[str, ...]:
    places = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    places += [*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(torch.__file__), _PACKAGE]
    return tuple({os.path.realpath(place) for place in places if place})


def _below(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(place + os.sep) for place in places)
