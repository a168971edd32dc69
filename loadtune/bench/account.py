"""The account of one training step, measured on the device: whose memory was in use when most of it was.

In: a trainer, a batch, the allocator's books. Out: a `StepAccount`'s figures. The peak itself is read in steps that
nobody watches; a further step is watched operation by operation, and every block in use at its peak is put down to the
tensor that owned it. No line is what the others leave over.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from loadtune.bench.allocator_log import AllocatorLog
from loadtune.bench.blocks import Claim, Event, Kind, Mark, PeakLines, lines_of
from loadtune.bench.failures import classify_error
from loadtune.bench.memory import DeviceMemory
from loadtune.bench.protocol import Line
from loadtune.bench.training import Trainer
from loadtune.records import MEMORY_KINDS, MemoryLines
from loadtune.workload import Batch, tensors_of

# The first step makes the optimizer's state, the second chooses kernels with it in place, the third finds the cache
# settled; a gradient scaler may need more until a step is not skipped, and 16 halvings take its scale to 1.
_WARM_STEPS, _MOST_WARM_STEPS = 3, 20
_TIMED_STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was read and what was watched."""

    lines: PeakLines
    peak_bytes: int
    fragmentation_bytes: int | None
    outside_bytes: int | None
    step_s: float
    forward_only: MemoryLines | None
    forward_only_peak_bytes: int | None


class StepMeter:
    """Measures one trainer's step and forward pass on one batch. The trainer is closed by it."""

    def __init__(self, trainer: Trainer, batch: Batch, memory: DeviceMemory, log: AllocatorLog, line: Line) -> None:
        self._trainer, self._batch, self._memory = trainer, batch, memory
        self._log, self._line = log, line
        self._watch: _StepWatch | None = None

    def keep(self, tensor: torch.Tensor) -> None:
        """It is kept for the backward pass, by something other than autograd: a checkpoint."""
        if self._watch is not None:
            self._watch.claim((tensor,), "activations_bytes")

    def measure(self) -> Measured:
        self._warm_up()
        self._line.enter("steps")
        seconds = self._peaks_of(lambda: self._trainer.step(self._batch), _TIMED_STEPS)
        peak, reserved = self._memory.peak_bytes(), self._memory.peak_reserved_bytes()
        self._line.enter("watched step")
        lines = self._watched(lambda: self._trainer.step(self._batch))
        outside = self._memory.outside_bytes()
        self._line.enter("evaluation")
        self._trainer.close()  # inference has neither gradients nor the optimizer's state
        forward_peak = self._evaluation_peak()
        return Measured(
            lines=lines,
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

    def _warm_up(self) -> None:
        self._line.enter("warm-up")
        for number in range(1, _MOST_WARM_STEPS + 1):
            halvings = self._trainer.num_halvings()
            self._run(lambda: self._trainer.step(self._batch))
            if number >= _WARM_STEPS and self._trainer.num_halvings() == halvings:
                return

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
        with self._log.kept():
            watch = self._watch = _StepWatch(self._log)
            standing = self._log.standing()
            self._claim_owned(watch)
            try:
                with torch.autograd.graph.saved_tensors_hooks(watch.save, lambda packed: packed), watch:
                    self._run(work)
            finally:
                self._watch = None
            self._claim_owned(watch)  # gradients and state that this step made
            end = self._log.mark().position
            self._log.give_back_workspaces()
            events = self._log.events()
        kept: list[Claim] = [
            Claim(end, event.address, "workspace_bytes") for event in events[end:] if not event.num_bytes
        ]
        return watch.lines(standing, events[:end], kept)

    def _claim_owned(self, watch: "_StepWatch") -> None:
        for kind, tensors in owned(self._trainer, self._batch):
            watch.claim(tensors, kind)


def owned(trainer: Trainer, batch: Batch) -> Iterator[tuple[Kind, Iterable[torch.Tensor]]]:
    """What a step finds or leaves, by name."""
    parameters = list(trainer.module.parameters())
    yield "parameters_bytes", parameters
    yield "buffers_bytes", trainer.module.buffers()
    yield "gradients_bytes", (parameter.grad for parameter in parameters if parameter.grad is not None)
    yield "optimizer_state_bytes", trainer.state_tensors()
    yield "input_bytes", tensors_of(batch)


class _StepWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch's own
    """While it is entered: where each operation begins and ends in the books, and whose the blocks are."""

    def __init__(self, log: AllocatorLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log = log
        self._ops: list[tuple[int, int]] = []
        self._claims: list[Claim] = []
        self._marks: list[Mark] = [log.mark()]

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        begin = self._mark().position
        returned = func(*args, **(kwargs or {}))
        self._ops.append((begin, self._mark().position))
        self.claim((leaf for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor)), "temporary_bytes")
        return returned

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        """Autograd keeps it."""
        self.claim((tensor,), "activations_bytes")
        return tensor

    def claim(self, tensors: Iterable[torch.Tensor], kind: Kind) -> None:
        position = self._mark().position
        for tensor in tensors:
            if tensor.device.type == self._log.device.type and tensor.layout == torch.strided:
                self._claims.append(Claim(position, tensor.untyped_storage().data_ptr(), kind))

    def lines(self, standing: dict[int, int], events: list[Event], more: list[Claim]) -> PeakLines:
        return lines_of(standing, events, (*self._claims, *more), self._ops, self._marks)

    def _mark(self) -> Mark:
        self._marks.append(self._log.mark())
        return self._marks[-1]
