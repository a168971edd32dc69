"""Recording what a step asks of CUDA's caching allocator, through PyTorch's own memory history."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from loadtune.host import read_alloc_conf
from loadtune.records import AllocationTrace

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
            self.trace = self._compact(history_of(self._device), begun, idle_bytes)

    def _compact(self, history: list[dict[str, Any]], begun: int, idle_bytes: int) -> AllocationTrace | None:
        if len(history) >= MAX_EVENTS:
            return None  # its beginning was overwritten
        events, starts = compact_events(history[begun:], [mark - begun for mark in self._marks])
        return AllocationTrace(batch_size=self._batch_size, idle_bytes=idle_bytes, events=events, step_starts=starts)


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
