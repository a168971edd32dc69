"""Steps on one resident batch: uncounted ones that warm up, timed ones that no loader can beat, those that show what
memory a batch size takes, and one that is watched operation by operation, for the account of a step."""

import math
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from loadtune.errors import TrainingError
from loadtune.footprint.account import AllocatorLog, Claim, StepWatch
from loadtune.records.measurement import MEMORY_KINDS, TrialFailure, Window
from loadtune.records.memory import NUM_STEPS, AllocationTrace, BatchTry, FitReport, StepAccount
from loadtune.training.failures import classify_error, increase
from loadtune.training.memory import DeviceMemory
from loadtune.training.process import Line
from loadtune.training.trainer import Trainer
from loadtune.units import bytes_text
from loadtune.workload.batches import Batch, sample_shape

# On CUDA the first step chooses kernels (0.1 to 18 s were seen), the second runs with the optimizer's state in place,
# the third with the allocator settled. On a CPU the first step is the only one that differs.
_CUDA_STEPS, _CPU_STEPS = 3, 1
# fp16's scale begins at 2^16 and is halved by each overflow. A model that still overflows at 2^-4 will go on doing so.
_MAX_UPDATES = 20


def warm_up(trainer: Trainer, batch: Batch, line: Line) -> None:
    """Step until a step is as all later ones are. Ends with the device idle."""
    line.enter("warm-up")
    least = _CUDA_STEPS if trainer.device.type == "cuda" else _CPU_STEPS
    for number in range(1, _MAX_UPDATES + 1):
        halvings = trainer.num_halvings()
        for _ in range(trainer.accumulate):  # only the last of them can tell that the scale is too large
            trainer.step(batch)
            trainer.synchronize()
            line.pulse()
        if number * trainer.accumulate >= least and trainer.num_halvings() == halvings:
            break


_NUM_WINDOWS, _MIN_WINDOWS = 4, 2  # that the time is cut into: enough to see whether the rate still drifts


def time_windows(trainer: Trainer, batch: Batch, seconds: float, line: Line) -> tuple[Window, ...]:
    """Windows that abut, for about ``seconds`` in all; two at the least, however long they take. Where gradients of
    several batches are summed, each window holds whole rounds of them."""
    line.enter("compute")
    trainer.synchronize()
    begun = start = line.now()
    window_s, planned, windows = seconds / _NUM_WINDOWS, trainer.accumulate, list[Window]()
    # Half a window short of the end is close enough to it: a further one would overshoot by more.
    while len(windows) < _MIN_WINDOWS or start - begun < seconds - window_s / 2:
        window = _window(trainer, batch, start, window_s, planned, line)
        windows.append(window)
        if window.loss_is_finite is False:
            break
        start, planned = window.end_s, round(window_s * window.num_steps / window.seconds)
    return tuple(windows)


def _window(trainer: Trainer, batch: Batch, start: float, at_least_s: float, planned: int, line: Line) -> Window:
    """Steps are planned, not timed one by one, because the host runs many steps ahead of a GPU. Where the plan was too
    short it is made up for."""
    steps = 0
    while steps == 0 or planned > 0:
        planned = trainer.accumulate * max(1, round(planned / trainer.accumulate))
        for _ in range(planned):
            trainer.step(batch)
            line.pulse()
        trainer.synchronize()
        steps += planned
        seconds = line.now() - start
        # Nine tenths are long enough: making up for the rest by a step of its own would only cost a synchronisation.
        planned = 0 if seconds >= 0.9 * at_least_s else math.ceil((at_least_s - seconds) * steps / seconds)
    return Window(
        start_s=start,
        seconds=seconds,
        num_steps=steps,
        num_samples=steps * trainer.num_samples(batch),
        loss_is_finite=trainer.loss_is_finite(),
    )


def try_steps(
    trainer: Trainer, make_batch: Callable[[int], Batch], asked: BatchTry, memory: DeviceMemory, line: Line
) -> FitReport:
    """Train; peaks of the first step, in which the optimizer's state appears, and of the later ones apart.

    ``make_batch``: number of samples → a batch on the device. Where it is to be verified, evaluation and partial batch
    come before the last full step, as at an epoch's end. A step over its budget raises on CUDA; on a CPU it runs and
    counts as failed.
    """
    budget, retries = memory.budget_bytes(), memory.num_retries()
    steps = _Steps(trainer, memory, line)
    num_full = NUM_STEPS - asked.verify
    with memory.capped(), steps.traced(asked):
        with steps.phase("first step"):
            batch = make_batch(asked.batch_size)
            steps.step(batch)  # not timed: it loads kernels and makes the optimizer's state
        steps.go_on(batch, num_full - 1)
        if asked.verify:
            steps.evaluate(batch)
            if asked.partial_batch_size is not None:
                with steps.phase("partial batch"):
                    steps.step(make_batch(asked.partial_batch_size))
            steps.go_on(batch, 1)
        num_retries = increase(retries, memory.num_retries())
    peak, failure = max(steps.peaks_bytes.values()), None
    if peak > budget:
        message = (
            f"Trained, but its peak of {bytes_text(peak)} is above the {bytes_text(budget)} this process may take."
        )
        failure = TrialFailure(kind="oom", phase=line.phase, message=message)
    return FitReport(
        precision=trainer.recipe.precision,
        batch_size=asked.batch_size,
        failure=failure,
        first_step_peak_bytes=steps.peaks_bytes["first step"],
        steady_peak_bytes=steps.peaks_bytes.get("steady steps"),
        reserved_peak_bytes=max(steps.reserved_bytes, default=None),
        num_alloc_retries=num_retries,
        num_steady_retries=steps.last_retries if asked.verify else None,
        budget_bytes=budget,
        step_s=min(steps.took_s, default=None),
        allocations=steps.trace,
    )


