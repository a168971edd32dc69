"""Readings → what happened in a span. Pure, so that it is tested with numbers and no clock.

In: readings in the order of their times, and a span. Out: `Telemetry`. A reading stands for the time since the one
before it: CPU figures are differences over just that time, and the driver's utilization and power are means over the
past. So means weigh each reading with the time it stands for, which keeps them right when a busy machine delays the
sampler, and that happens exactly when there is something to see.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from loadtune.records import Reading, Telemetry

_at_s = attrgetter("at_s")


@dataclass(frozen=True, slots=True)
class _Weighted:
    """A reading, and the seconds of the span it stands for."""

    reading: Reading
    seconds: float


def telemetry(readings: Sequence[Reading], start_s: float, end_s: float) -> Telemetry | None:
    """Time-weighted means and peaks between two moments; None: no reading falls into them."""
    first, last = bisect_left(readings, start_s, key=_at_s), bisect_right(readings, end_s, key=_at_s)
    within = readings[first:last]
    if not within:
        return None
    weighted = _weighted(readings, first, last, start_s, end_s)
    return Telemetry(
        seconds=end_s - start_s,
        num_readings=len(within),
        gpu_utilization_fraction=_mean(weighted, lambda r: r.gpu_utilization_fraction),
        gpu_memory_used_bytes=_peak(within, lambda r: r.gpu_memory_used_bytes),
        gpu_power_w=_mean(weighted, lambda r: r.gpu_power_w),
        cpu_utilization_fraction=_mean(weighted, lambda r: r.cpu_utilization_fraction),
        bench_cpu_cores=_mean(weighted, lambda r: r.bench_cpu_cores),
        bench_rss_bytes=_peak(within, lambda r: r.bench_rss_bytes),
    )


def _weighted(readings: Sequence[Reading], first: int, last: int, start_s: float, end_s: float) -> list[_Weighted]:
    """The readings in the span, and the one after it, which stands for the span's last moments as well."""
    shares = []
    for position in range(first, min(last + 1, len(readings))):
        reading = readings[position]
        # The first reading of all has none before it and stands for no time.
        since_s = readings[position - 1].at_s if position else reading.at_s
        shares.append(_Weighted(reading, max(0.0, min(end_s, reading.at_s) - max(start_s, since_s))))
    return shares


def _mean(weighted: Sequence[_Weighted], figure: Callable[[Reading], float | None]) -> float | None:
    """Over the time for which the figure is known. None: it never is."""
    known = [(value, share.seconds) for share in weighted if (value := figure(share.reading)) is not None]
    seconds = sum(share for _, share in known)
    if seconds > 0:
        return sum(value * share for value, share in known) / seconds
    return known[0][0] if known else None  # a single reading at the very start: it is all there is


def _peak(within: Sequence[Reading], figure: Callable[[Reading], int | None]) -> int | None:
    return max((value for reading in within if (value := figure(reading)) is not None), default=None)
