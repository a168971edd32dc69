"""The account of one training step, measured on the device: whose memory was in use when most of it was.

In: a trainer, a batch, the allocator's books. Out: a `StepAccount`. The peak itself is read in steps that
nobody watches. A further step is watched operation by operation. Every block in use at its peak is put down to the
tensor that owned it. No line is what the others leave over.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from loadtune.errors import TrainingError
from loadtune.footprint.account import Claim, Event, Mark, PeakLines, StepWatch
from loadtune.records.footprint import StepAccount
from loadtune.training.memory import DeviceMemory
from loadtune.training.protocol import Line
from loadtune.training.steps import MAX_EVENTS, history_kept, history_of, warm_up
from loadtune.training.trainer import Trainer
from loadtune.workload import Batch


class AllocatorLog:
    """Of one CUDA device, under PyTorch's native allocator. Positions count events since `kept` was entered."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._begun = self._start = 0

    @contextmanager
    def kept(self) -> Iterator[None]:
        torch.cuda.synchronize(self.device)
        with history_kept():
            self._begun = len(history_of(self.device))
            self._start = 0
            self._start = self.mark().position
            yield

    def mark(self) -> Mark:
        stats = torch.cuda.memory_stats_as_nested_dict(self.device)
        count = stats["allocation"]["all"]
        handed_out, asked_for = (stats[name]["all"]["current"] for name in ("allocated_bytes", "requested_bytes"))
        return Mark(count["allocated"] + count["freed"] - self._start, handed_out - asked_for)

    def address_of(self, tensor: torch.Tensor) -> int | None:
        """None: it does not lie on this device, or not in one block."""
        is_here = tensor.device.type == self.device.type and tensor.layout == torch.strided
        return tensor.untyped_storage().data_ptr() if is_here else None

    def standing(self) -> dict[int, int]:
        """Address → bytes asked for, of every block in use."""
        snapshot, own = torch.cuda.memory._snapshot(self.device), self.device.index or 0
        blocks = (block for segment in snapshot["segments"] if segment["device"] == own for block in segment["blocks"])
        return {block["address"]: block["requested_size"] for block in blocks if block["state"] == "active_allocated"}

    def events(self) -> list[Event]:
        """All since `kept` was entered. Raises TrainingError where some are missing."""
        torch.cuda.synchronize(self.device)
        history = history_of(self.device)
        events = [  # those that the allocator counts: a request to give back lowers what is in use
            Event(entry["addr"], entry["size"] if entry["action"] == "alloc" else 0)
            for entry in history[self._begun :]
            if entry["action"] in ("alloc", "free_requested")
        ]
        if len(history) >= MAX_EVENTS or len(events) != self.mark().position:
            raise TrainingError(
                f"PyTorch's history of the allocator holds {len(events)} events where its counters say "
                f"{self.mark().position}: it cannot be accounted for. `loadtune memory --device cpu` estimates it."
            )
        return events

    def give_back_workspaces(self) -> None:
        """What libraries keep from one operation to the next goes back to the allocator."""
        torch.cuda.synchronize(self.device)
        torch._C._cuda_clearCublasWorkspaces()


_TIMED_STEPS = 5


class StepMeter:
    """Measures one trainer's step on one batch. The trainer is closed by it."""

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
        self._memory.reset_peaks()
        seconds = [self._step() for _ in range(_TIMED_STEPS)]
        peak, reserved = self._memory.peak_bytes(), self._memory.peak_reserved_bytes()
        self._line.enter("watched step")
        lines = self._watched_step()
        outside = self._memory.outside_bytes()
        self._trainer.close()
        return StepAccount(
            **step,
            estimated=False,
            largest=lines.largest,
            at_peak=lines.at_peak,
            peak_bytes=peak,
            fragmentation_bytes=None if reserved is None else reserved - peak,
            outside_bytes=outside,
            step_s=statistics.median(seconds),
        )

    def _step(self) -> float:
        """Seconds."""
        started = time.monotonic()
        self._trainer.step(self._batch)
        self._trainer.synchronize()
        self._line.pulse()
        return time.monotonic() - started

    def _watched_step(self) -> PeakLines:
        trainer = self._trainer
        with self._log.kept():
            watch = self._watch = StepWatch(self._log)
            standing = self._log.standing()
            watch.claim_owned(trainer.module, trainer.state_tensors(), self._batch)
            try:
                with torch.autograd.graph.saved_tensors_hooks(watch.keep, lambda packed: packed), watch:
                    self._step()
            finally:
                self._watch = None
            # Gradients and state that this step made.
            watch.claim_owned(trainer.module, trainer.state_tensors(), self._batch)
            end = self._log.mark().position
            self._log.give_back_workspaces()
            events = self._log.events()
        kept = [Claim(end, event.address, "workspace_bytes") for event in events[end:] if not event.num_bytes]
        return watch.lines(standing, events[:end], kept)
