"""Line tracer, tensor watch and allocator readings put together, and all taken away again: for a block, or a script."""

import runpy
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from loadtune.errors import UsageError
from loadtune.footprint.trace.lines import KeptFiles, LineTracer, Only
from loadtune.footprint.trace.records import MemoryTrace, TracedLine
from loadtune.footprint.trace.tensors import TensorWatch
from loadtune.footprint.trace.view import trace_json, trace_text, traced, traced_line
from loadtune.footprint.trace.visits import CudaReading, Ledger, Meter, Visit
from loadtune.host.gpu import read_gpus, read_memory_used_bytes

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
        unattributed = self._watch.unattributed()
        return MemoryTrace(
            device=self._meter.device or "cpu",
            lines=tuple(traced_line(row) for row in list(self._ledger.rows.values())),
            before_bytes=self._before_bytes,
            unattributed=tuple(traced(birth) for birth in unattributed),
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


_NVML_EVERY_S = 0.01
"""NVML holds a driver lock while it answers: while reserved memory does not change, 100 questions a second at most."""


class CudaMeter:
    """Of the device that is current when CUDA is first seen in use; its allocator's peak counter is started anew."""

    def __init__(self) -> None:
        self.device: str | None = None
        self._index = 0
        self._uuid: str | None = None
        self._used: int | None = None
        self._reserved = -1
        self._asked_at = 0.0

    def read(self) -> CudaReading | None:
        if self.device is None and not self._found():
            return None
        # The flat `memory_stats` sorts 100 figures for every question.
        stats = torch.cuda.memory_stats_as_nested_dict(self._index)
        allocated = stats["allocated_bytes"]["all"]
        self._ask_nvml(stats["reserved_bytes"]["all"]["current"])
        return CudaReading(int(allocated["current"]), int(allocated["peak"]))

    def restart_peak(self) -> None:
        if self.device is not None:
            torch.cuda.reset_peak_memory_stats(self._index)

    def used_bytes(self) -> int | None:
        """As NVML answered when reserved memory last changed, or at most 10 ms before the last reading."""
        return self._used

    def _found(self) -> bool:
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return False
        self._index = torch.cuda.current_device()
        gpus = read_gpus()
        self._uuid = gpus[self._index].uuid if self._index < len(gpus) else None
        self.device = f"cuda:{self._index}"
        return True

    def _ask_nvml(self, reserved_bytes: int) -> None:
        now = time.monotonic()
        if self._uuid and (reserved_bytes != self._reserved or now - self._asked_at > _NVML_EVERY_S):
            self._used = read_memory_used_bytes(self._uuid)
            self._reserved, self._asked_at = reserved_bytes, now
