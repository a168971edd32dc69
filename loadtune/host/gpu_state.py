"""What NVML tells about a GPU at this moment: memory, power, energy, clocks.

In: one GPU. Out: a probe for each, because each is a question of its own to the driver, and may cost milliseconds.
"""

from typing import Any

from loadtune.host.nvml import Answer, NvmlDevice
from loadtune.host.sensing import Look, Missing, Probe

MW_PER_W, MJ_PER_J, HZ_PER_MHZ = 1000, 1000, 1_000_000
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
"""NVML_CLOCK_SM and NVML_CLOCK_MEM."""


class GpuMemory(Probe):
    """Memory in use."""

    figures = ("gpu_memory_used_bytes",)

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device

    def look(self, now_s: float) -> Look:
        memory = self._device.ask("nvmlDeviceGetMemoryInfo")
        # Total minus free, so the driver's own share is in it; the same difference as in `GpuFacts`.
        return {self.figures[0]: _or_missing(memory, memory.value and int(memory.value.total - memory.value.free))}


class GpuPower(Probe):
    """Power at this moment."""

    figures = ("gpu_power_w",)

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device

    def look(self, now_s: float) -> Look:
        power = self._device.ask("nvmlDeviceGetPowerUsage")
        return {self.figures[0]: _or_missing(power, power.value and power.value / MW_PER_W)}


class GpuEnergy(Probe):
    """Energy since the last look."""

    figures = ("gpu_energy_j",)

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._last_mj: int | None = None

    def look(self, now_s: float) -> Look:
        return {self.figures[0]: self._since_last_look()}

    def _since_last_look(self) -> Any:
        """The counter starts again where the driver is loaded anew."""
        energy = self._device.ask("nvmlDeviceGetTotalEnergyConsumption")
        last, self._last_mj = self._last_mj, energy.value
        if energy.reason is not None:
            return Missing(energy.reason)
        return None if last is None or energy.value < last else (energy.value - last) / MJ_PER_J


class GpuClocks(Probe):
    """Clocks at this moment."""

    figures = ("gpu_sm_clock_hz", "gpu_memory_clock_hz")

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device

    def look(self, now_s: float) -> Look:
        return {"gpu_sm_clock_hz": self._clock(_SM_CLOCK), "gpu_memory_clock_hz": self._clock(_MEMORY_CLOCK)}

    def _clock(self, kind: int) -> Any:
        clock = self._device.ask("nvmlDeviceGetClockInfo", kind)
        return _or_missing(clock, clock.value and clock.value * HZ_PER_MHZ)


def _or_missing(answer: Answer, value: Any) -> Any:
    return value if answer.reason is None else Missing(answer.reason)
