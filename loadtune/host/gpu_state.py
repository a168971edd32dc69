"""What NVML tells about a GPU at this moment: memory, power, energy, clocks.

In: one GPU. Out: two probes, since clocks cost as much to ask and change less.
"""

from typing import Any

from loadtune.host.nvml import Answer, NvmlDevice
from loadtune.host.sensing import Look, Missing, Probe
from loadtune.host.throttle import throttle_words

MW_PER_W, MJ_PER_J, HZ_PER_MHZ = 1000, 1000, 1_000_000
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
"""NVML_CLOCK_SM and NVML_CLOCK_MEM."""

_REASONS, _OLDER_REASONS = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"


class GpuState(Probe):
    """Memory in use, power, and energy since the last look."""

    figures = ("gpu_memory_used_bytes", "gpu_power_w", "gpu_energy_j")

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._last_mj: int | None = None

    def look(self, now_s: float) -> Look:
        memory = self._device.ask("nvmlDeviceGetMemoryInfo")
        power = self._device.ask("nvmlDeviceGetPowerUsage")
        return {
            # Total minus free, so the driver's own share is in it; the same difference as in `GpuFacts`.
            "gpu_memory_used_bytes": _or_missing(memory, memory.value and int(memory.value.total - memory.value.free)),
            "gpu_power_w": _or_missing(power, power.value and power.value / MW_PER_W),
            "gpu_energy_j": self._energy(),
        }

    def _energy(self) -> Any:
        """The counter starts again where the driver is loaded anew."""
        energy = self._device.ask("nvmlDeviceGetTotalEnergyConsumption")
        last, self._last_mj = self._last_mj, energy.value
        if energy.reason is not None:
            return Missing(energy.reason)
        return None if last is None or energy.value < last else (energy.value - last) / MJ_PER_J


class GpuClocks(Probe):
    """Clocks, and why they are not higher."""

    figures = ("gpu_sm_clock_hz", "gpu_memory_clock_hz", "gpu_throttle_fractions")

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device

    def look(self, now_s: float) -> Look:
        reasons = self._device.ask(_REASONS)
        if reasons.reason is not None:
            reasons = self._device.ask(_OLDER_REASONS)
        return {
            "gpu_sm_clock_hz": self._clock(_SM_CLOCK),
            "gpu_memory_clock_hz": self._clock(_MEMORY_CLOCK),
            "gpu_throttle_fractions": _or_missing(reasons, throttle_words(reasons.value or 0)),
        }

    def _clock(self, kind: int) -> Any:
        clock = self._device.ask("nvmlDeviceGetClockInfo", kind)
        return _or_missing(clock, clock.value and clock.value * HZ_PER_MHZ)


def _or_missing(answer: Answer, value: Any) -> Any:
    return value if answer.reason is None else Missing(answer.reason)
