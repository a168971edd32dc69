"""What NVML tells of one GPU while something runs, each question a probe of its own: it may cost milliseconds.

In: one GPU. Out: memory, power, energy and clocks at a moment; the duty cycle, from the driver's own samples of it;
what processes that are not ours hold and take; and how full the chip is, from its performance counters.
"""

import math
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from loadtune.host.gpu import read_process_memory
from loadtune.host.nvml import NOT_FOUND, NvmlDevice
from loadtune.host.sensing import Look, Missing, Probe, Stretch

US_PER_S = 1_000_000
LONGEST_S = 1.0
"""No sample stands for more: the driver's documentation gives 1/6 s to 1 s. Also the patience with an empty buffer."""

_GPU_UTILIZATION_SAMPLES = 1
_FIELDS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""nvmlValueType_t → the member of the union that holds a sample's value."""

_DUTY = "gpu_utilization_fraction"

_OWN_NAMESPACE = Path("/proc/self/ns/pid")
_FIRST_NAMESPACE = "pid:[4026531836]"
"""The kernel's first namespace has this number always (PROC_PID_INIT_INO): its ids are those the driver sees."""


class GpuFigure(Probe):
    """What NVML's ``function`` answers at this moment; ``value`` makes the figure of it."""

    def __init__(
        self, device: NvmlDevice, figure: str, value: Callable[[Any], float], function: str, *args: int
    ) -> None:
        self.figures = (figure,)
        self._device, self._value, self._function, self._args = device, value, function, args

    def look(self, now_s: float) -> Look:
        answer = self._device.ask(self._function, *self._args)
        return {self.figures[0]: self._value(answer.value) if answer.reason is None else Missing(answer.reason)}


class GpuEnergy(Probe):
    """Energy since the last look."""

    figures = ("gpu_energy_j",)

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._last_mj: int | None = None

    def look(self, now_s: float) -> Look:
        energy = self._device.ask("nvmlDeviceGetTotalEnergyConsumption")
        last, self._last_mj = self._last_mj, energy.value
        if energy.reason is not None:
            return self.all_missing(energy.reason)
        # The counter starts again where the driver is loaded anew.
        used_j = None if last is None or energy.value < last else (energy.value - last) / 1000
        return {self.figures[0]: used_j}


class GpuUtilization(Probe):
    """The duty cycle since the last look, in stretches that are finer than the looks.

    From ``nvmlDeviceGetSamples``, or ``utilization.gpu`` where there is no buffer or it runs dry, as on an idle GPU.
    The driver stamps samples with the wall clock or with the time since boot, whichever it was built for, so stamps
    are only compared with each other: the shortest time that was ever seen between a stamp and the look that brought it
    is taken for no time at all.
    """

    figures = (_DUTY,)

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._newest_us = 0
        self._lag_s: float | None = None
        """Monotonic clock less stamp, the least that was seen."""
        self._known_until_s: float | None = None
        self._buffer_spoke_s: float | None = None

    def look(self, now_s: float) -> Look:
        buffer = self._device.ask("nvmlDeviceGetSamples", _GPU_UTILIZATION_SAMPLES, self._newest_us)
        value_type, delivered = buffer.value or (0, ())
        samples = _parse_samples(value_type, delivered, self._newest_us)
        if samples:
            self._buffer_spoke_s = now_s
            return {_DUTY: self._stretches(samples, now_s)}
        if self._buffer_spoke_s is not None and now_s - self._buffer_spoke_s < LONGEST_S:
            return {}  # nothing new yet
        return {_DUTY: self._of_this_moment(now_s)}

    def _stretches(self, samples: list[tuple[int, float]], now_s: float) -> list[Stretch]:
        self._newest_us = samples[-1][0]
        lag_s = now_s - self._newest_us / US_PER_S
        # A lag that grew by seconds is a clock that was set.
        stale = self._lag_s is None or lag_s > self._lag_s + 5 * LONGEST_S
        self._lag_s = lag_s if self._lag_s is None or stale else min(self._lag_s, lag_s)
        found = []
        for stamp_us, fraction in samples:
            end_s = stamp_us / US_PER_S + self._lag_s
            if self._known_until_s is not None and end_s > self._known_until_s:
                found.append(Stretch(max(self._known_until_s, end_s - LONGEST_S), end_s, fraction))
            self._known_until_s = max(end_s, self._known_until_s or end_s)
        return found

    def _of_this_moment(self, now_s: float) -> list[Stretch] | Missing:
        rates = self._device.ask("nvmlDeviceGetUtilizationRates")
        if rates.reason is not None:
            return Missing(rates.reason)
        since_s = now_s if self._known_until_s is None else max(self._known_until_s, now_s - LONGEST_S)
        self._known_until_s = now_s
        return [Stretch(since_s, now_s, rates.value.gpu / 100)]


def _parse_samples(value_type: int, samples: Iterable[Any], after_us: int) -> list[tuple[int, float]]:
    """NVML's samples newer than ``after_us``, as stamps in µs and shares, in order of time. Left out: what is no share,
    as some drivers deliver."""
    field = _FIELDS.get(value_type, "uiVal")
    read = ((int(sample.timeStamp), float(getattr(sample.sampleValue, field))) for sample in samples)
    fresh = ((stamp, percent) for stamp, percent in read if stamp > after_us and 0 <= percent <= 100)
    return sorted((stamp, percent / 100) for stamp, percent in fresh)


