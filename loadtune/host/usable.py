"""What this process may use of the machine under every limit in force: cores, RAM and /dev/shm; what of them is free
now, which of the ranks on it this one is, and how often the kernel killed for lack of memory. Needs no psutil, which is
slow to import.

A control group's limit, of cgroup v1, v2, or both, binds its children. In a container affinity and psutil show the
host, and know nothing of these. Every read takes the root of the file system, so that tests bring their own. Nothing is
kept between two reads: virtual machines were seen to show 31 GiB at first and grow to 256.
"""

import math
import os
import platform
import re
import shutil
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

SHM_ADVICE = (
    "/dev/shm is full, read-only or missing: start the container with a larger --shm-size, or use fewer workers or "
    "smaller batches"
)

UNIFIED = ""
"""Stands for cgroup v2's single hierarchy where v1 has a controller's name, as in ``0::/path``."""

_UNLIMITED_BYTES = 2**60
"""v1 writes "no limit" as the largest page-aligned long, which depends on the page size. No machine has an EiB."""


class CpuQuota(NamedTuple):
    """The tightest CPU quota in force, and the group it is set on."""

    cores: float
    folder: Path


class MemoryLimit(NamedTuple):
    """One group's memory limit and what is left of it."""

    limit_bytes: int
    available_bytes: int
    """Page cache that the kernel can drop at once (inactive_file) is left. The whole limit where usage is not shown."""


def read_group_folders(controller: str, system: Path = Path("/")) -> tuple[Path, ...]:
    """Folders of this process's group in one hierarchy, its own first, then each parent up to the mount point.

    ``controller``: ``cpu`` or ``memory`` of v1, `UNIFIED` for v2. Empty where nobody mounted it.
    """
    # Lines such as ``4:cpu,cpuacct:/job``.
    lines = (line.split(":", 2) for line in read_text(system / "proc/self/cgroup").splitlines())
    groups = (PurePosixPath(line[2]) for line in lines if len(line) == 3 and controller in line[1].split(","))
    path, mount = next(groups, None), _mount(controller, read_text(system / "proc/self/mountinfo"))
    if path is None or mount is None:
        return ()
    root, point = mount
    # Outside what is mounted (another cgroup namespace's view, or ``/..``): the mount point is all there is to see.
    visible = path.is_relative_to(root) and ".." not in path.parts
    own = point / path.relative_to(root) if visible else point
    folders = (own, *(parent for parent in own.parents if parent.is_relative_to(point)))
    return tuple(system / folder.relative_to("/") for folder in folders)


def _mount(controller: str, mountinfo: str) -> tuple[PurePosixPath, PurePosixPath] | None:
    """(Which group is seen there, where): not ``/`` where a container mounts only its own."""
    for line in mountinfo.splitlines():
        # As in proc(5): id, parent, device, root, mount point, options, tags …, ``-``, type, source, options.
        mounted, _, described = line.partition(" - ")
        fields, kind = mounted.split(), described.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        if controller in ([UNIFIED] if kind[0] == "cgroup2" else kind[2].split(",")):
            return PurePosixPath(fields[3]), PurePosixPath(fields[4])
    return None


def read_cpu_quota(system: Path = Path("/")) -> CpuQuota | None:
    """The tightest quota from this process's groups up. None: none is set."""
    files = ((UNIFIED, ("cpu.max",)), ("cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")))
    quotas = [
        CpuQuota(cores, folder)
        for controller, names in files
        for folder in read_group_folders(controller, system)
        if (cores := parse_quota(" ".join(read_text(folder / name) for name in names))) is not None
    ]
    return min(quotas, key=lambda quota: quota.cores, default=None)


def parse_quota(text: str) -> float | None:
    """``150000 100000``, of µs → 1.5 cores. None: no quota (v1 writes -1, v2 ``max``), or not understood."""
    try:
        quota, period = map(int, text.split())
        return quota / period if quota > 0 and period > 0 else None
    except (ValueError, OverflowError):
        return None


