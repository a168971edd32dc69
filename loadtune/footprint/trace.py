"""Memory by source line: `trace_memory` around a block, `run_traced` for a script.

``sys.settrace`` tells which line runs (``sys.monitoring`` came with Python 3.12). Only the user's own files are
followed: what happens elsewhere belongs to the line that called it. A debugger sees nothing meanwhile.
"""

import os
import runpy
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import msgspec
from torch.optim.optimizer import register_optimizer_step_post_hook

from loadtune.errors import UsageError
from loadtune.footprint.trace_ledger import CudaMeter, Ledger, MemoryTrace, TensorWatch, TracedLine, TracedTensor
from loadtune.units import bytes_text, counted
from loadtune.workload.user_code import is_users_file

_INLINED = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Frames that 3.12 no longer makes for most of these: on every version they belong to the line they stand on."""

_running = threading.Lock()
"""One trace at a time in a process: the allocator's peak counter and the optimizers' hook are the process's."""


class Tracing:
    """Record the memory of every source line that runs in the ``with`` block, in this thread.

    ``print(trace.text())`` shows for each line the memory in use, the change, the peak, and the tensors created and
    freed. ``trace.lines`` holds the same as records, ``trace.peak`` the line with the highest peak, ``trace.json()``
    all of it. A line that runs several times shows its largest peak.

    Lines of all files outside site-packages and the standard library are recorded; memory that other code allocates is
    attributed to the line that called it. Inside the block a training step takes several times as long. Outside,
    nothing is patched. On a GPU every line resets the peak counter of PyTorch's allocator (`max_memory_allocated`).

    The trace can be read inside the block and after it. Raises UsageError, on entry, inside another trace.
    """

    def __init__(self) -> None:
        self._cuda = CudaMeter()
        self._ledger = Ledger(self._cuda)
        self._watch = TensorWatch(self._ledger)
        self._stack: list[TracedLine] = []
        """Visits that have not ended, outermost first: the last one is the line that runs in this thread."""
        self._before_bytes = 0
        self._used = False

    @property
    def record(self) -> MemoryTrace:
        """The whole trace as a record; inside the block, the lines that have finished so far."""
        return MemoryTrace(
            device=self._cuda.device or "cpu", lines=tuple(self._ledger.lines.values()), before_bytes=self._before_bytes
        )

    @property
    def lines(self) -> tuple[TracedLine, ...]:
        return self.record.lines

    @property
    def peak(self) -> TracedLine | None:
        """The line with the highest peak."""
        return self.record.peak

    def text(self) -> str:
        """A table of at most 80 columns: lines that made a tensor or changed memory, then the peak."""
        return "\n".join(line[:_WIDTH].rstrip() for line in _table(self.record)) + "\n"

    def json(self) -> bytes:
        """Indented JSON; `MemoryTrace` reads it back through msgspec."""
        return msgspec.json.format(msgspec.json.encode(self.record), indent=2) + b"\n"

    def __enter__(self) -> "Tracing":
        if self._used or not _running.acquire(blocking=False):
            raise UsageError(
                "trace_memory() was entered inside another trace, or a second time. A process can have one trace at a"
                " time, and each trace needs its own trace_memory() call. Remove the inner one: the outer trace also"
                " records the lines of called functions."
            )
        self._used = True
        with ExitStack() as undo:
            undo.callback(_running.release)
            undo.callback(self._watch.forget)
            self._watch.look_around()
            self._ledger.pause()  # what is there already is nobody's change
            self._before_bytes = self._ledger.in_use["cpu"]
            frame = sys._getframe(1)
            undo.callback(self._end_all, frame.f_lineno)
            undo.callback(setattr, frame, "f_trace", frame.f_trace)
            undo.callback(sys.settrace, sys.gettrace())
            if is_users_file(frame.f_code.co_filename):
                frame.f_trace = self._line
                self._enter(frame)
            else:
                self._stack = [self._ledger.begin(None, 0, num_visits=0)]
            hook = register_optimizer_step_post_hook(lambda optimizer, *_: self._watch.name_state(optimizer))
            undo.callback(hook.remove)
            undo.enter_context(self._watch)
            self._undo = undo.pop_all()
        sys.settrace(self._call)  # the last thing before the caller's first line
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        self._undo.close()

    def _end_all(self, begun_at: int) -> None:
        """Lines still open, innermost first. ``begun_at``: the line of the ``with``, which is run again as it ends."""
        if len(self._stack) == 1 and self._stack[0].line == begun_at:
            self._stack[0].num_visits = 0
        while self._stack:
            self._leave()

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if event != "call" or code.co_name in _INLINED or not is_users_file(code.co_filename):
            return None
        self._ledger.pause()
        self._enter(frame)
        return self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        top = self._stack[-1]
        if event == "line" and top.num_visits and top.line == frame.f_lineno:
            return self._line  # the next turn of a comprehension, which has no frame of its own since Python 3.12
        if event == "line":
            self._end_top()
            self._stack[-1] = self._ledger.begin(frame.f_code.co_filename, frame.f_lineno)
        elif event == "return" and len(self._stack) > 1:
            self._leave()
        return self._line

    def _enter(self, frame: FrameType) -> None:
        """A generator that goes on has no line event of its own: what it does first is its frame's."""
        self._stack.append(self._ledger.begin(frame.f_code.co_filename, frame.f_lineno, num_visits=0))

    def _leave(self) -> None:
        self._end_top()
        self._stack.pop()
        if self._stack:
            self._ledger.resume(self._stack[-1])

    def _end_top(self) -> None:
        self._watch.before_end()
        self._ledger.pause()
        self._ledger.end(self._stack[-1])


