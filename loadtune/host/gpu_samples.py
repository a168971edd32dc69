"""The GPU's duty cycle, from the buffer in which the driver keeps its own samples of it.

In: ``nvmlDeviceGetSamples``, and ``utilization.gpu`` where there is no buffer or it runs dry, as on an idle GPU. Out:
stretches of the duty cycle, finer than the looks. The driver stamps samples with the wall clock or with the time since
boot, whichever it was built for, so stamps are only compared with each other: the shortest time that was ever seen
between a stamp and the look that brought it is taken for no time at all.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from loadtune.host.nvml import NvmlDevice
from loadtune.host.sensing import Look, Missing, Probe, Stretch

US_PER_S = 1_000_000
LONGEST_S = 1.0
"""No sample stands for more: the driver's documentation gives 1/6 s to 1 s. Also the patience with an empty buffer."""

_GPU_UTILIZATION_SAMPLES = 1
_FIELDS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""nvmlValueType_t → the member of the union that holds a sample's value."""

_FIGURE = "gpu_utilization_fraction"


class DutySample(NamedTuple):
    stamp_us: int
    fraction: float


class GpuUtilization(Probe):
    """The duty cycle since the last look."""

    figures = (_FIGURE,)

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
        samples = parse_samples(value_type, delivered, self._newest_us)
        if samples:
            self._buffer_spoke_s = now_s
            return {_FIGURE: self._stretches(samples, now_s)}
        if self._buffer_spoke_s is not None and now_s - self._buffer_spoke_s < LONGEST_S:
            return {}  # nothing new yet
        return {_FIGURE: self._of_this_moment(now_s)}

    def _stretches(self, samples: list[DutySample], now_s: float) -> list[Stretch]:
        lag_s = now_s - samples[-1].stamp_us / US_PER_S
        # A lag that grew by seconds is a clock that was set.
        stale = self._lag_s is None or lag_s > self._lag_s + 5 * LONGEST_S
        self._lag_s = lag_s if self._lag_s is None or stale else min(self._lag_s, lag_s)
        found = []
        for sample in samples:
            end_s = sample.stamp_us / US_PER_S + self._lag_s
            if self._known_until_s is not None and end_s > self._known_until_s:
                found.append(Stretch(max(self._known_until_s, end_s - LONGEST_S), end_s, sample.fraction))
            self._known_until_s = max(end_s, self._known_until_s or end_s)
        self._newest_us = samples[-1].stamp_us
        return found

    def _of_this_moment(self, now_s: float) -> list[Stretch] | Missing:
        rates = self._device.ask("nvmlDeviceGetUtilizationRates")
        if rates.reason is not None:
            return Missing(rates.reason)
        since_s = now_s if self._known_until_s is None else max(self._known_until_s, now_s - LONGEST_S)
        self._known_until_s = now_s
        return [Stretch(since_s, now_s, rates.value.gpu / 100)]


def parse_samples(value_type: int, samples: Iterable[Any], after_us: int = 0) -> list[DutySample]:
    """NVML's samples newer than ``after_us``, in order of time. Left out: what is no share, as some drivers deliver."""
    field = _FIELDS.get(value_type, "uiVal")
    read = ((int(sample.timeStamp), float(getattr(sample.sampleValue, field))) for sample in samples)
    fresh = ((stamp, percent) for stamp, percent in read if stamp > after_us and 0 <= percent <= 100)
    return sorted(DutySample(stamp, percent / 100) for stamp, percent in fresh)
