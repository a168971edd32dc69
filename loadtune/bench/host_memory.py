"""Host memory of this process and what it may still take. Parsers are apart from reads, so tests feed them text.

A reader of its own because the bench asks in the middle of a step, where it wants one number and no library.
"""

import contextlib
import ctypes
from pathlib import Path

_PROC = Path("/proc/self")


def status_bytes(status: str, field: str) -> int | None:
    """A field of ``/proc/self/status`` or ``/proc/meminfo``, which count in kB. None: not there."""
    for line in status.splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    return None


def rss_bytes() -> int:
    """Resident memory right now; 0 where the platform does not say."""
    return status_bytes(_read(_PROC / "status"), "VmRSS") or 0


class PeakRss:
    """The kernel's high-water mark of resident memory, where it can be started anew; else what is resident now."""

    def __init__(self) -> None:
        self._trusted = False

    def reset(self) -> None:
        """Start the mark anew (``5`` does that, see proc(5)); sandboxes may refuse, or ignore it."""
        with contextlib.suppress(OSError):
            (_PROC / "clear_refs").write_text("5")
        mark = status_bytes(_read(_PROC / "status"), "VmHWM")
        # Trusted only where it came down to what is resident: a stale mark would be some earlier, larger batch's.
        # 5%: the two numbers are read one after the other.
        self._trusted = mark is not None and mark <= rss_bytes() * 1.05

    def read_bytes(self) -> int:
        """The highest since `reset`."""
        mark = status_bytes(_read(_PROC / "status"), "VmHWM") if self._trusted else None
        return max(mark or 0, rss_bytes())


def give_back_memory() -> None:
    """Return freed heap to the system, so that one batch's peak does not stand in the next one's (glibc only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def capacity_bytes() -> int:
    """RAM limit in force: physical memory, or the cgroup's limit where that is less."""
    total = status_bytes(_read(Path("/proc/meminfo")), "MemTotal") or 0
    return min([total, *(limit for limit, _ in _cgroup_limits())])


def budget_bytes() -> int:
    """What this process may have at most: its own memory and all that is still free within the limits."""
    available = status_bytes(_read(Path("/proc/meminfo")), "MemAvailable") or 0
    room = [available, *(limit - used for limit, used in _cgroup_limits())]
    return rss_bytes() + max(0, min(room))


def cgroup_folders(membership: str, root: Path) -> list[Path]:
    """Folders that may limit memory, from the text of ``/proc/self/cgroup``: our own and all above it, v1 and v2."""
    folders: list[Path] = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base = root / "memory" if controllers else root
        folder = base / path.lstrip("/")
        folders += [folder, *(parent for parent in folder.parents if parent.is_relative_to(base))]
    return [*dict.fromkeys(folders)]


def _cgroup_limits() -> list[tuple[int, int]]:
    """(limit, used) of every folder that sets one; cache that the kernel would drop does not count as used."""
    limits = []
    for folder in cgroup_folders(_read(_PROC / "cgroup"), Path("/sys/fs/cgroup")):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            limits.append((limit, max(0, used - _droppable(folder))))
    return limits


def _droppable(folder: Path) -> int:
    words = dict(line.split()[:2] for line in _read(folder / "memory.stat").splitlines() if len(line.split()) >= 2)
    return int(words.get("total_inactive_file", words.get("inactive_file", 0)))


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None  # v2 writes "max" where there is no limit


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
