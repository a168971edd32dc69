"""What killed processes leave behind: shared-memory segments, and members of their group that are not dead yet.

A DataLoader worker makes each batch in a segment of /dev/shm that it names after its own process id and unlinks a
moment later. One that is killed in between leaves the segment, up to a whole batch of RAM, until the machine restarts.
So whoever kills workers takes away what they had not yet unlinked. Needs no torch.
"""

import contextlib
import errno
import fcntl
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from loadtune.errors import harmless

PROC, SHM = Path("/proc"), Path("/dev/shm")

_DEATH_S = 10.0
"""For killed processes to be gone, and for a tracker that only just starts: up to 4 s beside 90 busy processes."""

_DEAD = ("Z", "X")
_TRACKER = b"multiprocessing.resource_tracker"

_ending: set[int] = set()


def group_members(group: int, proc: Path = PROC, *, dead: bool = False) -> set[int]:
    """Ids of the living processes of a group, and with `dead` of those that nobody has reaped yet."""
    pids = [int(entry.name) for entry in proc.glob("[0-9]*")]
    return {
        pid for pid in pids if (found := _stat(pid, proc)) and found[1] == group and (dead or found[0] not in _DEAD)
    }


def answer_for(pids: Iterable[int]) -> None:
    """Remember these processes as being ended, so that a `kill_group` that comes first removes their segments, too."""
    _ending.update(pids)


def kill_group(group: int, *, spare: int | None = None) -> None:
    """Kill a group's members, wait until they are gone, take away what they left. `spare` is left alive.

    multiprocessing's resource tracker is not killed: it unlinks the semaphores of the others once they ended, and ends.
    """
    ended = group_members(group, dead=True) | _ending
    killed: set[int] = set()
    trackers: set[int] = set()
    deadline = time.monotonic() + _DEATH_S
    while (members := group_members(group) - {spare}) and time.monotonic() < deadline:  # one may just be born
        for pid in members - killed - trackers:
            if _TRACKER in _command(pid):
                trackers.add(pid)
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        if spare is not None and members <= trackers:
            break
        time.sleep(0.005)
    remove_segments(ended | killed)


def remove_segments(pids: Iterable[int], folder: Path = SHM) -> None:
    """Unlink the segments of these processes; of one that still lives, none: it does so itself."""
    for pid in pids:
        if not is_alive(pid):
            for segment in folder.glob(f"torch_{pid}_*"):
                with harmless():
                    _remove(segment)
            _ending.discard(pid)


def _remove(segment: Path) -> None:
    """Where containers share /dev/shm it may be another container's or user's, with the same process id. Raises OSError
    where this process may not open or unlink it. A lease is granted for one's own file that nobody has open or mapped.
    """
    with segment.open("r+b") as opened:
        try:
            fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:  # other errors: there are no leases here
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return
    segment.unlink()


def is_alive(pid: int) -> bool:
    found = _stat(pid, PROC)
    return found is not None and found[0] not in _DEAD


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes()
    return b""


def _stat(pid: int, proc: Path) -> tuple[str, int] | None:
    """State and process group from ``/proc/PID/stat``; the name in brackets before them may hold anything."""
    try:
        state, _, group = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return None
    return state, int(group)
