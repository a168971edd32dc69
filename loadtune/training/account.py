"""The account of one training step, measured on the device: whose memory was in use when most of it was.

In: a trainer, a batch, the allocator's books. Out: a `StepAccount`. The peak itself is read in steps that
nobody watches. A further step is watched operation by operation. Every block in use at its peak is put down to the
tensor that owned it. No line is what the others leave over.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from loadtune.footprint.account import Claim, PeakLines, StepWatch
from loadtune.records.footprint import StepAccount
from loadtune.records.measurement import MEMORY_KINDS
from loadtune.training.allocator_log import AllocatorLog
from loadtune.training.failures import classify_error
from loadtune.training.memory import DeviceMemory
from loadtune.training.protocol import Line
from loadtune.training.steps import warm_up
from loadtune.training.trainer import Trainer
from loadtune.workload import Batch

_TIMED_STEPS = 5


class StepMeter:
    """Measures one trainer's step and forward pass on one batch. The trainer is closed by it."""

    def __init__(self, trainer: Trainer, batch: Batch, memory: DeviceMemory, log: AllocatorLog, line: Line) -> None:
        self._trainer, self._batch, self._memory = trainer, batch, memory
        self._log, self._line = log, line
        self._watch: StepWatch | None = None

    def keep(self, tensor: torch.Tensor) -> None:
        """It is kept for the backward pass, by something other than autograd: a checkpoint."""
        if self._watch is not None:
            self._watch.keep(tensor)

    def measure(self, **step: Any) -> StepAccount:
        """``step``: the fields of the account that say what was measured."""
        self._line.enter("warm-up")
        warm_up(self._trainer, self._batch, self._line)
        self._line.enter("steps")
        seconds = self._peaks_of(lambda: self._trainer.step(self._batch), _TIMED_STEPS)
        peak, reserved = self._memory.peak_bytes(), self._memory.peak_reserved_bytes()
        self._line.enter("watched step")
        lines = self._watched(lambda: self._trainer.step(self._batch))
        outside = self._memory.outside_bytes()
        self._line.enter("evaluation")
        self._trainer.close()  # inference has neither gradients nor the optimizer's state
        forward_peak = self._evaluation_peak()
        return StepAccount(
            **step,
            estimated=False,
            largest=lines.largest,
            at_peak=lines.at_peak,
            peak_bytes=peak,
            fragmentation_bytes=None if reserved is None else reserved - peak,
            outside_bytes=outside,
            step_s=statistics.median(seconds),
            forward_only=None if forward_peak is None else self._watched(self._evaluate).at_peak,
            forward_only_peak_bytes=forward_peak,
        )

    def _evaluate(self) -> None:
        self._trainer.evaluate(self._batch)

    def _evaluation_peak(self) -> int | None:
        """Of the second pass. None: the user's loss needs the model in training mode, as of a detection model."""
        try:
            self._run(self._evaluate)
        except Exception as error:
            if classify_error(error) in MEMORY_KINDS:
                raise
            return None
        self._peaks_of(self._evaluate, 1)
        return self._memory.peak_bytes()

    def _run(self, work: Callable[[], None]) -> float:
        started = time.monotonic()
        work()
        self._trainer.synchronize()
        self._line.pulse()
        return time.monotonic() - started

    def _peaks_of(self, work: Callable[[], None], times: int) -> list[float]:
        """Seconds of each; the memory's peaks afterwards are theirs."""
        self._memory.reset_peaks()
        return [self._run(work) for _ in range(times)]

    def _watched(self, work: Callable[[], None]) -> PeakLines:
        trainer = self._trainer
        with self._log.kept():
            watch = self._watch = StepWatch(self._log)
            standing = self._log.standing()
            watch.claim_owned(trainer.module, trainer.state_tensors(), self._batch)
            try:
                with torch.autograd.graph.saved_tensors_hooks(watch.keep, lambda packed: packed), watch:
                    self._run(work)
            finally:
                self._watch = None
            # Gradients and state that this step made.
            watch.claim_owned(trainer.module, trainer.state_tensors(), self._batch)
            end = self._log.mark().position
            self._log.give_back_workspaces()
            events = self._log.events()
        kept = [Claim(end, event.address, "workspace_bytes") for event in events[end:] if not event.num_bytes]
        return watch.lines(standing, events[:end], kept)
