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
from loadtune.footprint.trace.shown import trace_json, trace_text, traced, traced_line
from loadtune.footprint.trace.tensors import TensorWatch
from loadtune.footprint.trace.visits import Ledger, Visit
from loadtune.records.trace import MemoryTrace, TracedLine

_running = threading.Lock()
"""One trace at a time in a process: the allocator's peak counter and the optimizers' hook are the process's."""


def trace_memory(*, only: Only = None) -> "Tracing":
    """Trace memory source line by source line in the ``with`` block and the functions it calls, in this thread.

    ``only``: a file, a folder or several; what others do counts for the nearest calling line among them. Default: all
    files outside of site-packages and the standard library. A training step takes several times as long meanwhile (see
    ``benchmarks/trace_cost.py``); outside of the block nothing is patched and nothing costs. On a GPU the allocator's
    peak counter is started anew at every line. Raises UsageError inside another trace.
    """
    return Tracing(KeptFiles(only), CudaMeter())


class Tracing:
    """What ``with trace_memory() as trace`` gives: readable meanwhile and afterwards."""

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
        """All of it as a record; inside the block, the lines that have ended so far."""
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
                "trace_memory() was entered while a trace is running, or a second time. One trace at a time is"
                " possible in a process, each from a trace_memory() call of its own. Leave the inner one out: the outer"
                " one follows the functions it calls."
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
