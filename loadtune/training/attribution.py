"""What a window's seconds went into: copies, compute, nothing. Marked in every step, read at the window's end.

A step passes three marks; each closes the part that it ends. On CUDA a mark is an event on the stream, which costs the
host a microsecond and the device nothing, and is read after the window's synchronisation; on a CPU it is the time.
Nothing in here waits for the device while it has something to do.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

# Steps whose events may be outstanding. A CUDA stream holds 1024 launches, then the host waits for it; a step launches
# its three events and a kernel at the very least.
_MAX_STEPS = 256


@dataclass(slots=True)
class Parts:
    """Seconds of one window, as in `Window`."""

    copy_s: float = 0.0
    compute_s: float = 0.0
    idle_s: float = 0.0


class HostMarks:
    """The host's clock: right where the host itself does the work.

    Each step passes `copying`, `stepping` and `stepped`, in this order.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._last, self._parts = now, now(), Parts()

    def copying(self) -> None:
        """A batch is in hand and will be copied to the device."""
        self._passed("idle_s")

    def stepping(self) -> None:
        """It was copied, or the copy was launched; the step begins."""
        self._passed("copy_s")

    def stepped(self) -> None:
        """The step is done, or launched."""
        self._passed("compute_s")

    def cut(self) -> Parts:
        """What was passed since the last cut; called after the synchronisation that ends a window."""
        done, self._parts = self._parts, Parts()
        return done

    def _passed(self, part: str) -> None:
        last, self._last = self._last, self._now()
        self._add(part, self._last - last)

    def _add(self, part: str, seconds: float) -> None:
        setattr(self._parts, part, getattr(self._parts, part) + seconds)


class DeviceMarks(HostMarks):
    """Events in a chain: the device's time from each to the next is one part of a step.

    Events come from a bounded pool and go back to it when they were read: at a cut, or earlier where a window has more
    steps than the pool has room for.
    """

    def __init__(
        self, make_event: Callable[[], torch.Event], stream: torch.Stream | None = None, max_steps: int = _MAX_STEPS
    ) -> None:
        self._make_event = make_event
        self._most = 3 * max_steps
        self._free: list[torch.Event] = []
        self._parts = Parts()
        self._stream = stream
        self._last_read = make_event()
        self._last_read.record(stream)
        self._chain: deque[tuple[str, torch.Event]] = deque()

    def cut(self) -> Parts:
        while self._chain:
            self._read_oldest()
        return super().cut()

    def _passed(self, part: str) -> None:
        if len(self._chain) >= self._most:
            # Of the oldest of many steps: while the host waits for it the device has the others to do.
            self._chain[0][1].synchronize()
            self._read_oldest()
        event = self._free.pop() if self._free else self._make_event()
        event.record(self._stream)
        self._chain.append((part, event))

    def _read_oldest(self) -> None:
        part, event = self._chain.popleft()
        self._add(part, self._last_read.elapsed_time(event) / 1000)
        self._free.append(self._last_read)
        self._last_read = event


def marks_for(device: torch.device) -> HostMarks:
    """Those of this device; made right after a synchronisation, when the first window begins."""
    if device.type != "cuda":
        return HostMarks()
    stream = torch.cuda.current_stream(device)  # looked up once, not at each mark
    return DeviceMarks(lambda: torch.cuda.Event(enable_timing=True), stream)  # type: ignore[no-untyped-call]
