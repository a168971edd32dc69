"""Utilization of GPU and CPU, as strings for a table and for ``loadtune doctor``.

In: `Telemetry`, of one span of time or of several runs of one configuration. Out: strings.
"""

from collections.abc import Iterable, Sequence

from loadtune.records import Telemetry
from loadtune.units import cores_text, percent_text, watts_text

Runs = Sequence[Telemetry]

_NAMES = {
    "gpu_utilization_fraction": "GPU duty cycle",
    "gpu_memory_used_bytes": "GPU memory",
    "gpu_power_w": "GPU power",
    "gpu_energy_j": "GPU energy",
    "gpu_sm_activity_fraction": "SM activity",
    "gpu_sm_occupancy_fraction": "SM occupancy",
    "gpu_tensor_activity_fraction": "tensor-core activity",
    "gpu_dram_bandwidth_fraction": "DRAM bandwidth",
    "gpu_pcie_read_bytes_per_s": "PCIe reads",
    "gpu_pcie_write_bytes_per_s": "PCIe writes",
    "gpu_sm_clock_hz": "SM clock",
    "gpu_memory_clock_hz": "memory clock",
    "gpu_others_memory_bytes": "GPU memory of other processes",
    "gpu_others_sm_fraction": "SM share of other processes",
    "cpu_utilization_fraction": "CPU utilization",
    "core_utilization_fractions": "CPU utilization by core",
    "others_cpu_cores": "CPU of other processes",
    "cgroup_cpu_cores": "CPU of the cgroup",
    "num_cpu_throttles": "CPU throttling",
    "bench_cpu_cores": "CPU of the training process",
    "bench_rss_bytes": "RAM of the training process",
    "ram_available_bytes": "RAM available",
    "ram_used_bytes": "RAM used",
    "shm_used_bytes": "/dev/shm used",
    "disk_read_bytes_per_s": "disk reads",
    "file_read_bytes_per_s": "file reads",
}
"""What is sampled, with one name for figures that are available together."""


def gpu_text(runs: Runs) -> str:
    """Duty cycle, and SM activity where the GPU reports it: ``56%, SM 48%``."""
    duty = percent_text(mean_known(t.gpu_utilization_fraction for t in runs))
    activity = mean_known(t.gpu_sm_activity_fraction for t in runs)
    return duty if activity is None else f"{duty}, SM {percent_text(activity)}"


def cpu_text(runs: Runs) -> str:
    """Share of the usable cores: ``86%``."""
    return percent_text(mean_known(t.cpu_utilization_fraction for t in runs))


def utilization_text(seen: Telemetry) -> str:
    """In short: ``GPU 93%, SM 81%, CPU 89%``; without the GPU's where there is none."""
    gpu = "" if seen.gpu_utilization_fraction is None else f"GPU {gpu_text([seen])}, "
    return f"{gpu}CPU {cpu_text([seen])}"


def utilization_cells(runs: Runs, device_kind: str) -> dict[str, str | None]:
    """Mean figures of a configuration's runs by their names. None: this machine does not have that figure."""

    def mean(figure: str) -> float | None:
        return mean_known(getattr(telemetry, figure) for telemetry in runs)

    idle, power, workers = mean("gpu_idle_fraction"), mean("gpu_power_w"), mean("workers_cpu_cores")
    low, high = mean("gpu_utilization_p5_fraction"), mean("gpu_utilization_p95_fraction")
    activity, tensor = mean("gpu_sm_activity_fraction"), mean("gpu_tensor_activity_fraction")
    duty = percent_text(mean("gpu_utilization_fraction"))
    known = low is not None and high is not None
    gpu = {
        "GPU utilization": duty if idle is None else f"{duty} (idle {percent_text(idle)})",
        "  5th–95th percentile": f"{percent_text(low)} to {percent_text(high)}" if known else None,
        "SM / tensor activity": None if activity is None else f"{percent_text(activity)} / {percent_text(tensor)}",
        "GPU power": None if power is None else watts_text(power),
    }
    cpu = {"CPU utilization": cpu_text(runs), "  used by workers": None if workers is None else cores_text(workers)}
    return cpu if device_kind == "cpu" else gpu | cpu


def mean_known(values: Iterable[float | None]) -> float | None:
    """Over what is known; None: nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def telemetry_rows(telemetry: Telemetry, device_kind: str) -> tuple[tuple[str, str], ...]:
    """How many figures are available, and one row for each reason why some are not."""
    by_reason: dict[str, list[str]] = {}
    for figure, name in _NAMES.items():
        if figure in telemetry.missing:
            by_reason.setdefault(telemetry.missing[figure], []).append(name)
    num_seen = sum(getattr(telemetry, figure) is not None for figure in _NAMES)
    num_missing = sum(map(len, by_reason.values()))
    share = f"{num_seen} of {num_seen + num_missing} figures" if num_missing else f"all {num_seen} figures"
    share += " of CPU and memory; there is no GPU" if device_kind == "cpu" else " of GPU, CPU and memory"
    missing = (("", f"not available: {', '.join(names)}: {reason}") for reason, names in by_reason.items())
    return (("telemetry", share), *missing)
