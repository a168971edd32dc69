"""Host memory of this very process: resident now, its high-water mark, freed heap given back, growth limited.

What the machine and its limits leave is `loadtune.host.memory`'s to say.
"""

import contextlib
import ctypes
import resource
from collections.abc import Iterator
from pathlib import Path

from loadtune.host.processes import field_bytes

_PROC = Path("/proc/self")


def rss_bytes() -> int:
    """Resident memory right now; 0 where the platform does not say."""
    return status_bytes("VmRSS") or 0


class PeakRss:
    """The kernel's high-water mark of resident memory, started anew where that works.

    Where it does not, a mark that has risen since is still the peak; one that has not only bounds it, and what is
    resident at the time of reading has to do.
    """

    def __init__(self) -> None:
        self._stale = 0

    def reset(self) -> None:
        """Start the mark anew (``5`` does that, see proc(5)); sandboxes may refuse, or ignore it."""
        with contextlib.suppress(OSError):
            (_PROC / "clear_refs").write_text("5")
        mark = status_bytes("VmHWM") or 0
        # Believed where it came down to what is resident: a stale mark would be some earlier, larger batch's.
        # 5%: the two numbers are read one after the other.
        self._stale = 0 if mark <= rss_bytes() * 1.05 else mark

    def read_bytes(self) -> int:
        """The highest since `reset`."""
        mark = status_bytes("VmHWM") or 0
        return max(mark if mark > self._stale else 0, rss_bytes())


@contextlib.contextmanager
def growth_limited(num_bytes: int) -> Iterator[None]:
    """Refuse private memory beyond what is mapped now and `num_bytes`: allocations fail instead of being killed for.

    The limit is on what is mapped (VmData, since Linux 4.7), not on what is touched, so what was mapped earlier and
    never touched may be touched on top: 0.25 GiB, with torch 2.15 and 2 threads. Nothing is limited where
    the kernel does not count it, and nothing is loosened that somebody else has set.
    """
    mapped = status_bytes("VmData")
    if mapped is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # Below 0 stands for none, as in RLIM_INFINITY.
    limit = min(limit for limit in (mapped + max(0, num_bytes), soft, hard) if limit >= 0)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def give_back_memory() -> None:
    """Return freed heap to the system, so that one batch's peak does not stand in the next one's (glibc only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def status_bytes(field: str) -> int | None:
    """A field of ``/proc/self/status``. None: not there."""
    return field_bytes(_PROC / "status", field)
