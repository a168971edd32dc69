"""Whether the machine runs out of RAM because of a training process and its workers: asked while a request runs.

The kernel's answer to that is to kill a process, which need not be the one whose memory grew. In: the process id of
their group's leader. Out: `RamShort`, once, when it is time to end them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from loadtune.host.memory import Ram, read_ram
from loadtune.host.processes import anonymous_bytes, proportional_bytes

RESERVE = 0.05
"""Share of the RAM below which is too little: half of what the memory probe leaves alone on a CPU. At most half of what
was available at the start, so that a nearly full machine is of use."""

_EVERY_S = 0.1
"""Between two looks, of 0.3 ms each. Workers were seen to take 2 GB/s."""

_OURS = 0.5
"""Share of what became unavailable since the start that they hold: with less, somebody else takes the RAM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RamShort:
    """RAM is nearly full."""

    grown_bytes: int
    """What the processes took since the start."""
    available_bytes: int
    limit_bytes: int


class RamGuard:
    """One request's. It begins when this is made."""

    def __init__(
        self,
        pid: int,
        ram: Callable[[], Ram] = read_ram,
        held: Callable[[int, Callable[[int], int | None]], int] = lambda pid, of: tree_bytes(pid, of),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pid, self._ram, self._now = pid, ram, now
        self._held = held
        self._begun_bytes = self._held(pid, anonymous_bytes)
        self._available = ram().available_bytes
        self._due_s = 0.0

    def look(self) -> RamShort | None:
        """None: there is RAM enough, or somebody else takes it."""
        now = self._now()
        if now < self._due_s:
            return None
        self._due_s = now + _EVERY_S
        ram = self._ram()
        if ram.available_bytes >= min(RESERVE * ram.limit_bytes, self._available / 2):
            return None
        grown = self._held(self._pid, proportional_bytes) - self._begun_bytes
        if grown < _OURS * (self._available - ram.available_bytes):
            self._due_s = now + 10 * _EVERY_S  # to ask that of every process is dear
            return None
        return RamShort(grown_bytes=grown, available_bytes=ram.available_bytes, limit_bytes=ram.limit_bytes)


def tree_bytes(pid: int, of: Callable[[int], int | None]) -> int:
    """Of a process and all that it started, together."""
    import psutil

    try:
        tree = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:  # it ended
        return 0
    return sum(of(each) or 0 for each in tree)
