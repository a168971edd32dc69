"""What NVML tells of one GPU while something runs: memory, power, energy, clock and the duty cycle at a moment; what
processes that are not ours take; and how full the chip is, from its performance counters."""

import math
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from loadtune.host.nvml import NOT_FOUND, NvmlDevice
from loadtune.host.sensing import Count, Look, Missing, Probe

_OWN_NAMESPACE = Path("/proc/self/ns/pid")
_FIRST_NAMESPACE = "pid:[4026531836]"
"""The kernel's first namespace has this number always (PROC_PID_INIT_INO): its ids are those the driver sees."""


class _Figure(NamedTuple):
    """What NVML's ``function`` answers at a moment; ``value`` makes the figure of it."""

    name: str
    value: Callable[[Any], Any]
    function: str
    arguments: tuple[int, ...] = ()


_SM_CLOCK = 1
"""NVML_CLOCK_SM."""

OFTEN = (
    _Figure("gpu_utilization_fraction", lambda rates: rates.gpu / 100, "nvmlDeviceGetUtilizationRates"),
    _Figure("gpu_energy_j", lambda mj: Count(mj / 1000), "nvmlDeviceGetTotalEnergyConsumption"),
)
SELDOM = (
    # Total minus free, so the driver's own share is in it; the same difference as in `GpuFacts`.
    _Figure("gpu_memory_used_bytes", lambda memory: int(memory.total - memory.free), "nvmlDeviceGetMemoryInfo"),
    _Figure("gpu_power_w", lambda mw: mw / 1000, "nvmlDeviceGetPowerUsage"),
    _Figure("gpu_sm_clock_hz", lambda mhz: mhz * 1_000_000, "nvmlDeviceGetClockInfo", (_SM_CLOCK,)),
)


class GpuFigures(Probe):
    """Rows of one of the tables above."""

    def __init__(self, device: NvmlDevice, rows: Iterable[_Figure]) -> None:
        self._device, self._rows = device, tuple(rows)
        self.figures = tuple(row.name for row in self._rows)

    def look(self, now_s: float) -> Look:
        answers = {row: self._device.ask(row.function, *row.arguments) for row in self._rows}
        return {
            row.name: row.value(answer.value) if answer.reason is None else Missing(answer.reason)
            for row, answer in answers.items()
        }


class GpuOthers(Probe):
    """SM share of all processes but our own. Ids of processes mean nothing across a container's border."""

    figures = ("gpu_others_sm_fraction",)

    def __init__(
        self, device: NvmlDevice, own_pids: Callable[[], Container[int]], namespace: Path = _OWN_NAMESPACE
    ) -> None:
        self._device, self._own_pids, self._namespace = device, own_pids, namespace
        self._seen_us: int | None = None
        """Stamp of the newest sample known; None: nothing was asked yet."""

    def look(self, now_s: float) -> Look:
        if not _sees_the_drivers_ids(self._namespace):
            return self.all_missing("in a container process ids are not the driver's")
        return {"gpu_others_sm_fraction": self._sm_share(self._own_pids())}

    def _sm_share(self, own: Container[int]) -> float | Missing | None:
        """Mean of each process's samples, summed. Left out: the driver's empty and impossible ones."""
        seen_us = self._seen_us or 0
        answer = self._device.ask("nvmlDeviceGetProcessUtilization", seen_us)
        if answer.reason is not None and answer.code != NOT_FOUND:
            return Missing(answer.reason)
        fresh = [sample for sample in answer.value or () if sample.timeStamp > seen_us]
        # The first answer is the driver's whole memory of the past. None at all: nobody has used the GPU since.
        first, self._seen_us = self._seen_us is None, max((int(s.timeStamp) for s in fresh), default=seen_us)
        each: dict[int, list[float]] = {}
        for sample in fresh:
            if sample.pid and sample.pid not in own and sample.smUtil <= 100:
                each.setdefault(int(sample.pid), []).append(sample.smUtil / 100)
        return None if first else sum(fmean(shares) for shares in each.values())


def _sees_the_drivers_ids(namespace: Path) -> bool:
    """Whether the process ids we know are those that the driver lists. True where that cannot be read."""
    try:
        return str(namespace.readlink()) == _FIRST_NAMESPACE
    except OSError:
        return True


_VERSION = 1
"""NVML_GPM_METRICS_GET_VERSION."""

_SM_UTIL = 2
"""NVML_GPM_METRIC_SM_UTIL, in percent."""


class Gpm(Probe):
    """Activity between the last look and this one, by the performance counters."""

    figures = ("gpu_sm_activity_fraction",)

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._refusal: str | None = None
        self._buffers: list[Any] = []
        """The last sample first, the one to fill next behind it."""
        self._has_last = False

    def look(self, now_s: float) -> Look:
        if not self._buffers and self._refusal is None:
            self._refusal = self._open()
        if self._refusal is not None:
            return self.all_missing(self._refusal)
        last, spare = self._buffers
        taken = self._device.ask("nvmlGpmSampleGet", spare)
        had_last, self._has_last = self._has_last, taken.reason is None
        if taken.reason is not None:
            return self.all_missing(taken.reason)
        self._buffers = [spare, last]
        return self._between(last, spare) if had_last else dict.fromkeys(self.figures)

    def close(self) -> None:
        for buffer in self._buffers:
            self._device.nvml.attempt("nvmlGpmSampleFree", buffer)
        self._buffers, self._has_last = [], False

    def _open(self) -> str | None:
        """Take the buffers. Returns why that cannot be."""
        support = self._device.ask("nvmlGpmQueryDeviceSupport")
        if support.reason is not None or not support.value.isSupportedDevice:
            return support.reason or "not supported by this GPU: it takes Hopper or newer"
        answers = [self._device.nvml.attempt("nvmlGpmSampleAlloc") for _ in range(2)]
        self._buffers = [answer.value for answer in answers if answer.reason is None]
        refusal = next((answer.reason for answer in answers if answer.reason is not None), None)
        if refusal is not None:
            self.close()
        return refusal

    def _between(self, earlier: Any, later: Any) -> Look:
        made = self._device.nvml.attempt("c_nvmlGpmMetricsGet_t")
        if made.reason is not None:
            return self.all_missing(made.reason)
        asked = made.value
        asked.version, asked.numMetrics = _VERSION, 1
        asked.sample1, asked.sample2 = earlier, later
        asked.metrics[0].metricId = _SM_UTIL
        answer = self._device.nvml.attempt("nvmlGpmMetricsGet", asked)
        if answer.reason is not None:
            return self.all_missing(answer.reason)
        metric = asked.metrics[0]
        if metric.nvmlReturn != 0:
            return self.all_missing(f"NVML's error {metric.nvmlReturn} for this counter")
        # Not a number where nothing was counted.
        return {"gpu_sm_activity_fraction": metric.value / 100 if math.isfinite(metric.value) else None}
