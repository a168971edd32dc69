"""Line tracer, tensor watch and allocator readings put together, and all taken away again: for a block, or a script.

``sys.settrace`` on the calling frame, and on what it calls, tells which line runs: ``sys.monitoring`` is not in Python
3.11. Frames of files that are not kept are not followed; what happens in them belongs to the line that called them. The
tracer that was there before, a debugger or coverage, sees nothing meanwhile and is put back.
"""

import os
import runpy
import site
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from loadtune.errors import UsageError
from loadtune.footprint.trace.records import MemoryTrace, TracedLine
from loadtune.footprint.trace.tensors import TensorWatch
from loadtune.footprint.trace.view import trace_json, trace_text
from loadtune.footprint.trace.visits import CudaReading, Ledger, Meter, Visit

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


_running = threading.Lock()
"""One trace at a time in a process: the allocator's peak counter and the optimizers' hook are the process's."""


def trace_memory(*, only: Only = None) -> "Tracing":
    """Record the memory of every source line that runs in the ``with`` block, in this thread.

    ``print(trace.text())`` shows for each line the memory in use, the change, the peak, and the tensors created and
    freed. ``trace.lines`` holds the same as records, ``trace.peak`` the line with the highest peak, ``trace.json()``
    all of it. A line that runs several times shows its largest peak.

    only: a file, a folder, or a list of these. Only their lines are recorded; memory that other code allocates is
        attributed to the line that called it. None: all files outside site-packages and the standard library.

    Inside the block a training step takes several times as long. Outside, nothing is patched. On a GPU every line
    resets the peak counter of PyTorch's allocator (`max_memory_allocated`).

    Raises UsageError for an ``only`` that does not exist, and, on entry, inside another trace.
    """
    return Tracing(KeptFiles(only), CudaMeter())


class Tracing:
    """The trace of ``with trace_memory() as trace``. It can be read inside the block and after it."""

    def __init__(self, kept: KeptFiles, meter: Meter) -> None:
        self._meter = meter
        self._ledger = Ledger(meter)
        self._watch = TensorWatch(self._ledger)
        self._lines = LineTracer(kept, self._ledger, self._before_end)
        self._hook: Any = None
        self._before_bytes = 0
        self._done: MemoryTrace | None = None
        self._used = False

    @property
    def record(self) -> MemoryTrace:
        """The whole trace as a record; inside the block, the lines that have finished so far."""
        return self._done or self._record()

    @property
    def lines(self) -> tuple[TracedLine, ...]:
        return self.record.lines

    @property
    def peak(self) -> TracedLine | None:
        """The line with the highest peak."""
        return self.record.peak

    def text(self) -> str:
        """A table of at most 80 columns."""
        return trace_text(self.record)

    def json(self) -> bytes:
        return trace_json(self.record)

    def __enter__(self) -> "Tracing":
        if self._used or not _running.acquire(blocking=False):
            raise UsageError(
                "trace_memory() was entered inside another trace, or a second time. A process can have one trace at a"
                " time, and each trace needs its own trace_memory() call. Remove the inner one: the outer trace also"
                " records the lines of called functions."
            )
        self._used = True
        try:
            self._start(sys._getframe(1))
        except BaseException:
            self._stop()
            raise
        self._lines.follow()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        sys.settrace(None)
        self._stop()

    def _start(self, frame: Any) -> None:
        self._ledger.start()
        self._lines.start(frame)
        self._watch.look_around()
        self._before_bytes = self._ledger.in_use
        self._hook = register_optimizer_step_post_hook(lambda optimizer, *_: self._watch.name_state(optimizer))
        self._watch.__enter__()  # type: ignore[no-untyped-call]

    def _stop(self) -> None:
        try:
            if self._hook is not None:
                self._watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
                self._hook.remove()
            self._lines.stop()
            self._done = self._record()
        finally:
            self._watch.forget()
            _running.release()

    def _before_end(self, visit: Visit) -> None:
        if visit.in_backward:
            self._watch.name_gradients()

    def _record(self) -> MemoryTrace:
        return MemoryTrace(
            device=self._meter.device or "cpu",
            lines=tuple(row.record() for row in list(self._ledger.rows.values())),
            before_bytes=self._before_bytes,
        )


def run_traced(script: Path, args: list[str], only: Only = None) -> MemoryTrace:
    """Run ``script`` as ``python script args`` would; what ends it, an exception or `SystemExit`, stands in the record.

    Nothing is raised for it and nothing printed: ``error`` is the user's traceback, ``exit_code`` what python would
    have ended with. Raises UsageError where there is no such script.
    """
    if not script.is_file():
        raise UsageError(f"{script}: no such script. Give the path of a Python file.")
    trace = trace_memory(only=only)
    error, exit_code = None, 0
    with _as_main(script, args):
        try:
            with trace:
                runpy.run_path(str(script), run_name="__main__")
        except SystemExit as ending:
            error, exit_code = _exit(ending)
        except BaseException as raised:  # Ctrl-C too: what was traced until then is what was asked for
            error, exit_code = _users_traceback(raised, script), 130 if isinstance(raised, KeyboardInterrupt) else 1
    return replace(trace.record, error=error, exit_code=exit_code)


@contextmanager
def _as_main(script: Path, args: list[str]) -> Iterator[None]:
    argv, path = sys.argv[:], sys.path[:]
    sys.argv[:] = [str(script), *args]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv[:], sys.path[:] = argv, path


def _exit(ending: SystemExit) -> tuple[str | None, int]:
    """As python does: None is 0, a number itself, anything else is shown and means 1."""
    if ending.code is None or isinstance(ending.code, int):
        return None, ending.code or 0
    return str(ending.code), 1


def _users_traceback(error: BaseException, script: Path) -> str:
    """From the script's own first frame on; a script that does not compile has none."""
    report = traceback.TracebackException.from_exception(error)
    files = [frame.filename for frame in report.stack]
    first = files.index(str(script)) if str(script) in files else len(files)
    report.stack = traceback.StackSummary.from_list(report.stack[first:])
    return "".join(report.format())


class CudaMeter:
    """Of the device that is current when CUDA is first seen in use; its allocator's peak counter is started anew."""

    def __init__(self) -> None:
        self.device: str | None = None

    def read(self) -> CudaReading | None:
        if self.device is None:
            if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                return None
            self.device = f"cuda:{torch.cuda.current_device()}"
        # The flat `memory_stats` sorts 100 figures for every question.
        allocated = torch.cuda.memory_stats_as_nested_dict(self.device)["allocated_bytes"]["all"]
        return CudaReading(int(allocated["current"]), int(allocated["peak"]))

    def restart_peak(self) -> None:
        if self.device is not None:
            torch.cuda.reset_peak_memory_stats(self.device)
