"""Who uses the GPU: the memory each process holds, and what those that are not ours take of memory and SMs.

In: NVML's lists of processes, and the ids of our own. Out: `GpuOthers`, a probe. A module of its own because process
ids mean nothing across a container's border, which no other figure cares about.
"""

from collections.abc import Callable, Container, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from loadtune.host.nvml import NOT_FOUND, Answer, Nvml, NvmlDevice
from loadtune.host.sensing import Look, Missing, Probe

_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
"""A process may stand in several, with the same figure in each."""

_OWN_NAMESPACE = Path("/proc/self/ns/pid")
_FIRST_NAMESPACE = "pid:[4026531836]"
"""The kernel's first namespace has this number always (PROC_PID_INIT_INO): its ids are those the driver sees."""


def read_process_memory(handle: Any, nvml: Nvml) -> Answer:
    """Process id → bytes it holds, None where the driver does not say; a reason where no list can be had."""
    answers = [nvml.attempt(function, handle) for function in _LISTS]
    if all(answer.reason is not None for answer in answers):
        return answers[0]
    used: dict[int, int | None] = {}
    for process in (process for answer in answers for process in answer.value or ()):
        used[int(process.pid)] = _larger(used.get(process.pid), process.usedGpuMemory)
    return Answer(value=used)


def _larger(one: int | None, other: int | None) -> int | None:
    return max((int(held) for held in (one, other) if held is not None), default=None)


class GpuOthers(Probe):
    """Memory and SM share of all processes but our own."""

    figures = ("gpu_others_memory_bytes", "gpu_others_sm_fraction")

    def __init__(
        self, device: NvmlDevice, own_pids: Callable[[], Container[int]], namespace: Path = _OWN_NAMESPACE
    ) -> None:
        self._device = device
        self._own_pids = own_pids
        self._namespace = namespace
        self._seen_us: int | None = None
        """Stamp of the newest sample known; None: nothing was asked yet."""

    def look(self, now_s: float) -> Look:
        if not sees_the_drivers_ids(self._namespace):
            return self.all_missing("in a container process ids are not the driver's")
        own = self._own_pids()
        return {"gpu_others_memory_bytes": self._memory(own), "gpu_others_sm_fraction": self._sm_share(own)}

    def _memory(self, own: Container[int]) -> int | Missing:
        handle = self._device.handle()
        answer = handle if handle.reason is not None else read_process_memory(handle.value, self._device.nvml)
        if answer.reason is not None:
            return Missing(answer.reason)
        held = {pid: used for pid, used in answer.value.items() if pid not in own}
        known = [int(used) for used in held.values() if used is not None]
        return sum(known) if len(known) == len(held) else Missing("the driver does not tell processes' memory apart")

    def _sm_share(self, own: Container[int]) -> float | Missing | None:
        seen_us = self._seen_us or 0
        answer = self._device.ask("nvmlDeviceGetProcessUtilization", seen_us)
        if answer.reason is not None and answer.code != NOT_FOUND:
            return Missing(answer.reason)
        fresh = [sample for sample in answer.value or () if sample.timeStamp > seen_us]
        # The first answer is the driver's whole memory of the past. None at all: nobody has used the GPU since.
        first, self._seen_us = self._seen_us is None, max((int(s.timeStamp) for s in fresh), default=seen_us)
        return None if first else others_sm_fraction(fresh, own)


def others_sm_fraction(samples: Iterable[Any], own: Container[int]) -> float:
    """Mean of each process's samples, summed over those not ours. Left out: the driver's empty and impossible ones."""
    each: dict[int, list[float]] = {}
    for sample in samples:
        if sample.pid and sample.pid not in own and sample.smUtil <= 100:
            each.setdefault(int(sample.pid), []).append(sample.smUtil / 100)
    return min(1.0, sum(fmean(shares) for shares in each.values()))


def sees_the_drivers_ids(namespace: Path = _OWN_NAMESPACE) -> bool:
    """Whether the process ids we know are those that the driver lists. True where there are no namespaces."""
    try:
        return str(namespace.readlink()) == _FIRST_NAMESPACE
    except OSError:
        return True
