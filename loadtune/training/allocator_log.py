"""What CUDA's caching allocator tells of a step: events, counters, the blocks that stand."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from loadtune.errors import TrainingError
from loadtune.footprint.account import Event, Mark
from loadtune.host import read_alloc_conf
from loadtune.records.memory import AllocationTrace

# Three steps of the models tried came to 5,000 to 11,000 events; a longer trace is cut off, and so not used.
MAX_EVENTS = 400_000


@contextmanager
def history_kept() -> Iterator[None]:
    """PyTorch keeps the allocator's history meanwhile: one a process, which a user's own would share."""
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=MAX_EVENTS)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def history_of(device: torch.device) -> list[dict[str, Any]]:
    """What the allocator did on this device, oldest first; cut off at `MAX_EVENTS`."""
    snapshot = torch.cuda.memory._snapshot(device)
    history: list[dict[str, Any]] = snapshot["device_traces"][device.index or 0]
    return history


class AllocationRecorder:
    """Marks where steps begin; afterwards holds the trace. None: the device or the allocator's settings give none."""

    def __init__(self, device: torch.device, batch_size: int, *, on: bool) -> None:
        self.trace: AllocationTrace | None = None
        self._device, self._batch_size = device, batch_size
        self._marks: list[int] = []
        self._on = on and device.type == "cuda" and read_alloc_conf() is None

    def mark(self) -> None:
        """A training step begins."""
        if self._on:
            torch.cuda.synchronize(self._device)
            self._marks.append(len(history_of(self._device)))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record within this context."""
        if not self._on:
            yield
            return
        idle_bytes = torch.cuda.memory_reserved(self._device)
        with history_kept():
            begun = len(history_of(self._device))
            yield
            torch.cuda.synchronize(self._device)
            history = history_of(self._device)
        if len(history) < MAX_EVENTS:  # else its beginning was overwritten
            events, starts = compact_events(history[begun:], [mark - begun for mark in self._marks])
            self.trace = AllocationTrace(
                batch_size=self._batch_size, idle_bytes=idle_bytes, events=events, step_starts=starts
            )


def compact_events(history: list[dict[str, Any]], marks: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """PyTorch's history as an `AllocationTrace`'s events, and where in them the marked places are."""
    events: list[int] = []
    starts: list[int] = []
    numbers: dict[int, int] = {}  # address → number of the request that lives there
    num_requests = 0
    for at, entry in enumerate(history):
        starts += [len(events)] * (at in marks)
        if entry["action"] == "alloc":
            num_requests += 1
            numbers[entry["addr"]] = num_requests
            events.append(entry["size"])
        elif entry["action"] == "free_completed" and entry["addr"] in numbers:
            events.append(-numbers.pop(entry["addr"]))
    return tuple(events), tuple(starts)


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
