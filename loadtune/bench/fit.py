"""Try one batch size: a few real steps from a fresh state, and what memory they took."""

import time
from collections.abc import Callable

from loadtune.bench.line import Line
from loadtune.bench.memory import DeviceMemory
from loadtune.bench.training import Trainer
from loadtune.records import FitReport, TrialFailure
from loadtune.workload import Batch


def try_steps(
    trainer: Trainer, make_batch: Callable[[], Batch], num_steps: int, memory: DeviceMemory, line: Line
) -> FitReport:
    """Train; peaks of the first step, in which the optimizer's state appears, and of the later ones apart."""
    begun = time.monotonic()
    budget, retries = memory.budget_bytes(), memory.num_retries()
    with memory.capped():
        memory.reset_peaks()
        line.enter("first step")
        batch = make_batch()
        step_s = _timed_step(trainer, batch, line)
        first, reserved = memory.peak_bytes(), memory.peak_reserved_bytes()
        steady = None
        if num_steps > 1:
            memory.reset_peaks()
            line.enter("steady steps")
            for _ in range(num_steps - 1):
                step_s = _timed_step(trainer, batch, line)
            steady = memory.peak_bytes()
            reserved = _larger(reserved, memory.peak_reserved_bytes())
    now = memory.num_retries()
    return FitReport(
        precision=trainer.precision,
        batch_size=len(batch[0]),
        failure=_over_budget(max(first, steady or 0), budget, line.phase),
        first_step_peak_bytes=first,
        steady_peak_bytes=steady,
        reserved_peak_bytes=reserved,
        num_alloc_retries=None if now is None or retries is None else now - retries,
        budget_bytes=budget,
        step_s=step_s,
        seconds=time.monotonic() - begun,
    )


def _timed_step(trainer: Trainer, batch: Batch, line: Line) -> float:
    started = time.monotonic()
    trainer.step(batch)
    trainer.synchronize()
    line.pulse()
    return time.monotonic() - started


def _larger(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _over_budget(peak: int, budget: int, phase: str) -> TrialFailure | None:
    """A CUDA step over its budget raises; on a CPU it runs, into swap or into memory that others need."""
    if peak <= budget:
        return None
    message = f"Trained, but its peak of {peak} bytes is above the {budget} bytes this process may take."
    return TrialFailure(kind="oom", phase=phase, message=message)