class _Steps:
    """On resident batches, with the books kept."""

    def __init__(self, trainer: Trainer, memory: DeviceMemory, line: Line) -> None:
        self._trainer, self._memory, self._line = trainer, memory, line
        self.took_s: list[float] = []
        """Of each steady step."""
        self.peaks_bytes: dict[str, int] = {}
        """By phase."""
        self.reserved_bytes: list[int] = []
        """Peaks of what the allocator held. Empty: it does not tell."""
        self.last_retries: int | None = None
        self._log: AllocatorLog | None = None
        """None: nothing is traced."""
        self._starts: list[int] = []
        """Where in the log steps begin."""
        self.trace: AllocationTrace | None = None
        """None: not asked for, or the device or the allocator's settings give none."""

    @contextmanager
    def traced(self, asked: BatchTry) -> Iterator[None]:
        """The allocator's requests within are kept, where they are asked for."""
        device = self._trainer.device
        # The forecast follows the allocator's default settings. PyTorch is renaming the first variable to the second.
        is_set = any(map(os.environ.get, ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")))
        if not asked.trace or device.type != "cuda" or is_set:
            yield
            return
        idle_bytes, self._log = torch.cuda.memory_reserved(device), AllocatorLog(device)
        with self._log.kept():
            yield
            with suppress(TrainingError):  # its beginning was overwritten
                self.trace = AllocationTrace(
                    batch_size=asked.batch_size,
                    idle_bytes=idle_bytes,
                    events=tuple((each.address, each.num_bytes) for each in self._log.events()),  # `Event` needs torch
                    step_starts=tuple(self._starts),
                )

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Peaks of what is done within are kept."""
        self._memory.reset_peaks()
        self._line.enter(name)
        yield
        self.peaks_bytes[name] = max(self.peaks_bytes.get(name, 0), self._memory.peak_bytes())
        reserved = self._memory.peak_reserved_bytes()
        self.reserved_bytes += [] if reserved is None else [reserved]

    def step(self, batch: Batch) -> float:
        """One step, finished, and its seconds."""
        if self._log is not None:
            self._trainer.synchronize()
            self._starts.append(self._log.mark().position)
        retries, started = self._memory.num_retries(), time.monotonic()
        for _ in range(self._trainer.accumulate):  # to the optimizer's own step, which makes its state
            self._trainer.step(batch)
        self._trainer.synchronize()
        took_s = (time.monotonic() - started) / self._trainer.accumulate
        self.last_retries = increase(retries, self._memory.num_retries())
        self._line.pulse()
        return took_s

    def go_on(self, batch: Batch, num_steps: int) -> None:
        with self.phase("steady steps"):
            self.took_s += [self.step(batch) for _ in range(num_steps)]

    def evaluate(self, batch: Batch) -> None:
        """A forward pass in evaluation mode. The model may have none, which is no matter of memory: no peak then."""
        try:
            with self.phase("evaluation"):
                self._trainer.evaluate(batch)
                self._trainer.synchronize()
        except Exception as error:
            if classify_error(error) in MEMORY_KINDS:
                raise
            traceback.print_exc()  # into the log


_TIMED_STEPS = 5  # for the account of a step


def measure_step(trainer: Trainer, batch: Batch, memory: DeviceMemory, log: AllocatorLog, line: Line) -> StepAccount:
    """The peak is read in steps that nobody watches. A further step is watched operation by operation. Every block in
    use at its peak is put down to the tensor that owned it."""
    warm_up(trainer, batch, line)
    steps = _Steps(trainer, memory, line)
    steps.go_on(batch, _TIMED_STEPS)
    peak, reserved = max(steps.peaks_bytes.values()), max(steps.reserved_bytes, default=None)
    line.enter("watched step")
    with log.kept():
        watch = StepWatch(log)
        standing = log.standing()
        watch.claim_owned(trainer.module, trainer.state_tensors(), batch)
        with torch.autograd.graph.saved_tensors_hooks(watch.keep, lambda packed: packed), watch:
            steps.step(batch)
        watch.claim_owned(trainer.module, trainer.state_tensors(), batch)  # gradients and state that this step made
        end = log.mark().position
        log.give_back_workspaces()
        events = log.events()
    kept = [Claim(end, event.address, "workspace_bytes") for event in events[end:] if not event.num_bytes]
    lines = watch.lines(standing, events[:end], kept)
    spec = trainer.workload.spec
    return StepAccount(
        model=spec.model,
        precision=trainer.recipe.precision,
        optimizer=spec.optimizer,
        batch_size=trainer.batch_size,
        input_shape=sample_shape(batch, trainer.places),
        num_parameters=sum(parameter.numel() for parameter in trainer.module.parameters()),
        estimated=False,
        largest=lines.largest,
        at_peak=lines.at_peak,
        peak_bytes=peak,
        fragmentation_bytes=None if reserved is None else reserved - peak,
        outside_bytes=memory.outside_bytes(),
        step_s=statistics.median(steps.took_s),
    )
