"""The books that CUDA's caching allocator keeps of a step, behind a seam: tests bring their own.

Comes in: a device. Goes out: events, counters, the blocks that stand. A module of its own because nothing else of an
account asks the device.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from loadtune.bench.allocations import MAX_EVENTS, history_kept, history_of
from loadtune.bench.blocks import Event, Mark
from loadtune.errors import BenchError


class AllocatorLog(Protocol):
    """What is asked of an allocator while a step runs. Positions count events since `kept` was entered."""

    device: torch.device

    def kept(self) -> AbstractContextManager[None]: ...

    def mark(self) -> Mark: ...

    def standing(self) -> dict[int, int]:
        """Address → bytes asked for, of every block in use."""
        ...

    def events(self) -> list[Event]:
        """All since `kept` was entered. Raises BenchError where some are missing."""
        ...

    def give_back_workspaces(self) -> None:
        """What libraries keep from one operation to the next goes back to the allocator."""
        ...


class CudaAllocatorLog:
    """Of one CUDA device, under PyTorch's native allocator."""

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

    def standing(self) -> dict[int, int]:
        snapshot = torch.cuda.memory._snapshot(self.device)
        return standing_blocks(snapshot["segments"], self.device.index or 0)

    def events(self) -> list[Event]:
        torch.cuda.synchronize(self.device)
        history = history_of(self.device)
        events = counted_events(history[self._begun :])
        if len(history) >= MAX_EVENTS or len(events) != self.mark().position:
            raise BenchError(
                f"PyTorch's history of the allocator holds {len(events)} events where its counters say "
                f"{self.mark().position}: the step cannot be accounted for. `loadtune memory --estimate` works it out."
            )
        return events

    def give_back_workspaces(self) -> None:
        torch.cuda.synchronize(self.device)
        torch._C._cuda_clearCublasWorkspaces()


def standing_blocks(segments: list[dict[str, Any]], device_index: int) -> dict[int, int]:
    """Of `torch.cuda.memory._snapshot`: those that a tensor or a library has."""
    return {
        block["address"]: block["requested_size"]
        for segment in segments
        if segment["device"] == device_index
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def counted_events(history: list[dict[str, Any]]) -> list[Event]:
    """Those that the allocator counts: asked for and given back; a request to give back lowers what is in use."""
    actions = ("alloc", "free_requested")
    return [
        Event(entry["addr"], entry["size"] if entry["action"] == "alloc" else 0)
        for entry in history
        if entry["action"] in actions
    ]
