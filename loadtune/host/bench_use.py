"""What the bench uses, as the sampler wants it: by role, and what it reads from storage.

In: the tree of its processes. Out: two probes over it; the second looks rarely, and at processes the first has found.
"""

from collections.abc import Iterable
from typing import Any

from loadtune.host.process_roles import Role
from loadtune.host.processes import ProcessTree, ProcessUse
from loadtune.host.sensing import Look, Probe
from loadtune.host.timeline import EACH_WORKERS_CORES, EACH_WORKERS_RSS


class BenchUse(Probe):
    """CPU cores and resident memory."""

    figures = (
        "bench_cpu_cores",
        "bench_rss_bytes",
        "main_cpu_cores",
        "main_rss_bytes",
        "workers_cpu_cores",
        EACH_WORKERS_CORES,
        EACH_WORKERS_RSS,
        "other_cpu_cores",
        "other_rss_bytes",
    )

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree

    def look(self, now_s: float) -> Look:
        found = self._tree.read()
        if not found:
            return dict.fromkeys(self.figures)

        def of(role: Role) -> list[ProcessUse]:
            return [use for use in found if use.role == role]

        main, workers, others = of("main"), of("worker"), of("other")
        return {
            "bench_cpu_cores": _cores(found),
            # torch.compile's own processes stay after the compiling, and are no part of what training needs.
            "bench_rss_bytes": _rss([*main, *workers]),
            "main_cpu_cores": _cores(main),
            "main_rss_bytes": _rss(main),
            "workers_cpu_cores": _cores(workers),
            EACH_WORKERS_CORES: tuple(use.cores for use in workers) or None,
            EACH_WORKERS_RSS: tuple(use.rss_bytes for use in workers) or None,
            "other_cpu_cores": _cores(others),
            "other_rss_bytes": _rss(others),
        }


def _cores(uses: Iterable[ProcessUse]) -> float | None:
    known = [use.cores for use in uses if use.cores is not None]
    return sum(known) if known else None


def _rss(uses: Iterable[ProcessUse]) -> int | None:
    held = [use.rss_bytes for use in uses if use.rss_bytes is not None]
    return sum(held) if held else None


class DiskReads(Probe):
    """Bytes fetched from storage, by the kernel's account of each process.

    The difference of sums, unlike that of CPU time: as a process ends, the kernel adds its account to its parent's.
    Between its end and the parent's notice of it the sum dips, so its highest is what counts.
    """

    figures = ("disk_read_bytes_per_s",)

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._root_pid: int | None = None
        self._highest = 0
        self._looked_s = 0.0

    def look(self, now_s: float) -> Look:
        processes = self._tree.processes
        if not processes:
            self._root_pid = None
            return dict.fromkeys(self.figures)
        if not hasattr(processes[0], "io_counters"):
            return self.all_missing("the platform does not count what a process reads")
        read = [counted for process in processes if (counted := _read_bytes(process)) is not None]
        if not read:
            return self.all_missing("the kernel does not tell what a process reads")
        return {"disk_read_bytes_per_s": self._rate(processes[0].pid, sum(read), now_s)}

    def _rate(self, root_pid: int, read_bytes: int, now_s: float) -> float | None:
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        highest = max(read_bytes, self._highest)
        more, self._highest = highest - self._highest, highest
        if root_pid != self._root_pid:  # another bench, or the first
            self._root_pid, self._highest = root_pid, read_bytes
            return None
        return more / elapsed_s if elapsed_s > 0 else None


def _read_bytes(process: Any) -> int | None:
    """None: it ended, or is not ours to read."""
    import psutil

    try:
        return int(process.io_counters().read_bytes)
    except (psutil.Error, OSError):
        return None
