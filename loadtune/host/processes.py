"""What processes use. Of all together: the cores, under a quota by the group's own account, else by that of the cores
this process may run on. Of the training process, its workers and everything else it started: CPU time as cores, memory,
reads. And a guard, which says when to end a training process that takes all RAM: the kernel might kill another one.
"""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from loadtune.host.telemetry import Count, Look, Probe
from loadtune.host.usable import (
    Ram,
    parse_counters,
    read_cpu_quota,
    read_group_folders,
    read_num_usable_cores,
    read_ram,
    read_text,
)


def cpu_use(system: Path = Path("/")) -> Probe:
    """CPU time of the usable cores, by the counter that fits this machine, and this process's own part in it."""
    quota, cores = read_cpu_quota(system), os.sched_getaffinity(0)
    busy_s, num_cores = partial(cores_used_s, cores, system), float(read_num_usable_cores(system))
    if quota is not None:
        # v1: mounted apart from cpu, the account is in the group of the same name.
        apart = [each for each in read_group_folders("cpuacct", system) if each.name == quota.folder.name]
        for folder in (quota.folder, *apart):
            with suppress(KeyError, ValueError):  # the kernel keeps no account there
                _group_used_s(folder)
                busy_s, num_cores = partial(_group_used_s, folder), min(quota.cores, len(cores))
                break
    figures = ("cpu_utilization_fraction", "busy_cpu_cores", "watching_cpu_cores")

    def look() -> Look:
        used_s = busy_s()
        return dict(zip(figures, map(Count, (used_s / num_cores, used_s, time.process_time())), strict=True))

    return Probe(figures, look)


def cores_used_s(cores: Iterable[int], system: Path = Path("/")) -> float:
    """Busy seconds of these cores, whoever uses them."""
    lines = [line.split() for line in read_text(system / "proc/stat").splitlines() if line.startswith("cpu")]
    # All but idling and waiting for I/O. guest is left out: the kernel counts it under user already.
    ticks = {name: sum(map(int, (*each[:3], *each[5:8]))) for name, *each in lines}
    own = [ticks[f"cpu{core}"] for core in cores if f"cpu{core}" in ticks]
    return sum(own or [ticks["cpu"]]) / os.sysconf("SC_CLK_TCK")  # a container may number its cores anew


def _group_used_s(folder: Path) -> float:
    """By the processes of a group. Raises KeyError or ValueError where there is no account of v1 or v2."""
    v1 = read_text(folder / "cpuacct.usage")
    return int(v1) / 1e9 if v1 else parse_counters(read_text(folder / "cpu.stat"))["usage_usec"] / 1e6


WORKER_NAME = "pt_data_worker"
"""PyTorch gives this name to a worker's main thread, however it was started, and that is the process's name."""


class Used(NamedTuple):
    """By one process until now."""

    cpu_s: float
    waited_s: float
    """CPU time of the children that ended and were waited for, and of theirs."""
    rss_bytes: int
    own_bytes: int
    """Of them, without files and shared memory. Pages that a worker got by its fork are in it, copied or not yet."""


class ProcessTree:
    """CPU cores, resident memory and reads of the training process and its workers.

    Processes that come and go between two looks, such as the decoder that a dataset starts for each sample, are seldom
    seen alive; the kernel adds the CPU time of one that ended to its parent's account of children.
    """

    figures = ("training_cpu_cores", "training_rss_bytes", "workers_cpu_cores", "workers_own_bytes")
    read_figures = ("disk_read_bytes_per_s", "file_read_bytes_per_s")

    def __init__(self, pid: Callable[[], int | None]) -> None:
        self._pid = pid
        self._root: Any = None
        """The training process, of psutil, as all processes here."""
        self._followed: dict[Any, bool] = {}
        """Parents first, each with whether it is a worker."""
        self.last: dict[Any, Used] = {}
        """What each had used at the last look."""
        self._used_s, self._fetched = 0.0, 0
        """CPU time, and bytes from storage, of this root and all it started. As a process ends, the kernel adds its
        account to its parent's, a moment later: until then the sum dips, and the highest one counts."""

    @property
    def workers(self) -> list[Any]:
        """As of the last look."""
        return [process for process, is_worker in self._followed.items() if is_worker and process in self.last]

    def search(self) -> Look:
        """Look for new workers: that reads every process of the machine, 2 ms at 90 of them."""
        tree = _tree(self._root)
        self._followed = {each: each is not self._root and _asked(each.name) == WORKER_NAME for each in tree}
        return {}

    def look(self) -> Look:
        pid = self._pid()
        if self._root is None or self._root.pid != pid:
            self._root = None if pid is None else _asked(lambda: _process(pid))
            self._used_s, self._fetched = 0.0, 0
            self.search()
        used = {process: _asked(partial(_used, process)) for process in self._followed}
        self.last = {process: use for process, use in used.items() if use is not None}
        if not self.last:
            return dict.fromkeys(self.figures)
        self._used_s = max(self._used_s, sum(use.cpu_s + use.waited_s for use in self.last.values()))
        workers = self.workers
        held = [self.last[process].own_bytes for process in workers]
        # torch.compile's own processes stay after the compiling, and are no part of what training needs.
        resident = [self.last[process].rss_bytes for process in (self._root, *workers) if process in self.last]
        return {
            "training_cpu_cores": Count(self._used_s, self._root),
            "training_rss_bytes": sum(resident),
            "workers_cpu_cores": Count(sum(self.last[each].cpu_s for each in workers), workers) if workers else None,
            "workers_own_bytes": sum(held) or None if all(held) else None,  # one that is ending holds nothing
        }

    def look_at_reads(self) -> Look:
        """Bytes that the whole tree fetched from storage, and bytes that whoever loads samples read from files.

        These are the workers' alone: their parent has also read what they read.
        """
        counts = {process: counted for process in self.last if (counted := _asked(process.io_counters)) is not None}
        if not self.last:
            return dict.fromkeys(self.read_figures)
        if not counts:
            raise OSError("the kernel does not tell what a process reads")
        self._fetched = max(self._fetched, sum(counted.read_bytes for counted in counts.values()))
        loading = [process for process in self.workers or [self._root] if process in counts]
        read = sum(counts[process].read_chars for process in loading)
        return {
            "disk_read_bytes_per_s": Count(self._fetched, self._root),
            "file_read_bytes_per_s": Count(read, loading),
        }


