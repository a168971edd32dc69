"""How many processes the kernel has killed for lack of memory: what tells its SIGKILL from anybody else's.

In: the counters of this process's control group, or of the whole machine. Out: a count to compare with a later one. The
kernel raises it before it sends the signal, so whoever sees the death sees the count.
"""

from pathlib import Path

from loadtune.host.cgroup import UNIFIED, read_group_folders, read_text

_FIELD = "oom_kill"


def read_oom_kills(system: Path = Path("/")) -> int | None:
    """Kills so far, of this process's own group where that is counted, else of the machine. None: nothing counts them.

    The group's own count comes first because the machine's also moves when some other container runs out of memory.
    """
    for file in (*_counters(system), system / "proc/vmstat"):
        count = parse_oom_kills(read_text(file) or "")
        if count is not None:
            return count
    return None


def _counters(system: Path) -> list[Path]:
    """Own group's files, v2 first. Of the own group alone: in v1 a parent does not count what its children lost."""
    found = []
    for controller, file in ((UNIFIED, "memory.events"), ("memory", "memory.oom_control")):
        found += [folder / file for folder in read_group_folders(controller, system)[:1]]
    return found


def parse_oom_kills(text: str) -> int | None:
    """``oom_kill 3`` among the lines of ``memory.events`` (v2), ``memory.oom_control`` (v1) or ``/proc/vmstat``."""
    for line in text.splitlines():
        name, _, count = line.partition(" ")
        if name == _FIELD and count.strip().isdigit():
            return int(count)
    return None
