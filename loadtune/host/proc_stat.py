"""What the kernel says of a process or a thread in one line: name, CPU time, resident memory (Linux).

In: ``/proc/<pid>/stat`` or ``/proc/<pid>/task/<tid>/stat``, which are alike. Out: `ProcStat`. psutil reads two files
for it and takes each apart wholly: 61 µs a process instead of 24, or 5% of a core for 64 workers at twelve looks a
second.
"""

import os
from typing import NamedTuple

CPU_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcStat(NamedTuple):
    """``rss_bytes``, ``waited_s``: of a thread, its process's."""

    name: str
    cpu_s: float
    rss_bytes: int
    waited_s: float
    """CPU time of the children that ended and were waited for, and of theirs."""


def read_proc_stat(path: str) -> ProcStat | None:
    """None: it ended, or there is no such file on this platform."""
    try:
        with open(path, "rb", buffering=0) as file:  # pathlib and decoding by chunks would double the time
            text = file.read()
    except OSError:
        return None
    return parse_proc_stat(text.decode(errors="replace"))


def parse_proc_stat(text: str) -> ProcStat | None:
    """None: not understood. As in proc(5): the name stands in parentheses and may hold some itself; utime and stime are
    fields 14 and 15, those of the children that were waited for 16 and 17, rss is 24."""
    head, bracket, tail = text.rpartition(")")
    fields = tail.split(None, 22)
    if not bracket or len(fields) < 22:
        return None
    used = [*fields[11:15], fields[21]]
    if not "".join(used).isdigit():
        return None
    user, system, children_user, children_system, pages = map(int, used)
    waited_s = (children_user + children_system) / CPU_TICKS_PER_S
    return ProcStat(head.partition("(")[2], (user + system) / CPU_TICKS_PER_S, pages * PAGE_BYTES, waited_s)
