"""The control groups this process is in: how many cores and how much memory they let it have.

In: ``/proc/self/cgroup``, ``/proc/self/mountinfo`` and the limit files they lead to, of cgroup v1, v2, or both mounted
side by side. Out: the tightest CPU quota and every memory limit from this process's own group up to the root, since a
parent's limit binds its children. In a container affinity, physical memory and psutil show the host, and know nothing
of these. Every read takes the root of the file system, so that tests bring their own.
"""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

UNIFIED = ""
"""Stands for cgroup v2's single hierarchy where v1 has a controller's name, as in ``0::/path``."""

UNLIMITED_BYTES = 2**60
"""v1 writes "no limit" as the largest page-aligned long, which depends on the page size. No machine has an EiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupMount:
    """One mounted hierarchy."""

    controllers: frozenset[str]
    """`UNIFIED` alone for v2."""
    root: PurePosixPath
    """Which group of the hierarchy is seen at ``point``: not ``/`` where a container mounts only its own."""
    point: PurePosixPath


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuQuota:
    """The tightest CPU quota in force, and the group it is set on."""

    cores: float
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """One group's memory limit and what the group holds of it."""

    limit_bytes: int
    used_bytes: int
    """Working set: page cache the kernel can drop at once (inactive_file) is left out. 0 where usage is not shown."""

    @property
    def available_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)


def parse_memberships(text: str) -> dict[str, str]:
    """``/proc/self/cgroup`` → controller to the path of the group this process is in; `UNIFIED` for v2."""
    memberships: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            memberships |= dict.fromkeys(controllers.split(","), path)
    return memberships


def parse_mounts(text: str) -> tuple[CgroupMount, ...]:
    """``/proc/self/mountinfo`` → the cgroup hierarchies mounted, in order."""
    mounts: list[CgroupMount] = []
    for line in text.splitlines():
        # As in proc(5): id, parent, device, root, mount point, options, tags …, ``-``, type, source, options.
        mounted, _, described = line.partition(" - ")
        fields, kind = mounted.split(), described.split()
        if len(fields) >= 5 and len(kind) >= 3 and kind[0] in ("cgroup", "cgroup2"):
            controllers = [UNIFIED] if kind[0] == "cgroup2" else kind[2].split(",")
            root, point = (PurePosixPath(_unescape(field)) for field in fields[3:5])
            mounts.append(CgroupMount(controllers=frozenset(controllers), root=root, point=point))
    return tuple(mounts)


def _unescape(field: str) -> str:
    """mountinfo writes blanks and backslashes as three octal digits: ``\\040``."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def group_folders(
    controller: str, memberships: dict[str, str], mounts: tuple[CgroupMount, ...]
) -> tuple[PurePosixPath, ...]:
    """Folders of this process's group in one hierarchy, its own first, then each parent up to the mount point."""
    path = memberships.get(controller)
    mount = next((mount for mount in mounts if controller in mount.controllers), None)
    if path is None or mount is None:
        return ()
    inner = PurePosixPath(path)
    # Outside what is mounted (another cgroup namespace's view, or ``/..``): the mount point is all there is to see.
    visible = inner.is_relative_to(mount.root) and ".." not in inner.parts
    own = mount.point / inner.relative_to(mount.root) if visible else mount.point
    return (own, *(parent for parent in own.parents if parent.is_relative_to(mount.point)))


def read_group_folders(controller: str, system: Path = Path("/")) -> tuple[Path, ...]:
    """The folders of `group_folders` on this machine; empty where there are no control groups."""
    memberships = parse_memberships(read_text(system / "proc/self/cgroup"))
    folders = group_folders(controller, memberships, parse_mounts(read_text(system / "proc/self/mountinfo")))
    return tuple(system / folder.relative_to("/") for folder in folders)


def parse_cpu_max(text: str) -> float | None:
    """v2 ``cpu.max``, ``150000 100000`` → 1.5 cores. None: ``max``, or not understood."""
    quota, _, period = text.strip().partition(" ")
    return cores_of(quota, period)


def cores_of(quota: str, period: str) -> float | None:
    """Quota ÷ period, both in µs. None: no quota (v1 writes -1, v2 ``max``), or not understood."""
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return cores if cores > 0 else None


def parse_memory_limit(text: str) -> int | None:
    """``memory.max`` or ``memory.limit_in_bytes``. None: no limit, or not understood."""
    try:
        limit = int(text)
    except ValueError:  # "max"
        return None
    return limit if 0 < limit < UNLIMITED_BYTES else None


def parse_inactive_file(text: str) -> int:
    """``memory.stat`` → droppable page cache. v1's ``total_`` line counts the groups below too, as its usage does."""
    counts = parse_counters(text)
    return counts.get("total_inactive_file", counts.get("inactive_file", 0))


def parse_counters(text: str) -> dict[str, int]:
    """Lines such as ``nr_throttled 17``. What is none is left out."""
    fields = (line.split() for line in text.splitlines())
    return {field[0]: int(field[1]) for field in fields if len(field) == 2 and field[1].isdigit()}


def read_cpu_quota(system: Path = Path("/")) -> CpuQuota | None:
    """The tightest quota from this process's groups up. None: none is set."""
    found = [(parse_cpu_max(read_text(folder / "cpu.max")), folder) for folder in read_group_folders(UNIFIED, system)]
    found += [
        (cores_of(read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")), folder)
        for folder in read_group_folders("cpu", system)
    ]
    quotas = [CpuQuota(cores=cores, folder=folder) for cores, folder in found if cores is not None]
    return min(quotas, key=lambda quota: quota.cores, default=None)


def read_memory_limits(system: Path = Path("/")) -> tuple[MemoryLimit, ...]:
    """Every limit from this process's groups up. Empty: none is set."""
    found = [
        _memory_limit(folder, limit_file, usage_file)
        for controller, limit_file, usage_file in (
            (UNIFIED, "memory.max", "memory.current"),
            ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        )
        for folder in read_group_folders(controller, system)
    ]
    return tuple(limit for limit in found if limit is not None)


def _memory_limit(folder: Path, limit_file: str, usage_file: str) -> MemoryLimit | None:
    limit = parse_memory_limit(read_text(folder / limit_file))
    if limit is None:
        return None
    usage = parse_memory_limit(read_text(folder / usage_file)) or 0
    droppable = parse_inactive_file(read_text(folder / "memory.stat"))
    return MemoryLimit(limit_bytes=limit, used_bytes=max(0, usage - droppable))


def read_text(file: Path) -> str:
    """Empty, which no parser understands: not there, not ours to read, or gone while it was read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
