"""Train on real batches and stream windows until the controller has seen enough."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from loadtune.records.measurement import TrainingRun, TrialFailure, Window
from loadtune.stream.torch_private import Depth
from loadtune.training.endless_loader import EndlessLoader, NoBatchError
from loadtune.training.memory import page_lock_s
from loadtune.training.protocol import Line
from loadtune.training.trainer import Trainer
from loadtune.workload import Batch, num_tokens

# A window may grow to this many times its length to span whole rounds of the workers; beyond, it costs more than it
# gives.
_MAX_STRETCH = 4.0


class WindowRule:
    """Ends a window once it is long enough and spans whole rounds of the workers, where that is affordable.

    The loader hands out one slow batch, then N - 1 fast ones; a window that cuts a round is too fast or too slow.
    """

    def __init__(self, window_s: float, num_workers: int) -> None:
        self._window_s = window_s
        self._round = max(1, num_workers)

    def ends(self, elapsed_s: float, num_steps: int) -> bool:
        """Whether the window that took ``num_steps`` steps in ``elapsed_s`` ends here."""
        if num_steps < 1 or elapsed_s < self._window_s:
            return False
        if num_steps % self._round == 0:
            return True
        whole_rounds = math.ceil(num_steps / self._round) * self._round
        return elapsed_s / num_steps * whole_rounds > _MAX_STRETCH * self._window_s


class Marks:
    """What a window's seconds went into: copies, compute, nothing. Each step passes three marks, in this order.

    ``mark`` makes one, ``seconds`` reads what passed between two. On CUDA a mark is an event on the stream, which costs
    the host microseconds and the device nothing; all are read after the synchronisation that ends the window.
    """

    def __init__(
        self,
        mark: Callable[[], Any] = time.monotonic,
        seconds: Callable[[Any, Any], float] = lambda earlier, later: later - earlier,
    ) -> None:
        self._mark, self._seconds = mark, seconds
        self._last = mark()
        self._passed: list[tuple[str, Any]] = []

    def copying(self) -> None:
        """A batch is in hand and will be copied to the device."""
        self._passed.append(("idle_s", self._mark()))

    def stepping(self) -> None:
        """It was copied, or the copy was launched; the step begins."""
        self._passed.append(("copy_s", self._mark()))

    def stepped(self) -> None:
        """The step is done, or launched."""
        self._passed.append(("compute_s", self._mark()))

    def cut(self) -> dict[str, Any]:
        """Seconds of each part since the last cut, under the names that `Window` has for them."""
        parts = {"idle_s": 0.0, "copy_s": 0.0, "compute_s": 0.0}
        for part, mark in self._passed:
            parts[part] += self._seconds(self._last, mark)
            self._last = mark
        self._passed.clear()
        return parts


def marks_for(device: torch.device) -> Marks:
    """Those of this device; made right after a synchronisation, when the first window begins."""
    if device.type != "cuda":
        return Marks()
    stream = torch.cuda.current_stream(device)  # looked up once, not at each mark

    def mark() -> Any:
        return stream.record_event(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]

    return Marks(mark, lambda earlier, later: earlier.elapsed_time(later) / 1000)


def _num_taken(begun: Depth | None, ended: Depth | None, num_steps: int) -> int | None:
    """Batches that the pinning thread took in a window, or else the training process, from those who made them: they
    were handed out, or are there still."""
    if begun is None or ended is None:
        return None
    behind_before, behind = (depth.ready - (depth.untaken or 0) for depth in (begun, ended))
    return num_steps + behind - behind_before


@dataclass(slots=True)
class _Counts:
    """Of one window, while it grows."""

    steps: int = 0
    samples: int = 0
    tokens: int | None = None
    wait_s: float = 0.0
    depths: list[Depth] = field(default_factory=list)
    """Of the queue, before each batch was asked for."""
    untaken: list[int] = field(default_factory=list)
    """Before each batch was asked for and as it was handed out: whoever looked for it has taken all before it."""


def time_training(
    trainer: Trainer, loader: EndlessLoader, window_s: float, line: Line, begins: Callable[[], None]
) -> TrainingRun | TrialFailure:
    """Train on batches of this loader, and stream windows until the controller has seen enough.

    The trainer has to be warm. ``begins`` is called before the first step on a batch of the loader. A failure where an
    epoch has no batch, and where the model was compiled again in a window: its rate would be the compiler's.
    """
    line.enter("first batch")
    try:
        batch = loader.next_batch()
    except NoBatchError as error:
        return TrialFailure(kind="unsupported", phase=line.phase, message=str(error))
    line.enter("training")
    begins()
    _step(trainer, batch, marks_for(trainer.device))  # uncounted: it waited for the first batch
    del batch
    num_compiled = trainer.num_compiled()
    loop, rule = TimedLoop(trainer, loader, line), WindowRule(window_s, loader.config.num_workers)
    windows: list[Window] = []
    while (window := loop.window(rule)) is not None:  # a window that the stop cuts short is dropped
        windows.append(window)
        line.window(window)
    if trainer.num_compiled() > num_compiled:
        message = "torch.compile compiled the model again while it was timed: its shapes change from step to step"
        return TrialFailure(kind="unsupported", phase="training", message=message)
    return TrainingRun(
        windows=tuple(windows),
        first_batch_s=loader.first_batch_s(),
        ready_s=loader.ready_s(),
        workers=loader.shares(),
    )


class _Edge(NamedTuple):
    """What is read where one window ends and the next begins."""

    at_s: float
    ahead: float | None
    depth: Depth | None
    halvings: float
    page_lock_s: float | None
    loss_is_finite: bool | None


class TimedLoop:
    """Training steps in windows that abut: where one ends the next begins. The first begins as this is made."""

    def __init__(self, trainer: Trainer, loader: EndlessLoader, line: Line) -> None:
        self._trainer, self._loader, self._line = trainer, loader, line
        trainer.synchronize()
        self._marks = marks_for(trainer.device)
        self._edge = self._look()

    def _look(self) -> _Edge:
        trainer, loader = self._trainer, self._loader
        at_s, ahead, depth = time.monotonic(), loader.num_ahead(), loader.depth()
        return _Edge(at_s, ahead, depth, trainer.num_halvings(), page_lock_s(trainer.device), trainer.loss_is_finite())

    def window(self, rule: WindowRule) -> Window | None:
        """Train until the rule ends the window. None: the controller has seen enough.

        Where gradients of several batches are summed, a window holds whole rounds of them: each ends with a step of the
        optimizer, and the other batches take less.
        """
        counts = _Counts()
        accumulate = self._trainer.accumulate
        while counts.steps % accumulate or not rule.ends(time.monotonic() - self._edge.at_s, counts.steps):
            if self._line.stop_asked():
                return None
            self._train_step(counts)
        return self._finish(counts)

    def _train_step(self, counts: _Counts) -> None:
        before = self._loader.depth()
        asked = time.monotonic()
        batch = self._loader.next_batch()
        waited = time.monotonic() - asked
        after = self._loader.depth()
        counts.depths += [] if before is None else [before]
        counts.untaken += [depth.untaken for depth in (before, after) if depth and depth.untaken is not None]
        self._loader.waited(waited)
        counts.wait_s += waited
        _step(self._trainer, batch, self._marks)
        counts.steps += 1
        counts.samples += self._trainer.num_samples(batch)
        tokens = num_tokens(batch)
        if tokens is not None:
            counts.tokens = (counts.tokens or 0) + tokens
        self._line.pulse()

    def _finish(self, counts: _Counts) -> Window:
        """End the window with the device idle; what is read afterwards is the next one's time."""
        self._trainer.synchronize()
        begun, ended = self._edge, self._look()
        self._edge = ended
        unpinned = [depth.unpinned for depth in counts.depths if depth.unpinned is not None]
        num_taken = _num_taken(begun.depth, ended.depth, counts.steps)
        locked_s = None
        if begun.page_lock_s is not None and ended.page_lock_s is not None:
            locked_s = ended.page_lock_s - begun.page_lock_s
        return Window(
            start_s=begun.at_s,
            seconds=ended.at_s - begun.at_s,
            num_steps=counts.steps,
            num_samples=counts.samples,
            num_tokens=counts.tokens,
            wait_s=counts.wait_s,
            **self._marks.cut(),
            queue_start=begun.ahead,
            queue_end=ended.ahead,
            num_pinned=num_taken if unpinned else None,
            least_unpinned=min(unpinned, default=None),
            num_taken=num_taken if counts.untaken else None,
            least_untaken=min(counts.untaken, default=None),
            num_skipped_steps=_skipped(begun.halvings, ended.halvings, counts.steps, self._trainer.accumulate),
            page_lock_s=locked_s,
            loss_is_finite=ended.loss_is_finite,
        )


def _step(trainer: Trainer, batch: Batch, marks: Marks) -> None:
    """One step; a function of its own, so that the batch on the device goes with it and not with the next one's."""
    marks.copying()
    on_device = trainer.receive(batch)
    marks.stepping()
    trainer.step(on_device)
    marks.stepped()


def _skipped(before: float, after: float, num_steps: int, accumulate: int) -> int:
    """Steps a window skipped: the scale was halved once for each of the optimizer's, which takes the gradients of
    `accumulate`. A scale that fell to 0 tells no more: all of them."""
    return min(num_steps, accumulate * round(after - before)) if math.isfinite(after) else num_steps
