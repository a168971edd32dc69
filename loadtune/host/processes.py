"""What a process and everything it started use, each by its part: CPU time as cores, resident memory.

In: a process id that may change or be None. Out: one `TreeUse` a call. Processes come and go between two looks; one
that is new counts from the moment it is first seen, one that ended until it was last seen. Differences are taken
process by process: the difference of two sums would run backwards when a worker ends.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadtune.host.proc_stat import read_proc_stat
from loadtune.host.process_roles import Role, roles

CHILDREN_EVERY_S = 0.5
"""Finding the children reads every process of the machine: 2 ms at 90 processes, where reading one known process takes
0.03 ms. Workers live for seconds at the least, so half a second loses little of them."""

CHILDREN_SHARE = 0.02
"""On a machine with thousands of processes the search is made rarer, to take at most this share of one core."""


Use = tuple[float, int]
"""CPU seconds so far and resident bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """One process."""

    role: Role
    cores: float | None
    """None: seen for the first time."""
    rss_bytes: int


@dataclass(slots=True)
class _Followed:
    """One process of the tree, and what it had used at the last look."""

    process: Any
    """psutil's: equal when id and start time are."""
    role: Role
    spent_s: float | None = None


class ProcessTree:
    """Reads one tree again and again."""

    def __init__(
        self,
        pid: Callable[[], int | None],
        now: Callable[[], float] = time.monotonic,
        use: Callable[[Any], Use | None] | None = None,
    ) -> None:
        """``use`` reads one process; by default as fast as the platform allows."""
        self._pid = pid
        self._now = now
        self._use = use or (kernels_use if os.path.exists("/proc/self/stat") else psutils_use)
        self._root: Any = None
        self._followed: list[_Followed] = []
        self._looked_s = 0.0
        self._search_due_s = 0.0

    @property
    def processes(self) -> list[Any]:
        """psutil's, as of the last look."""
        return [followed.process for followed in self._followed]

    def of(self, role: Role) -> list[Any]:
        """psutil's, of this role, as of the last look: workers in order of their start."""
        return [followed.process for followed in self._followed if followed.role == role]

    def read(self) -> tuple[ProcessUse, ...]:
        """CPU used since the last call, and memory held now: the root first, workers in order of their start."""
        self._follow()
        now_s = self._now()
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        found, alive = [], []
        for followed in self._followed:
            use = self._use(followed.process)
            if use is None:
                continue
            spent_s, rss_bytes = use
            known = followed.spent_s is not None and elapsed_s > 0
            cores = max(0.0, spent_s - (followed.spent_s or 0.0)) / elapsed_s if known else None
            followed.spent_s = spent_s
            alive.append(followed)
            found.append(ProcessUse(role=followed.role, cores=cores, rss_bytes=rss_bytes))
        self._followed = alive
        return tuple(found)

    def _follow(self) -> None:
        """Go over to another bench at once; look for new workers when that is due."""
        pid = self._pid()
        if pid is None:
            self._root, self._followed = None, []
        elif self._root is None or self._root.pid != pid:
            self._root, self._followed = _process(pid), []
            self._search()
        elif self._now() >= self._search_due_s:
            self._search()

    def _search(self) -> None:
        began_s = time.thread_time()
        spent = {followed.process: followed.spent_s for followed in self._followed}
        self._followed = [_Followed(process, role, spent.get(process)) for process, role in roles(_tree(self._root))]
        took_s = time.thread_time() - began_s
        self._search_due_s = self._now() + max(CHILDREN_EVERY_S, took_s / CHILDREN_SHARE)


def _process(pid: int) -> Any:
    import psutil

    try:
        return psutil.Process(pid)
    except psutil.Error:  # gone already
        return None


def _tree(root: Any) -> list[Any]:
    """The process and all it started, itself first; empty once it is gone."""
    import psutil

    try:
        return [] if root is None else [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def kernels_use(process: Any) -> Use | None:
    """Of one of psutil's processes, from ``/proc``. None: it ended."""
    stat = read_proc_stat(f"/proc/{process.pid}/stat")
    return None if stat is None else (stat.cpu_s, stat.rss_bytes)


def psutils_use(process: Any) -> Use | None:
    """The same, on any platform. None: it ended, or is not ours to read."""
    import psutil

    try:
        times = process.cpu_times()
        return times.user + times.system, int(process.memory_info().rss)
    except psutil.Error:
        return None
