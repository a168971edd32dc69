"""Training steps under one recipe, from the initial weights. And steps on one resident batch: uncounted ones that warm
up, timed ones that no loader can beat, those that show what memory a batch size takes, and one that is watched
operation by operation, for the account of a step. Knows nothing of loaders or requests.
"""

import copy
import math
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from loadtune.errors import TrainingError
from loadtune.footprint.account import AllocatorLog, Claim, StepWatch
from loadtune.records.config import MemoryFormat, Recipe
from loadtune.records.measurement import MEMORY_KINDS, TrialFailure, Window
from loadtune.records.memory import NUM_STEPS, AllocationTrace, BatchTry, FitReport, StepAccount
from loadtune.training.failures import classify_error, increase
from loadtune.training.memory import DeviceMemory
from loadtune.training.process import Line
from loadtune.units import bytes_text
from loadtune.workload.batches import PAIR, Batch, Places, is_pair, leaf_tensors, moved, own_structure, sample_shape
from loadtune.workload.build import AUTOCAST_DTYPES, Workload, make_optimizer

# Never in a measured run: the scale only halves, once for each skipped step, and so skipped steps can be counted.
_NO_SCALE_GROWTH = 1_000_000


class ResidentModel:
    """The workload's model on the device; each run starts it again from the same weights."""

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self.device = device
        self._initial: dict[str, Any] = copy.deepcopy(workload.model.state_dict())  # stays on the CPU
        self.module = workload.model.to(device)
        self.optimizer: torch.optim.Optimizer | None = None
        """Of the run that goes on. None: there is none, or the user's script holds it."""

    def reset(self, memory_format: MemoryFormat) -> None:
        """Initial weights, in this memory format, without gradients, ready to train."""
        self.module.zero_grad(set_to_none=True)
        layout = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            if tensor.dim() == 4:  # always anew: strides of 1×1 weights count as both layouts, and cuDNN looks at them
                tensor.data = torch.empty_like(tensor, memory_format=layout).copy_(tensor.data)
        self.module.load_state_dict(self._initial)
        self.module.train()

    def drop(self) -> None:
        """Let go of what a run left: gradients and the optimizer's state. The model stays."""
        self.module.zero_grad(set_to_none=True)
        if self.optimizer is not None:
            self.optimizer.state.clear()
            self.optimizer = None


class Trainer:
    """One run of steps: fresh weights, a fresh optimizer and, for fp16, a fresh scaler. The model's `drop` ends it."""

    def __init__(
        self,
        model: ResidentModel,
        recipe: Recipe,
        workload: Workload,
        *,
        sums_losses: bool = False,
        places: Places = PAIR,
        batch_size: int = 1,
    ) -> None:
        """``sums_losses``: for `loss_is_finite`; not where the memory of a step is measured, because the sum takes
        some. ``places``: where batches keep their samples; ``batch_size``: how many those have that do not tell."""
        torch.manual_seed(workload.spec.seed)
        self.device, self.places, self.recipe = model.device, places, recipe
        self.module = model.module
        """What is trained."""
        self.accumulate = workload.spec.accumulate
        """Batches whose gradients are summed before the optimizer steps."""
        self._model, self.batch_size = model, batch_size
        self.workload = workload
        self._num_summed = 0
        self._losses: dict[torch.device, torch.Tensor] | None = {} if sums_losses else None
        self._scaler: torch.amp.GradScaler | None = None
        self._begin()

    def _begin(self) -> None:
        self._model.reset(self.recipe.memory_format)
        if scaled := self.recipe.precision == "fp16":
            self._scaler = torch.amp.GradScaler(self.device.type, growth_interval=_NO_SCALE_GROWTH)
        fused = self.recipe.fused_optimizer
        self._optimizer = make_optimizer(self.workload.optimizer, self.module, fused=fused, scaled=scaled)
        self._model.optimizer = self._optimizer

    def state_tensors(self) -> list[torch.Tensor]:
        """The optimizer's and the gradient scaler's own, wherever they lie; empty before the first step."""
        scaler = {} if self._scaler is None else vars(self._scaler)
        return leaf_tensors([list(self._optimizer.state.values()), list(scaler.values())])

    def num_samples(self, batch: Batch) -> int:
        """Samples of this batch: those that were collated where it does not tell."""
        return self.places.num_samples(batch) if self.places.count else self.batch_size

    def to_device(self, batch: Batch) -> Batch:
        """The batch where and how the model wants it; a pinned one is copied without waiting."""
        channels_last = self.recipe.memory_format == "channels_last"

        def laid_out(tensor: torch.Tensor) -> torch.Tensor:
            images = tensor.layout is torch.strided and tensor.dim() == 4 and tensor.is_floating_point()
            layout = torch.channels_last if channels_last and images else torch.preserve_format
            return tensor.to(self.device, non_blocking=True, memory_format=layout)

        return moved(batch, self.device, laid_out)

    def receive(self, batch: Batch) -> Batch:
        """What a loader delivered, on the device and ready to be trained on."""
        batch = self.to_device(batch)
        for change in self.workload.on_device:
            batch = change(batch)
        return self.to_device(batch) if self.workload.on_device else batch

    def step(self, batch: Batch) -> None:
        """Forward and backward pass on a batch on the device, the optimizer's step where it is due. Does not wait."""
        if self._num_summed == 0:
            self._optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = self.workload.compute_loss(self.module, batch)
        if self._losses is not None:  # a number, or a tensor that holds one; the device is not waited for
            value = torch.as_tensor(loss, dtype=torch.float64).detach().reshape(())
            self._losses[value.device] = value + self._losses.get(value.device, 0.0)
        if self.accumulate > 1:
            loss = loss / self.accumulate
        torch.autograd.backward(loss if self._scaler is None else self._scaler.scale(loss))
        self._num_summed = (self._num_summed + 1) % self.accumulate
        if self._num_summed > 0:
            return
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()

    def evaluate(self, batch: Batch) -> None:
        """A forward pass in evaluation mode, without gradients; training mode again afterwards."""
        self.module.eval()
        try:
            with torch.no_grad(), self._autocast():
                if self.workload.loss_takes == "batch" or not is_pair(batch):
                    self.workload.compute_loss(self.module, batch)
                else:
                    self.module(own_structure(batch[0]))
        finally:
            self.module.train()

    def _autocast(self) -> torch.autocast:
        dtype = AUTOCAST_DTYPES[self.recipe.precision]
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def loss_is_finite(self) -> bool | None:
        """Whether every step's loss so far was finite, as their sum is. Waits for the device. None: none was summed."""
        return all(math.isfinite(total.item()) for total in self._losses.values()) if self._losses else None

    def num_halvings(self) -> float:
        """How often the scaler has halved its scale so far: once for each skipped step. Waits for the device."""
        if self._scaler is None:
            return 0.0
        scale = self._scaler.get_scale()
        # Below the smallest float the scale is 0 and stays there: every step since is a skipped one, uncounted.
        return -math.log2(scale) if scale > 0 else math.inf


# On one resident batch

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
