"""What a control group accounts of CPU time: how much it used, how often its quota held it back.

In: ``cpu.stat`` of cgroup v2; in v1 a file of that name without usage, and ``cpuacct.usage``. Out: counters that only
grow, and `GroupCpu`, a probe over them. In a container this is what the machine's own counters cannot tell.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loadtune.host.cgroup import UNIFIED, read_cpu_quota, read_group_folders, read_text
from loadtune.host.sensing import Look, Missing, Probe

NS_PER_S = 1e9
US_PER_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuStat:
    """A group's account. None: it does not hold that figure."""

    usage_s: float | None = None
    num_throttles: int | None = None
    throttled_s: float | None = None


def parse_cpu_stat(text: str) -> CpuStat:
    """Both versions' ``cpu.stat``: v2 counts µs (``usage_usec``, ``throttled_usec``), v1 ns (``throttled_time``)."""
    fields = dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)

    def seconds(name: str, per_s: float) -> float | None:
        value = fields.get(name, "")
        return int(value) / per_s if value.isdigit() else None

    throttles = fields.get("nr_throttled", "")
    throttled_s = seconds("throttled_usec", US_PER_S)
    return CpuStat(
        usage_s=seconds("usage_usec", US_PER_S),
        num_throttles=int(throttles) if throttles.isdigit() else None,
        throttled_s=seconds("throttled_time", NS_PER_S) if throttled_s is None else throttled_s,
    )


def parse_cpuacct_usage(text: str) -> float | None:
    """v1's nanoseconds → seconds."""
    return int(text) / NS_PER_S if text.strip().isdigit() else None


def group_counter(folder: Path, system: Path = Path("/")) -> Callable[[], float | None] | None:
    """CPU seconds used by the group of that folder. None: the kernel keeps no account for it."""
    readers: list[Callable[[], float | None]] = [
        lambda: parse_cpu_stat(read_text(folder / "cpu.stat") or "").usage_s,
        lambda: parse_cpuacct_usage(read_text(_v1_usage(folder, system)) or ""),
    ]
    return next((reader for reader in readers if reader() is not None), None)


def _v1_usage(folder: Path, system: Path) -> Path:
    """Mounted apart from cpu, the account is in the group of the same name; our own where there is none."""
    folders = read_group_folders("cpuacct", system)
    same = (other for other in folders if other == folder or other.name == folder.name)
    return next(same, folders[0] if folders else folder) / "cpuacct.usage"


def accounting_folder(system: Path = Path("/")) -> Path | None:
    """The group whose quota binds; without a quota our own, or the nearest above it that keeps an account.

    One that counts throttling comes first: where both versions are mounted, v2's root does not.
    """
    quota = read_cpu_quota(system)
    if quota is not None:
        return quota.folder
    folders = (*read_group_folders(UNIFIED, system), *read_group_folders("cpu", system))
    accounts = [(folder, parse_cpu_stat(text)) for folder in folders if (text := read_text(folder / "cpu.stat"))]
    return min(accounts, key=lambda account: account[1].num_throttles is None, default=(None, None))[0]


class GroupCpu(Probe):
    """CPU used and time held back since the last look."""

    figures = ("cgroup_cpu_cores", "num_cpu_throttles", "cpu_throttled_s")

    def __init__(self, system: Path = Path("/")) -> None:
        self._folder = accounting_folder(system)
        self._usage_s = None if self._folder is None else group_counter(self._folder, system)
        self._last: tuple[float, dict[str, float]] | None = None

    def look(self, now_s: float) -> Look:
        if self._folder is None:
            return self.all_missing("no control group accounts for CPU time here")
        counted = self._counted(self._folder)
        unknown = {figure: Missing("the control group does not count it") for figure in self.figures}
        last, self._last = self._last, (now_s, counted)
        if last is None or now_s <= last[0]:
            return {figure: why for figure, why in unknown.items() if figure not in counted}
        more: dict[str, float] = {
            figure: max(0, count - last[1][figure]) for figure, count in counted.items() if figure in last[1]
        }
        if "cgroup_cpu_cores" in more:
            more["cgroup_cpu_cores"] /= now_s - last[0]
        return unknown | more

    def _counted(self, folder: Path) -> dict[str, float]:
        """Only what the group counts; the cores as the CPU seconds they are made of."""
        stat = parse_cpu_stat(read_text(folder / "cpu.stat") or "")
        usage_s = None if self._usage_s is None else self._usage_s()
        counts = zip(self.figures, (usage_s, stat.num_throttles, stat.throttled_s), strict=True)
        return {figure: count for figure, count in counts if count is not None}
