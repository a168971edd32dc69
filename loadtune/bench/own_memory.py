"""Host memory of this very process: resident now, its high-water mark, and freed heap given back.

What the machine and its limits leave is `loadtune.host.memory`'s to say. Parsers are apart from reads, so tests feed
them text.
"""

import contextlib
import ctypes
from pathlib import Path

from loadtune.host.cgroup import read_text

_PROC = Path("/proc/self")


def status_bytes(status: str, field: str) -> int | None:
    """A field of ``/proc/self/status``, which counts in kB. None: not there."""
    for line in status.splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    return None


def rss_bytes() -> int:
    """Resident memory right now; 0 where the platform does not say."""
    return _status_bytes("VmRSS") or 0


class PeakRss:
    """The kernel's high-water mark of resident memory, where it can be started anew; else what is resident now."""

    def __init__(self) -> None:
        self._trusted = False

    def reset(self) -> None:
        """Start the mark anew (``5`` does that, see proc(5)); sandboxes may refuse, or ignore it."""
        with contextlib.suppress(OSError):
            (_PROC / "clear_refs").write_text("5")
        mark = _status_bytes("VmHWM")
        # Trusted only where it came down to what is resident: a stale mark would be some earlier, larger batch's.
        # 5%: the two numbers are read one after the other.
        self._trusted = mark is not None and mark <= rss_bytes() * 1.05

    def read_bytes(self) -> int:
        """The highest since `reset`."""
        mark = _status_bytes("VmHWM") if self._trusted else None
        return max(mark or 0, rss_bytes())


def give_back_memory() -> None:
    """Return freed heap to the system, so that one batch's peak does not stand in the next one's (glibc only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _status_bytes(field: str) -> int | None:
    return status_bytes(read_text(_PROC / "status") or "", field)
