"""The machine in words: what it offers, who else uses it, and how busy it was.

In: `HostFacts`, or `Telemetry` of one span of time or of several runs of one configuration. Out: rows and strings.
"""

from collections.abc import Iterable, Sequence

from loadtune.records.facts import Device, GpuFacts, GpuProcess, HostFacts
from loadtune.records.telemetry import Telemetry
from loadtune.units import MISSING, bytes_text, cores_text, counted, percent_text, watts_text

VISIBLE_BYTES = 100 * 2**20
"""What another process has to hold of a GPU to be worth a word: 0.07% of an H200, 1% of a GPU of 10 GiB. Desktops and
daemons that hold less stand on many machines."""

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


def banner(host: HostFacts, device: Device | None = None) -> tuple[tuple[str, str], ...]:
    """Limits in force beside what the hardware lists; the chosen ``device`` is marked."""
    gpus = [row for gpu in host.gpus for row in _gpu_rows(gpu, device)] or [("GPU", "none")]
    ram = f"{bytes_text(host.ram_total_bytes)} in the machine"
    if host.ram_limit_bytes != host.ram_total_bytes:
        ram = f"limit {bytes_text(host.ram_limit_bytes)}, {ram}"
    return (
        ("host", f"{host.hostname}, {host.os}"),
        ("Python", host.python),
        ("torch", f"{host.torch or 'not installed'} (CUDA {host.cuda or MISSING}, driver {host.driver or MISSING})"),
        *gpus,
        ("CPU", (host.cpu_name or "unknown model") + _chosen(device is not None and device.kind == "cpu")),
        ("cores", f"{host.num_usable_cores} usable of {host.num_listed_cores} listed"),
        ("RAM", f"{bytes_text(host.ram_available_bytes)} available, {ram}"),
        ("/dev/shm", f"{bytes_text(host.shm_free_bytes)} free of {bytes_text(host.shm_total_bytes)}"),
    )


def _gpu_rows(gpu: GpuFacts, device: Device | None) -> list[tuple[str, str]]:
    memory = f"{bytes_text(gpu.free_bytes)} free of {bytes_text(gpu.total_bytes)}"
    busy = f"{percent_text(gpu.utilization_fraction)} busy{_chosen(device is not None and device.uuid == gpu.uuid)}"
    rows = [(f"GPU {gpu.index}", f"{gpu.name}, {memory}, {busy}")]
    hardware = [] if gpu.num_multiprocessors is None else [f"{gpu.num_multiprocessors} multiprocessors"]
    hardware += [] if gpu.compute_capability is None else [f"compute capability {gpu.compute_capability}"]
    rows += [("", ", ".join(hardware))] if hardware else []
    if gpu.driver_bytes is not None:
        driver = f"{bytes_text(gpu.driver_bytes)} reserved by the driver"
        rows.append(("", f"memory: {bytes_text(gpu.others_bytes)} allocated, {driver}"))
    held = holders_text(others_text(gpu), gpu.others_bytes)
    return rows if held is None else [*rows, ("", held)]


def _chosen(chosen: bool) -> str:
    return " ← chosen" if chosen else ""


def machine_line(host: HostFacts, device: Device) -> str:
    """The chosen device, cores, RAM and versions in one line."""
    gpu = next((gpu for gpu in host.gpus if gpu.uuid == device.uuid), None)
    free = "" if gpu is None else f" ({bytes_text(gpu.free_bytes)} of {bytes_text(gpu.total_bytes)} free)"
    cuda = f" (CUDA {host.cuda})" if gpu is not None and host.cuda else ""
    return (
        f"{device.name}{free}, {counted(host.num_usable_cores, 'usable core')}, "
        f"{bytes_text(host.ram_available_bytes)} RAM available, torch {host.torch or MISSING}{cuda}"
    )


def others_text(gpu: GpuFacts) -> tuple[str, ...]:
    """Who holds a visible part of a GPU, most first: ``python (pid 812), 12.3 GiB``. Empty where none can be named."""

    def said(process: GpuProcess) -> str:
        name = f"pid {process.pid}" if process.name is None else f"{process.name} (pid {process.pid})"
        return name if process.used_bytes is None else f"{name}, {bytes_text(process.used_bytes)}"

    # Where the driver does not say what each holds, what they hold together decides.
    held = ((each, gpu.others_bytes if each.used_bytes is None else each.used_bytes) for each in gpu.processes)
    return tuple(said(process) for process, used in held if (used or 0) > VISIBLE_BYTES)


def holders_text(others: tuple[str, ...], others_bytes: int | None) -> str | None:
    """One line for `others_text`, or how much it is that the driver names no holder of. None: nothing worth a word."""
    if others:
        return f"held by {'; '.join(others)}"
    if (others_bytes or 0) <= VISIBLE_BYTES:
        return None
    return f"{bytes_text(others_bytes)} held by processes that the driver does not name"


def utilization_text(seen: Telemetry) -> str:
    """In short: ``GPU 93%, SM 81%, CPU 89%``; without the GPU's where there is none."""
    parts = {"GPU": seen.gpu_utilization_fraction, "SM": seen.gpu_sm_activity_fraction}
    gpu = "".join(f"{name} {percent_text(share)}, " for name, share in parts.items() if share is not None)
    return f"{gpu}CPU {percent_text(seen.cpu_utilization_fraction)}"


def utilization_cells(runs: Sequence[Telemetry], device_kind: str) -> dict[str, str | None]:
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
    cpu = {
        "CPU utilization": percent_text(mean("cpu_utilization_fraction")),
        "  used by workers": None if workers is None else cores_text(workers),
    }
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
