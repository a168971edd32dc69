"""Train on real batches and stream windows until the controller has seen enough."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from loadtune.records.config import TrialConfig
from loadtune.records.measurement import TrainingRun, TrialFailure, Window
from loadtune.stream.counters import Depth
from loadtune.training.attribution import HostMarks, marks_for
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


class TrainingLoop:
    """Training on batches of a loader for each trial, which goes on until the next one begins."""

    def __init__(self, make_loader: Callable[[TrialConfig], EndlessLoader]) -> None:
        self._make_loader = make_loader
        self._loader: EndlessLoader | None = None

    def time_training(
        self, trainer: Trainer, config: TrialConfig, window_s: float, line: Line, begins: Callable[[], None]
    ) -> TrainingRun | TrialFailure:
        """Go over to this configuration, train, and stream windows until the controller has seen enough.

        The trainer has to be warm. ``begins`` is called before the first step on a batch of this configuration. A
        failure where the model was compiled again in a window: its rate would be the compiler's. Whatever is raised
        ends the loop; the next trial begins another.
        """
        try:
            return self._time_training(trainer, config, window_s, line, begins)
        except NoBatchError as error:
            self.end()
            return TrialFailure(kind="unsupported", phase=line.phase, message=str(error))
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the workers."""
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()

    def _time_training(
        self, trainer: Trainer, config: TrialConfig, window_s: float, line: Line, begins: Callable[[], None]
    ) -> TrainingRun | TrialFailure:
        line.enter("first batch")
        self.end()
        self._loader = self._make_loader(config)
        batch = self._loader.next_batch()
        line.enter("training")
        begins()
        _step(trainer, batch, marks_for(trainer.device))  # uncounted: the wait for it was before the first window
        del batch
        num_compiled = trainer.num_compiled()
        loop = TimedLoop(trainer, self._loader, line)
        rule = WindowRule(window_s, config.loader.num_workers)
        windows: list[Window] = []
        while (window := loop.window(rule)) is not None:  # a window that the stop cuts short is dropped
            windows.append(window)
            line.window(window)
        if trainer.num_compiled() > num_compiled:
            message = "torch.compile compiled the model again while it was timed: its shapes change from step to step"
            return TrialFailure(kind="unsupported", phase="training", message=message)
        return TrainingRun(
            windows=tuple(windows),
            first_batch_s=self._loader.first_batch_s(),
            ready_s=self._loader.ready_s(),
            workers=self._loader.shares(),
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
        parts = self._marks.cut()
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
            copy_s=parts.copy_s,
            compute_s=parts.compute_s,
            idle_s=parts.idle_s,
            queue_start=begun.ahead,
            queue_end=ended.ahead,
            ready=statistics.fmean(depth.ready for depth in counts.depths) if counts.depths else None,
            num_pinned=num_taken if unpinned else None,
            least_unpinned=min(unpinned, default=None),
            num_taken=num_taken if counts.untaken else None,
            least_untaken=min(counts.untaken, default=None),
            num_skipped_steps=_skipped(begun.halvings, ended.halvings, counts.steps, self._trainer.accumulate),
            page_lock_s=locked_s,
            loss_is_finite=ended.loss_is_finite,
        )


def _step(trainer: Trainer, batch: Batch, marks: HostMarks) -> None:
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