trace_memory = Tracing
"""What ``loadtune.trace_memory`` is."""


def run_traced(script: Path, args: list[str], trace: Tracing) -> None:
    """Run ``script`` as ``python script args`` would, under ``trace``; what ends it is raised.

    Raises UsageError where there is no such script.
    """
    if not script.is_file():
        raise UsageError(f"{script}: no such script. Give the path of a Python file.")
    path = [str(script.resolve().parent), *sys.path]
    with patch.object(sys, "argv", [str(script), *args]), patch.object(sys, "path", path), trace:
        runpy.run_path(str(script), run_name="__main__")


_WIDTH = 80
_MOST_GROUPS = 6
"""Kinds of tensors listed under a line: a backward pass of a large model makes hundreds; JSON holds them all."""
_OUTSIDE = "code outside the traced files"


def _table(trace: MemoryTrace) -> Iterator[str]:
    before = bytes_text(trace.before_bytes)
    yield f"Memory of {trace.device} after each line. CPU tensors before the trace: {before}."
    yield _columns("line", "source", "in use", "change", "peak")
    file: str | None = ""
    shown = [
        line for line in trace.lines if line.appeared or line.went or line.num_temporaries or line.use.change_bytes
    ]
    for line in shown:
        if line.file != file:
            file = line.file
            yield _OUTSIDE if file is None else os.path.relpath(file)
        yield from _row(line)
    if left_out := len(trace.lines) - len(shown):
        yield f"{counted(left_out, 'more line')} made no tensor and changed no memory."
    if (peak := trace.peak) is not None:
        place = f"{os.path.basename(peak.file)}:{peak.line}" if peak.file else _OUTSIDE
        yield f"Peak {bytes_text(peak.use.peak_bytes)} at {place}  {peak.source}"


def _row(line: TracedLine) -> Iterator[str]:
    use = line.use
    figures = (bytes_text(use.in_use_bytes), _signed(use.change_bytes), bytes_text(use.peak_bytes))
    unread = "(source not available)" if line.file else f"({_OUTSIDE})"
    yield _columns(str(line.line or ""), line.source or unread, *figures)
    yield from _tensor_lines("+", line.appeared)
    yield from _tensor_lines("-", line.went)
    if line.num_temporaries:
        temporary = counted(line.num_temporaries, "temporary tensor")
        yield f"        ~ {temporary}, {bytes_text(line.temporary_bytes)} in total"
    if use.unattributed_bytes:
        yield f"        ? {_signed(use.unattributed_bytes)} not owned by a tensor"
    if line.num_visits > 1:
        last = bytes_text(use.last_in_use_bytes)
        yield f"        ran {line.num_visits:,} times; peak of all runs; {last} in use after the last"


def _tensor_lines(sign: str, tensors: Iterable[TracedTensor]) -> Iterator[str]:
    groups = Counter(tensors)
    ordered = sorted(groups, key=lambda tensor: -tensor.storage_bytes * groups[tensor])
    for tensor in ordered[:_MOST_GROUPS]:
        times = f"{groups[tensor]} × " if groups[tensor] > 1 else ""
        what = f"{times}{tensor.kind} {list(tensor.shape)} {tensor.dtype}, {bytes_text(tensor.storage_bytes)}"
        made = f"{os.path.basename(tensor.made_file)}:{tensor.made_line}" if tensor.made_file else "from before"
        yield f"        {sign} {what}, {tensor.device}" + (f" ({made})" if sign == "-" else "")
    if rest := ordered[_MOST_GROUPS:]:
        total = sum(tensor.storage_bytes * groups[tensor] for tensor in rest)
        yield f"        {sign} {sum(groups[tensor] for tensor in rest)} more, {bytes_text(total)}"


def _columns(number: str, source: str, in_use: str, change: str, peak: str) -> str:
    """5 + 1 + 41 + 3 × 11 make 80."""
    cut = source if len(source) < 41 else source[:39] + "…"
    return f"{number:>5} {cut:<41}{in_use:>11}{change:>11}{peak:>11}"


def _signed(num_bytes: int) -> str:
    return "0" if num_bytes == 0 else f"{'+' if num_bytes > 0 else '-'}{bytes_text(abs(num_bytes))}"
