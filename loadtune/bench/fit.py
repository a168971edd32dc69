"""Try one batch size: a few real steps from a fresh state, and what memory they took."""

import time
import traceback
from collections.abc import Callable
from dataclasses import replace

from loadtune.bench.allocator_log import AllocationRecorder
from loadtune.bench.failures import classify_error, increase
from loadtune.bench.memory import DeviceMemory
from loadtune.bench.protocol import Line
from loadtune.bench.training import Trainer
from loadtune.records import MEMORY_KINDS, BatchTry, FitReport, TrialFailure
from loadtune.units import bytes_text
from loadtune.workload import Batch


def try_steps(
    trainer: Trainer, make_batch: Callable[[int], Batch], asked: BatchTry, memory: DeviceMemory, line: Line
) -> FitReport:
    """Train; peaks of the first step, in which the optimizer's state appears, and of the later ones apart.

    ``make_batch``: number of samples → a batch on the device. Where it is to be verified, evaluation and partial batch
    come before the last full step: what an epoch's end does to the allocator's cache.
    """
    budget = memory.budget_bytes()
    recorder = AllocationRecorder(trainer.device, asked.batch_size, on=asked.trace)
    with memory.capped(), recorder.recording():
        steps = _Steps(trainer, make_batch, asked.batch_size, memory, line, recorder)
        steps.train(max(1, asked.num_steps - 1) if asked.verify else asked.num_steps)
        if not asked.verify:
            report = steps.report(budget)
        else:
            memory.reset_peaks()
            line.enter("evaluation")
            evaluation_peak = steps.evaluate()
            if asked.partial_batch_size is not None:
                line.enter("partial batch")
                steps.step(make_batch(asked.partial_batch_size))
            steps.go_on(1)
            report = replace(
                steps.report(budget),
                evaluation_peak_bytes=evaluation_peak,
                partial_batch_size=asked.partial_batch_size,
                num_steady_retries=steps.last_retries,
            )
    return replace(report, allocations=recorder.trace)


class _Steps:
    """Steps on one resident batch, with the books kept."""

    def __init__(
        self,
        trainer: Trainer,
        make_batch: Callable[[int], Batch],
        batch_size: int,
        memory: DeviceMemory,
        line: Line,
        recorder: AllocationRecorder,
    ) -> None:
        self._trainer, self._memory, self._line, self._recorder = trainer, memory, line, recorder
        self._batch_size = batch_size
        self._retries_before = memory.num_retries()
        memory.reset_peaks()
        line.enter("first step")
        self._batch = make_batch(batch_size)
        self._step_s: float | None = None
        self._first_peak = 0
        self._steady_peak: int | None = None
        self._reserved_peak: int | None = None
        self.last_retries: int | None = None

    def train(self, num_steps: int) -> None:
        """The first step, then the steady ones, their peaks apart."""
        self.step(self._batch)  # not timed: it loads kernels, makes the optimizer's state and compiles
        self._first_peak = self._memory.peak_bytes()
        self._reserved_peak = self._memory.peak_reserved_bytes()
        if num_steps > 1:
            self.go_on(num_steps - 1)

    def go_on(self, num_steps: int) -> None:
        """More full steps."""
        self._memory.reset_peaks()
        self._line.enter("steady steps")
        for _ in range(num_steps):
            took_s = self.step(self._batch)
            self._step_s = took_s if self._step_s is None else min(took_s, self._step_s)
        self._steady_peak = max(self._steady_peak or 0, self._memory.peak_bytes())
        reserved = self._memory.peak_reserved_bytes()
        self._reserved_peak = None if reserved is None else max(self._reserved_peak or 0, reserved)

    def step(self, batch: Batch) -> float:
        """One step, finished, and its seconds."""
        self._recorder.mark()
        retries, started = self._memory.num_retries(), time.monotonic()
        for _ in range(self._trainer.accumulate):  # to the optimizer's own step, which makes its state
            self._trainer.step(batch)
        self._trainer.synchronize()
        took_s = (time.monotonic() - started) / self._trainer.accumulate
        self.last_retries = increase(retries, self._memory.num_retries())
        self._line.pulse()
        return took_s

    def evaluate(self) -> int | None:
        """Peak of a forward pass in evaluation mode. None: the model has none, which is no matter of memory."""
        try:
            self._trainer.evaluate(self._batch)
            self._trainer.synchronize()
        except Exception as error:
            if classify_error(error) in MEMORY_KINDS:
                raise
            traceback.print_exc()  # into the log
            return None
        finally:
            self._line.pulse()
        return self._memory.peak_bytes()

    def report(self, budget: int) -> FitReport:
        """What the training steps took. A CUDA step over its budget raises; on a CPU it runs, into swap or into memory
        that others need, and has failed all the same."""
        peak, failure = max(self._first_peak, self._steady_peak or 0), None
        if peak > budget:
            message = (
                f"Trained, but its peak of {bytes_text(peak)} is above the {bytes_text(budget)} this process may take."
            )
            failure = TrialFailure(kind="oom", phase=self._line.phase, message=message)
        return FitReport(
            precision=self._trainer.precision,
            batch_size=self._batch_size,
            failure=failure,
            first_step_peak_bytes=self._first_peak,
            steady_peak_bytes=self._steady_peak,
            reserved_peak_bytes=self._reserved_peak,
            outside_bytes=self._memory.outside_bytes(),
            num_alloc_retries=increase(self._retries_before, self._memory.num_retries()),
            budget_bytes=budget,
            step_s=self._step_s,
        )
