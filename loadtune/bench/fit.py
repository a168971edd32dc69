"""Try one batch size: a few real steps from a fresh state, and what memory they took."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace

from loadtune.bench.allocations import AllocationRecorder
from loadtune.bench.circumstances import increase
from loadtune.bench.failures import classify_error
from loadtune.bench.line import Line
from loadtune.bench.memory import DeviceMemory
from loadtune.bench.training import Trainer
from loadtune.records import MEMORY_KINDS, FitReport, TrialFailure
from loadtune.units import bytes_text
from loadtune.workload import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What comes before the last of the training steps: an evaluation pass and, where there is one, a partial batch."""

    partial_batch_size: int | None = None
    """The dataset's last batch. None: nothing that trains is left over."""


def try_steps(
    trainer: Trainer,
    make_batch: Callable[[int], Batch],
    batch_size: int,
    num_steps: int,
    memory: DeviceMemory,
    line: Line,
    *,
    recorder: AllocationRecorder,
    verification: Verification | None = None,
) -> FitReport:
    """Train; peaks of the first step, in which the optimizer's state appears, and of the later ones apart.

    ``make_batch``: number of samples → a batch on the device.
    """
    begun = time.monotonic()
    budget = memory.budget_bytes()
    with memory.capped(), recorder.recording():
        steps = _Steps(trainer, make_batch, batch_size, memory, line, recorder)
        if verification is None:
            steps.train(num_steps)
            report = steps.report(budget)
        else:
            report = _verified(steps, num_steps, verification, budget)
    return replace(report, allocations=recorder.trace, seconds=time.monotonic() - begun)


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
        self.trainer, self.memory, self.line = trainer, memory, line
        self.make_batch, self._batch_size = make_batch, batch_size
        self._recorder = recorder
        self.retries_before = memory.num_retries()
        memory.reset_peaks()
        line.enter("first step")
        self.batch = make_batch(batch_size)
        self.step_s: float | None = None
        self.first_peak = 0
        self.steady_peak: int | None = None
        self.reserved_peak: int | None = None
        self.last_retries: int | None = None

    def train(self, num_steps: int) -> None:
        """The first step, then the steady ones, their peaks apart."""
        self.step(self.batch)  # not timed: it loads kernels, makes the optimizer's state and compiles
        self.first_peak = self.memory.peak_bytes()
        self.reserved_peak = self.memory.peak_reserved_bytes()
        if num_steps > 1:
            self.go_on(num_steps - 1)

    def go_on(self, num_steps: int) -> None:
        """More full steps."""
        self.memory.reset_peaks()
        self.line.enter("steady steps")
        for _ in range(num_steps):
            took_s = self.step(self.batch)
            self.step_s = took_s if self.step_s is None else min(took_s, self.step_s)
        self.steady_peak = _larger(self.steady_peak, self.memory.peak_bytes())
        self.reserved_peak = _larger(self.reserved_peak, self.memory.peak_reserved_bytes())

    def step(self, batch: Batch) -> float:
        """One step, finished, and its seconds."""
        self._recorder.mark()
        retries, started = self.memory.num_retries(), time.monotonic()
        for _ in range(self.trainer.accumulate):  # to the optimizer's own step, which makes its state
            self.trainer.step(batch)
        self.trainer.synchronize()
        took_s = (time.monotonic() - started) / self.trainer.accumulate
        self.last_retries = increase(retries, self.memory.num_retries())
        self.line.pulse()
        return took_s

    def report(self, budget: int) -> FitReport:
        """What the training steps took."""
        return FitReport(
            precision=self.trainer.precision,
            batch_size=self._batch_size,
            failure=_over_budget(max(self.first_peak, self.steady_peak or 0), budget, self.line.phase),
            first_step_peak_bytes=self.first_peak,
            steady_peak_bytes=self.steady_peak,
            reserved_peak_bytes=self.reserved_peak,
            outside_bytes=self.memory.outside_bytes(),
            num_alloc_retries=increase(self.retries_before, self.memory.num_retries()),
            budget_bytes=budget,
            step_s=self.step_s,
        )


def _verified(steps: _Steps, num_steps: int, verification: Verification, budget: int) -> FitReport:
    """Evaluation and partial batch before the last full step: what an epoch's end does to the allocator's cache."""
    steps.train(max(1, num_steps - 1))
    steps.memory.reset_peaks()
    steps.line.enter("evaluation")
    evaluation_peak = _evaluate(steps)
    partial = verification.partial_batch_size
    if partial is not None:
        steps.line.enter("partial batch")
        steps.step(steps.make_batch(partial))
    steps.go_on(1)
    return replace(
        steps.report(budget),
        evaluation_peak_bytes=evaluation_peak,
        partial_batch_size=partial,
        num_steady_retries=steps.last_retries,
    )


def _evaluate(steps: _Steps) -> int | None:
    """Peak of a forward pass in evaluation mode. None: the model has none, which is no matter of memory."""
    try:
        steps.trainer.evaluate(steps.batch)
        steps.trainer.synchronize()
    except Exception as error:
        if classify_error(error) in MEMORY_KINDS:
            raise
        traceback.print_exc()  # into the log
        return None
    finally:
        steps.line.pulse()
    return steps.memory.peak_bytes()


def _larger(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _over_budget(peak: int, budget: int, phase: str) -> TrialFailure | None:
    """A CUDA step over its budget raises; on a CPU it runs, into swap or into memory that others need."""
    if peak <= budget:
        return None
    message = f"Trained, but its peak of {bytes_text(peak)} is above the {bytes_text(budget)} this process may take."
    return TrialFailure(kind="oom", phase=phase, message=message)