def read_memory_limits(system: Path = Path("/")) -> tuple[MemoryLimit, ...]:
    """Every limit from this process's groups up. Empty: none is set."""
    files = ((UNIFIED, "memory.max", "memory.current"), ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"))
    limits = []
    for controller, limit_file, usage_file in files:
        for folder in read_group_folders(controller, system):
            limit = parse_memory_limit(read_text(folder / limit_file))
            if limit is not None:
                counts = parse_counters(read_text(folder / "memory.stat"))
                # v1's ``total_`` line counts the groups below too, as its usage does.
                droppable = counts.get("total_inactive_file", counts.get("inactive_file", 0))
                used = (parse_memory_limit(read_text(folder / usage_file)) or 0) - droppable
                limits.append(MemoryLimit(limit, max(0, limit - max(0, used))))
    return tuple(limits)


def parse_memory_limit(text: str) -> int | None:
    """``memory.max`` or ``memory.limit_in_bytes``. None: no limit, or not understood."""
    try:
        limit = int(text)
    except ValueError:  # "max"
        return None
    return limit if 0 < limit < _UNLIMITED_BYTES else None


def parse_counters(text: str) -> dict[str, int]:
    """Lines such as ``oom_kill 17``, and ``RssAnon:  144 kB`` in bytes. What is none is left out."""
    found = re.findall(r"^(\S+?):?[ \t]+(\d{1,19})( kB)?$", text, flags=re.MULTILINE)
    return {name: int(count) * (1024 if unit else 1) for name, count, unit in found}


def read_text(file: Path) -> str:
    """Empty, which no parser understands: not there, not ours to read, or gone while it was read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_num_usable_cores(system: Path = Path("/")) -> int:
    """Least of affinity and cgroup quota, at least 1. A quota is rounded up: with 1.5 cores' worth, one process would
    leave a third of it unused."""
    quota, num_allowed = read_cpu_quota(system), len(os.sched_getaffinity(0))
    return num_allowed if quota is None else max(1, min(num_allowed, math.ceil(quota.cores)))


def read_cpu_name(system: Path = Path("/")) -> str | None:
    """The model, for people: x86's, elsewhere the architecture. None: the platform does not say."""
    named = re.search(r"^model name\s*:(.*)$", read_text(system / "proc/cpuinfo"), flags=re.MULTILINE)
    return " ".join(named[1].split()) if named else platform.machine() or None


class Ram(NamedTuple):
    """The machine's memory as this process may use it."""

    total_bytes: int
    limit_bytes: int
    available_bytes: int


def read_ram(system: Path = Path("/")) -> Ram:
    """Physical memory, bounded by every cgroup limit in force. Each limit binds with what its own group holds: a
    parent's neighbours can leave less than our own limit does."""
    machine, limits = parse_counters(read_text(system / "proc/meminfo")), read_memory_limits(system)
    total, available = (machine.get(name, 0) for name in ("MemTotal", "MemAvailable"))
    return Ram(
        total_bytes=total,
        limit_bytes=min([total, *(limit.limit_bytes for limit in limits)]),
        available_bytes=min([available, *(limit.available_bytes for limit in limits)]),
    )


def read_shm(folder: Path = Path("/dev/shm")) -> tuple[int, int]:
    """Total and free bytes of /dev/shm, where torch's shared-memory tensors and Python's semaphores live. 0 of both
    where it is missing or read-only."""
    if not os.access(folder, os.W_OK):
        return 0, 0
    usage = shutil.disk_usage(folder)
    return usage.total, usage.free


def read_oom_kills(system: Path = Path("/")) -> int | None:
    """Processes that the kernel killed so far for lack of memory; the count rises before the signal is sent. None:
    nothing counts them. Of this process's own group where that is counted, else of the machine, with all containers.
    Not of the group's parent: in v1 that does not count what its children lost."""
    own = [
        folder / file
        for controller, file in ((UNIFIED, "memory.events"), ("memory", "memory.oom_control"))
        for folder in read_group_folders(controller, system)[:1]
    ]
    files = (*own, system / "proc/vmstat")
    counts = (parse_counters(read_text(file)).get("oom_kill") for file in files)
    return next((count for count in counts if count is not None), None)


# Where a launcher put this process


def rank() -> int:
    """Of this process, as its launcher says. 0: there is no launcher."""
    return _number("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID") or 0


def num_ranks() -> int:
    """Of the job, as its launcher says. 1: there is no launcher."""
    return max(1, _number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS") or 1)


def num_local_ranks(unknown: int = 1) -> int:
    """Processes that train on this machine and share what it has, as the launcher says; ``unknown`` where none does."""
    found = _number("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    if found is None and (tasks := os.environ.get("SLURM_STEP_TASKS_PER_NODE")):
        node = _number("SLURM_NODEID") or 0
        for count, times in re.findall(r"(\d{1,6})(?:\(x(\d{1,6})\))?", tasks):  # 2(x3),1: two on three nodes, then one
            found, node = int(count), node - int(times or 1)
            if node < 0:
                break
    return max(1, unknown if found is None else found)


def equal_share(unknown: int = 1) -> float:
    """Usable cores of one rank. Where a launcher bound each rank to some, those of the launcher are shared out."""
    usable, ranks_here = float(read_num_usable_cores()), num_local_ranks(unknown)
    with suppress(OSError):
        of_launcher = len(os.sched_getaffinity(os.getppid()))
        if of_launcher > len(os.sched_getaffinity(0)):
            return min(usable, of_launcher / ranks_here)
    return usable / ranks_here


def _number(*names: str) -> int | None:
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal() and len(value) < 7), None)
