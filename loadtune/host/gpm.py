"""How full the chip is, from its performance counters (NVML's GPM, Hopper and newer): no daemon, no lock, no profiler.

In: two samples of all counters. Out: what went on between them. Each look takes one, and speaks for the time since the
look before. NVIDIA asks for 100 ms and more between two. The driver's memory for the two samples is given back by
`close`. Nothing is enabled or set: a GPU that does not offer GPM keeps its reason.
"""

import math
from typing import Any

from loadtune.host.nvml import NvmlDevice
from loadtune.host.sensing import Look, Missing, Probe

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
        for position, (number, _) in enumerate(_METRICS.values()):
            asked.metrics[position].metricId = number
        answer = self._device.nvml.attempt("nvmlGpmMetricsGet", asked)
        if answer.reason is not None:
            return self.all_missing(answer.reason)
        return {
            figure: _value(asked.metrics[position], unit)
            for position, (figure, (_, unit)) in enumerate(_METRICS.items())
        }


def _value(metric: Any, unit: float) -> float | Missing | None:
    if metric.nvmlReturn != 0:
        return Missing(f"NVML's error {metric.nvmlReturn} for this counter")
    # Not a number where nothing was counted.
    return metric.value * unit if math.isfinite(metric.value) else None
