"""The context manager: line tracer, tensor watch and allocator readings put together, and all taken away again."""

import sys
import threading
from types import TracebackType
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from loadtune.errors import UsageError
from loadtune.footprint.trace.cuda import CudaMeter, Meter
from loadtune.footprint.trace.files import KeptFiles, Only
from loadtune.footprint.trace.lines import LineTracer
from loadtune.footprint.trace.tensors import TensorWatch
from loadtune.footprint.trace.view import trace_json, trace_text, traced, traced_line
from loadtune.footprint.trace.visits import Ledger, Visit
from loadtune.records.trace import MemoryTrace, TracedLine

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
        self._hook = register_optimizer_step_post_hook(self._after_step)
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

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._watch.name_state(optimizer)

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
