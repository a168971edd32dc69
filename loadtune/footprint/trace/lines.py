"""Which line runs: ``sys.settrace`` on the calling frame and on what it calls, as ``sys.monitoring`` begins with 3.12.

Frames of files that are not kept are not followed; what happens in them belongs to the line that called them. The
tracer that was there before, a debugger or coverage, sees nothing meanwhile and is put back.
"""

import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from loadtune.errors import UsageError
from loadtune.footprint.trace.visits import Ledger, Visit

Only = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None

_PACKAGE = str(Path(__file__).resolve().parents[2])
_INLINED = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Frames that 3.12 no longer makes for most of these: on every version they belong to the line they stand on."""


class KeptFiles:
    """The user's own files, or the files and folders asked for. Answers once for a file, as a tracer asks at every
    call."""

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


class LineTracer:
    """Between `start` and `stop` the ledger's current visit is the line that runs in this thread."""

    def __init__(self, kept: KeptFiles, ledger: Ledger, before_end: Callable[[Visit], None]) -> None:
        self._kept = kept
        self._ledger = ledger
        self._before_end = before_end
        self._stack: list[Visit] = []
        self._base: FrameType | None = None
        self._base_line = 0
        self._was_global: Any = None
        self._was_local: Any = None

    def start(self, frame: FrameType) -> None:
        code = frame.f_code
        if self._kept.keeps(code.co_filename):
            self._base, self._base_line = frame, frame.f_lineno
            self._was_local = frame.f_trace
            frame.f_trace = self._line
            self._stack = [self._ledger.begin(code.co_filename, frame.f_lineno, code.co_name, is_line=False)]
        else:
            self._stack = [self._ledger.begin(None, 0, "", is_line=False)]
        self._was_global = sys.gettrace()

    def follow(self) -> None:
        """The last thing before the caller's first line."""
        sys.settrace(self._call)

    def stop(self) -> None:
        """Puts everything back first; then the lines still open end, innermost first."""
        if not self._stack:  # never started
            return
        sys.settrace(self._was_global)
        if self._base is not None:
            self._base.f_trace = self._was_local
        top = self._stack[-1]
        if len(self._stack) == 1 and top.line == self._base_line:
            top.is_line = False  # leaving the block runs its ``with`` line once more
        while self._stack:
            self._end_top()
            self._stack.pop()
            if self._stack:
                self._ledger.resume(self._stack[-1])
        self._base = self._was_global = self._was_local = None

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if event != "call" or not self._kept.keeps(code.co_filename, code.co_name):
            return None
        self._ledger.pause()
        # A generator that goes on has no line event of its own.
        self._stack.append(self._ledger.begin(code.co_filename, frame.f_lineno, code.co_name, is_line=False))
        return self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self._end_top()
            code = frame.f_code
            self._stack[-1] = self._ledger.begin(code.co_filename, frame.f_lineno, code.co_name)
        elif event == "return" and len(self._stack) > 1:
            self._end_top()
            self._stack.pop()
            self._ledger.resume(self._stack[-1])
        return self._line

    def _end_top(self) -> None:
        self._ledger.pause()
        self._before_end(self._stack[-1])
        self._ledger.end(self._stack[-1])
