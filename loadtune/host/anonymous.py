"""Anonymous memory of processes: what they allocated themselves, without files they mapped and batches in /dev/shm.

In: ``/proc/<pid>/status`` and ``smaps_rollup`` (Linux). Out: bytes, and a probe over the training process and its
workers. The first file takes 0.03 ms a process. The second counts a page that several processes share only once, but
takes 20 ms where 0.9 GB are resident, so it is read only when RAM is short.
"""

from pathlib import Path
from typing import Any

from loadtune.host.cgroup import read_text
from loadtune.host.processes import ProcessTree
from loadtune.host.sensing import Look, Probe

FIGURE = "anonymous_bytes"

_PROC = Path("/proc")


def field_bytes(text: str | None, name: str) -> int | None:
    """A line such as ``RssAnon:  144 kB``. None: there is none."""
    for line in (text or "").splitlines():
        field, _, rest = line.partition(":")
        if field == name:
            return int(rest.split()[0]) * 1024
    return None


def anonymous_bytes(pid: int, proc: Path = _PROC) -> int | None:
    """Resident now; pages shared with other processes are in it. None: it ended, or the platform does not say."""
    return field_bytes(read_text(proc / str(pid) / "status"), "RssAnon")


def proportional_bytes(pid: int, proc: Path = _PROC) -> int | None:
    """The same, with each page divided by the number of processes that share it; undivided where that is not told."""
    own = field_bytes(read_text(proc / str(pid) / "smaps_rollup"), "Pss_Anon")
    return anonymous_bytes(pid, proc) if own is None else own


class AnonymousMemory(Probe):
    """(training process, all workers, number of workers), as `records.MemoryReading` has them."""

    figures = (FIGURE,)

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree

    def look(self, now_s: float) -> Look:
        main = [anonymous_bytes(process.pid) for process in self._tree.of("main")]
        workers = [anonymous_bytes(process.pid) for process in self._tree.of("worker")]
        if not main:
            return {FIGURE: None}
        if main[0] is None:
            return self.all_missing("the platform does not tell a process's own memory from files it mapped")
        value: Any = (main[0], sum(held or 0 for held in workers), sum(held is not None for held in workers))
        return {FIGURE: value}
