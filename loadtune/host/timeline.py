"""Tracks → what happened in a span, as the record that is kept. Pure.

Which figure is a mean, a peak or a total is said here and nowhere else. A figure's name is its field's in `Telemetry`,
but for those that a field is made of.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise, zip_longest
from typing import Any

from loadtune.host import integrals
from loadtune.host.anonymous import FIGURE as ANONYMOUS
from loadtune.host.tracks import Tracks, shares
from loadtune.records import MemoryReading, Telemetry, Timeline, WorkerUse

MAX_SLICES = 240
"""Points of a timeline: three for each column of a terminal, and under 30 kB a measurement in an indented file."""

EACH_WORKERS_CORES, EACH_WORKERS_RSS = "each_workers_cpu_cores", "each_workers_rss_bytes"

BUSY_CORES, OWN_CORES = "busy_cpu_cores", "own_cpu_cores"
"""Cores that are busy with whatever it is, and with this process, which watches."""

_DUTY = "gpu_utilization_fraction"

_MEANS = (
    _DUTY,
    "gpu_power_w",
    "gpu_sm_activity_fraction",
    "gpu_sm_occupancy_fraction",
    "gpu_tensor_activity_fraction",
    "gpu_dram_bandwidth_fraction",
    "gpu_pcie_read_bytes_per_s",
    "gpu_pcie_write_bytes_per_s",
    "gpu_sm_clock_hz",
    "gpu_memory_clock_hz",
    "gpu_others_sm_fraction",
    "cpu_utilization_fraction",
    "cgroup_cpu_cores",
    "bench_cpu_cores",
    "main_cpu_cores",
    "workers_cpu_cores",
    "other_cpu_cores",
    "disk_read_bytes_per_s",
)
_PEAKS = (
    "gpu_memory_used_bytes",
    "gpu_others_memory_bytes",
    "bench_rss_bytes",
    "main_rss_bytes",
    "other_rss_bytes",
    "ram_used_bytes",
    "shm_used_bytes",
)

_SERIES = ("gpu_utilization_fraction", "cpu_utilization_fraction")
_DIGITS = 4
"""Of a timeline's value: no sensor knows more, and the stored result is a third as long."""


def telemetry(
    tracks: Tracks, missing: Mapping[str, str], num_readings: int, start_s: float, end_s: float
) -> Telemetry | None:
    """What happened between two moments, of which ``num_readings`` saw something; None: none did.

    ``missing`` is why figures could not be had at any time; only those without a value in this span are kept.
    """
    if num_readings == 0:
        return None
    seconds = end_s - start_s
    found = _figures(tracks, start_s, end_s)
    unknown = {figure: why for figure, why in missing.items() if figure in _FIELDS and found.get(figure) is None}
    return Telemetry(
        seconds=seconds,
        num_readings=num_readings,
        workers=_workers(tracks, start_s, end_s),
        memory=_memory(tracks, start_s, end_s),
        timeline=_timeline(tracks, num_readings, start_s, end_s),
        missing=unknown,
        **found,
    )


_FIELDS = frozenset(Telemetry.__dataclass_fields__)


def _figures(tracks: Tracks, start_s: float, end_s: float) -> dict[str, Any]:
    def of(figure: str, integral: Callable[..., Any], *args: float) -> Any:
        return integral(tracks.within(figure, start_s, end_s), *args)

    throttles = of("num_cpu_throttles", integrals.total, end_s - start_s)
    return {
        **{figure: of(figure, integrals.mean) for figure in _MEANS},
        **{figure: of(figure, integrals.peak) for figure in _PEAKS},
        "ram_available_bytes": of("ram_available_bytes", integrals.least),
        "gpu_energy_j": of("gpu_energy_j", integrals.total, end_s - start_s),
        "cpu_throttled_s": of("cpu_throttled_s", integrals.total, end_s - start_s),
        "num_cpu_throttles": None if throttles is None else round(throttles),
        "gpu_utilization_p5_fraction": of(_DUTY, integrals.percentile, 0.05),
        "gpu_utilization_p95_fraction": of(_DUTY, integrals.percentile, 0.95),
        "gpu_idle_fraction": of(_DUTY, integrals.zero_fraction),
        "core_utilization_fractions": of("core_utilization_fractions", integrals.means) or None,
        "others_cpu_cores": _others(
            *(of(figure, integrals.mean) for figure in (BUSY_CORES, "bench_cpu_cores", OWN_CORES))
        ),
    }


def _others(busy: float | None, bench: float | None, own: float | None) -> float | None:
    """Counters of processes and of cores tick apart, so the difference may be a little below 0."""
    return None if busy is None or bench is None or own is None else max(0.0, busy - bench - own)


def _workers(tracks: Tracks, start_s: float, end_s: float) -> tuple[WorkerUse, ...]:
    cores = integrals.means(tracks.within(EACH_WORKERS_CORES, start_s, end_s))
    rss = integrals.peaks(tracks.within(EACH_WORKERS_RSS, start_s, end_s))
    return tuple(WorkerUse(cpu_cores=used, rss_bytes=held) for used, held in zip_longest(cores, rss))


def _memory(tracks: Tracks, start_s: float, end_s: float) -> tuple[MemoryReading, ...]:
    """Those taken within the span: a reading is of its moment."""
    return tuple(
        MemoryReading(after_s=read.end_s - start_s, main_bytes=main, workers_bytes=workers, num_workers=num_workers)
        for read in tracks.stretches(ANONYMOUS, start_s, end_s)
        if read.end_s <= end_s
        for main, workers, num_workers in [read.value]
    )


def _timeline(tracks: Tracks, num_readings: int, start_s: float, end_s: float) -> Timeline | None:
    """A slice for each reading, or as many as are kept. None: a span without length."""
    if end_s <= start_s:
        return None
    count = min(MAX_SLICES, num_readings)
    slice_s = (end_s - start_s) / count
    edges = [start_s + position * slice_s for position in range(count)] + [end_s]

    def series(figure: str) -> tuple[float | None, ...]:
        stretches = tracks.stretches(figure, start_s, end_s)
        values = tuple(integrals.mean(shares(stretches, begin_s, until_s)) for begin_s, until_s in pairwise(edges))
        return values if any(value is not None for value in values) else ()

    return Timeline(slice_s=slice_s, **{figure: tuple(map(_short, series(figure))) for figure in _SERIES})


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")
