"""Which line runs: ``sys.settrace`` on the calling frame and on what it calls, as ``sys.monitoring`` begins with 3.12.

Frames of files that are not kept are not followed; what happens in them belongs to the line that called them. The
tracer that was there before, a debugger or coverage, sees nothing meanwhile and is put back.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from loadtune.footprint.trace.files import KeptFiles
from loadtune.footprint.trace.visits import Ledger, Visit


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