class GpuOthers(Probe):
    """Memory and SM share of all processes but our own. Ids of processes mean nothing across a container's border."""

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
        return None if first else _others_sm_fraction(fresh, own)


def _others_sm_fraction(samples: Iterable[Any], own: Container[int]) -> float:
    """Mean of each process's samples, summed over those not ours. Left out: the driver's empty and impossible ones."""
    each: dict[int, list[float]] = {}
    for sample in samples:
        if sample.pid and sample.pid not in own and sample.smUtil <= 100:
            each.setdefault(int(sample.pid), []).append(sample.smUtil / 100)
    return min(1.0, sum(fmean(shares) for shares in each.values()))


def sees_the_drivers_ids(namespace: Path = _OWN_NAMESPACE) -> bool:
    """Whether the process ids we know are those that the driver lists. True where that cannot be read."""
    try:
        return str(namespace.readlink()) == _FIRST_NAMESPACE
    except OSError:
        return True


BYTES_PER_MIB = 2**20
_VERSION = 1
"""NVML_GPM_METRICS_GET_VERSION."""

_TOO_OLD = "not supported by this GPU: it takes Hopper or newer"

_PERCENT = 0.01
_METRICS = {
    "gpu_sm_activity_fraction": (2, _PERCENT),
    "gpu_sm_occupancy_fraction": (3, _PERCENT),
    "gpu_tensor_activity_fraction": (5, _PERCENT),
    "gpu_dram_bandwidth_fraction": (10, _PERCENT),
    "gpu_pcie_write_bytes_per_s": (20, BYTES_PER_MIB),
    "gpu_pcie_read_bytes_per_s": (21, BYTES_PER_MIB),
}
"""Figure → NVML_GPM_METRIC_… and what one of its units is: SM_UTIL, SM_OCCUPANCY, ANY_TENSOR_UTIL, DRAM_BW_UTIL,
PCIE_TX_PER_SEC (from this GPU) and PCIE_RX_PER_SEC (to it)."""


class Gpm(Probe):
    """Activity between the last look and this one."""

    figures = tuple(_METRICS)

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._refusal: str | None = None
        self._asked = False
        self._buffers: list[Any] = []
        """The last sample first, the one to fill next behind it."""
        self._has_last = False

    def look(self, now_s: float) -> Look:
        refusal = self._why_not()
        if refusal is not None:
            return self.all_missing(refusal)
        last, spare = self._buffers
        taken = self._device.ask("nvmlGpmSampleGet", spare)
        had_last, self._has_last = self._has_last, taken.reason is None
        if taken.reason is not None:
            return self.all_missing(taken.reason)
        self._buffers = [spare, last]
        return self._between(last, spare) if had_last else {}

    def close(self) -> None:
        for buffer in self._buffers:
            self._device.nvml.attempt("nvmlGpmSampleFree", buffer)
        self._buffers, self._has_last = [], False

    def _why_not(self) -> str | None:
        """Asked once; then the buffers are there. None: it can be sampled."""
        if not self._asked:
            support = self._device.ask("nvmlGpmQueryDeviceSupport")
            if support.reason is not None and support.code is None:
                return support.reason  # no answer, which may pass
            supported = support.reason is None and support.value.isSupportedDevice
            self._refusal = None if supported else support.reason or _TOO_OLD
            self._asked = True
        if self._refusal is None and not self._buffers:
            return self._allocate()
        return self._refusal

    def _allocate(self) -> str | None:
        answers = [self._device.nvml.attempt("nvmlGpmSampleAlloc") for _ in range(2)]
        self._buffers = [answer.value for answer in answers if answer.reason is None]
        failed = next((answer.reason for answer in answers if answer.reason is not None), None)
        if failed is not None:
            self.close()
        return failed

    def _between(self, earlier: Any, later: Any) -> Look:
        made = self._device.nvml.attempt("c_nvmlGpmMetricsGet_t")
        if made.reason is not None:
            return self.all_missing(made.reason)
        asked = made.value
        asked.version, asked.numMetrics = _VERSION, len(_METRICS)
        asked.sample1, asked.sample2 = earlier, later
        for metric, (number, _) in zip(asked.metrics, _METRICS.values(), strict=False):
            metric.metricId = number
        answer = self._device.nvml.attempt("nvmlGpmMetricsGet", asked)
        if answer.reason is not None:
            return self.all_missing(answer.reason)
        metrics = zip(asked.metrics, _METRICS.items(), strict=False)
        return {figure: _value(metric, unit) for metric, (figure, (_, unit)) in metrics}


def _value(metric: Any, unit: float) -> float | Missing | None:
    if metric.nvmlReturn != 0:
        return Missing(f"NVML's error {metric.nvmlReturn} for this counter")
    # Not a number where nothing was counted.
    return metric.value * unit if math.isfinite(metric.value) else None
