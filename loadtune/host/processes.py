"""What a process and everything it started use, each by its part: CPU time as cores, resident memory.

In: a process id that may change or be None. Out: one `ProcessUse` for each process a call, and one for those that came
or went since the last call, such as the decoder that a dataset starts for each sample. Those are seldom seen alive; the
kernel adds the CPU time of one that ended to its parent's account of children.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadtune.host.proc_stat import ProcStat, read_proc_stat
from loadtune.host.process_roles import Role, roles

CHILDREN_EVERY_S = 0.5
"""Finding the children reads every process of the machine: 2 ms at 90 processes, where reading one known process takes
0.03 ms."""

CHILDREN_SHARE = 0.02
"""On a machine with thousands of processes the search is made rarer, to take at most this share of one core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """One process; or, as `other`, all that came or went since the last look."""

    role: Role
    cores: float | None
    """None: seen for the first time."""
    rss_bytes: int | None
    """None: of those that came or went."""


class ProcessTree:
    """Reads one tree again and again."""

    def __init__(
        self,
        pid: Callable[[], int | None],
        now: Callable[[], float] = time.monotonic,
        use: Callable[[Any], ProcStat | None] = lambda process: read_proc_stat(f"/proc/{process.pid}/stat"),
    ) -> None:
        """``use`` reads one of psutil's processes. None: it ended."""
        self._pid = pid
        self._now = now
        self._use = use
        self._root: Any = None
        self._followed: list[tuple[Any, Role]] = []
        self._last: dict[Any, ProcStat] = {}
        """What each had used at the last look."""
        self._unmatched_s = 0.0
        """CPU time of processes that were gone at the last look, and that no parent's account had yet."""
        self._looked_s = 0.0
        self._search_due_s = 0.0

    @property
    def processes(self) -> list[Any]:
        """psutil's, as of the last look."""
        return list(self._last)

    def of(self, role: Role) -> list[Any]:
        """psutil's, of this role, as of the last look: workers in order of their start."""
        return [process for process, its in self._followed if its == role]

    def read(self) -> tuple[ProcessUse, ...]:
        """CPU used since the last call, and memory held now: the root first, workers in order of their start."""
        self._follow()
        now_s = self._now()
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        last, self._last, found = self._last, {}, list[ProcessUse]()
        for process, role in self._followed:  # parents first
            use = self._use(process)
            if use is None:
                continue
            self._last[process] = use
            known = process in last and elapsed_s > 0
            cores = max(0.0, use.cpu_s - last[process].cpu_s) / elapsed_s if known else None
            found.append(ProcessUse(role=role, cores=cores, rss_bytes=use.rss_bytes))
        self._followed = [each for each in self._followed if each[0] in self._last]
        if found and last and elapsed_s > 0:
            found.append(ProcessUse(role="other", cores=self._brief_s(last) / elapsed_s, rss_bytes=None))
        return tuple(found)

    def _brief_s(self, last: Mapping[Any, ProcStat]) -> float:
        """CPU time, since the last look, of processes that came or went. A parent may wait a moment after the end."""
        came_s = sum(use.cpu_s + use.waited_s for process, use in self._last.items() if process not in last)
        went_s = sum(use.cpu_s + use.waited_s for process, use in last.items() if process not in self._last)
        waited_s = sum(use.waited_s - last[process].waited_s for process, use in self._last.items() if process in last)
        brief_s = came_s + waited_s - went_s - self._unmatched_s
        self._unmatched_s = min(went_s, max(0.0, -brief_s))
        return max(0.0, brief_s)

    def _follow(self) -> None:
        """Go over to another bench at once; look for new workers when that is due."""
        pid = self._pid()
        if pid is None:
            self._root, self._followed, self._last = None, [], {}
        elif self._root is None or self._root.pid != pid:
            self._root, self._last, self._unmatched_s = _process(pid), {}, 0.0
            self._search()
        elif self._now() >= self._search_due_s:
            self._search()

    def _search(self) -> None:
        began_s = time.thread_time()
        self._followed = roles(_tree(self._root))
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