def _process(pid: int) -> Any:
    import psutil

    return psutil.Process(pid)


def _tree(root: Any) -> list[Any]:
    """The process and all it started, parents first."""
    return [] if root is None else [root, *(_asked(lambda: root.children(recursive=True)) or ())]


def _used(process: Any) -> Used:
    times, memory = process.cpu_times(), process.memory_info()
    waited_s = times.children_user + times.children_system
    return Used(times.user + times.system, waited_s, memory.rss, memory.rss - memory.shared)


def _asked(question: Callable[[], Any]) -> Any:
    """What psutil answers. None: the process ended, or is not ours to read."""
    import psutil

    try:
        return question()
    except (psutil.Error, OSError):
        return None


def proportional_bytes(pid: int) -> int | None:
    """Resident without files, each page divided by the number of processes that share it; undivided where that is not
    told. None: it ended. It takes 20 ms where 0.9 GB are resident, so it is seldom asked."""
    own = parse_counters(read_text(Path(f"/proc/{pid}/smaps_rollup"))).get("Pss_Anon")
    used = _asked(lambda: _used(_process(pid))) if own is None else None
    return own if used is None else used.own_bytes


def scheduled_s(pids: Iterable[int | str]) -> tuple[float, float]:
    """Seconds in which the main threads of these processes, or threads of this one as ``self/task/ID``, ran; and were
    ready to run and got no core. 0 of those of which nothing tells."""
    read = [read_text(Path(f"/proc/{pid}/schedstat")).split() or (0, 0) for pid in pids]
    return sum(int(each[0]) for each in read) / 1e9, sum(int(each[1]) for each in read) / 1e9


def loading_s() -> tuple[float, float]:
    """CPU seconds of this process and of its children that ended, so that a decoder of its own does not make a sample
    one that waits for storage; and seconds in which this thread waited for a core."""
    return time.process_time() + sum(os.times()[2:4]), scheduled_s(["thread-self"])[1]


def tree_bytes(pid: int) -> int:
    """`proportional_bytes` of a process and all that it started, together."""
    return sum(proportional_bytes(each.pid) or 0 for each in _tree(_asked(lambda: _process(pid))))


RESERVE = 0.05
"""Share of the RAM below which is too little: half of what the memory probe leaves alone on a CPU. At most half of what
was available at the start, so that a nearly full machine is of use."""

_EVERY_S = 0.1
"""Between two looks, of 0.3 ms each. Workers were seen to take 2 GB/s."""

_OURS = 0.5
"""Share of what became unavailable since the start that they hold: with less, somebody else takes the RAM."""


class RamGuard:
    """One request's. It begins when this is made."""

    def __init__(
        self,
        pid: int,
        ram: Callable[[], Ram] = read_ram,
        held: Callable[[int], int] = tree_bytes,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pid, self._ram, self._held, self._now = pid, ram, held, now
        self._begun_bytes = held(pid)
        self._available = ram().available_bytes
        self._due_s = 0.0

    def look(self) -> tuple[int, Ram] | None:
        """Bytes that the processes took since the start, and RAM that is nearly full.

        None: there is RAM enough, or somebody else takes it.
        """
        now = self._now()
        if now < self._due_s:
            return None
        self._due_s = now + _EVERY_S
        ram = self._ram()
        if ram.available_bytes >= min(RESERVE * ram.limit_bytes, self._available / 2):
            return None
        grown = self._held(self._pid) - self._begun_bytes
        if grown < _OURS * (self._available - ram.available_bytes):
            self._due_s = now + 10 * _EVERY_S  # to ask that of every process is dear
            return None
        return grown, ram
