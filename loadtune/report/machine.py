"""The machine in words: what it offers, who else uses it, and how busy it was."""

import re
from dataclasses import fields

from loadtune.records.facts import Device, GpuFacts, GpuProcess, HostFacts
from loadtune.records.telemetry import Telemetry
from loadtune.units import MISSING, bytes_text, counted, percent_text

VISIBLE_BYTES = 100 * 2**20
"""What another process has to hold of a GPU to be worth a word: 0.07% of an H200, 1% of a GPU of 10 GiB. Desktops and
daemons that hold less stand on many machines."""


def banner(host: HostFacts, device: Device) -> tuple[tuple[str, str], ...]:
    """Limits in force beside what the hardware lists; the chosen ``device`` is marked."""
    ram = f"{bytes_text(host.ram_total_bytes)} in the machine"
    if host.ram_limit_bytes != host.ram_total_bytes:
        ram = f"limit {bytes_text(host.ram_limit_bytes)}, {ram}"
    gpus = list[tuple[str, str]]()
    for gpu in host.gpus:
        memory = f"{bytes_text(gpu.free_bytes)} free of {bytes_text(gpu.total_bytes)}"
        chosen = " ← used" if device.uuid == gpu.uuid else ""
        busy = f"{percent_text(gpu.utilization_fraction)} busy{chosen}"
        gpus.append((f"GPU {gpu.index}", f"{gpu.name}, {memory}, {busy}"))
        held = _holders_text(gpu)
        gpus += [("", held)] if held else []
    return (
        ("host", f"{host.hostname}, {host.os}"),
        ("Python", host.python),
        ("torch", f"{host.torch or 'not installed'} (CUDA {host.cuda or MISSING}, driver {host.driver or MISSING})"),
        *(gpus or [("GPU", "none")]),
        ("CPU", (host.cpu_name or "unknown model") + (" ← used" if device.kind == "cpu" else "")),
        ("cores", f"{host.num_usable_cores} usable of {host.num_listed_cores} listed"),
        ("RAM", f"{bytes_text(host.ram_available_bytes)} available, {ram}"),
        ("/dev/shm", f"{bytes_text(host.shm_free_bytes)} free of {bytes_text(host.shm_total_bytes)}"),
    )


def machine_line(host: HostFacts, device: Device) -> str:
    """The chosen device, cores, RAM and versions in one line."""
    gpu = next((gpu for gpu in host.gpus if gpu.uuid == device.uuid), None)
    free = "" if gpu is None else f" ({bytes_text(gpu.free_bytes)} of {bytes_text(gpu.total_bytes)} free)"
    cuda = f" (CUDA {host.cuda})" if gpu is not None and host.cuda else ""
    return (
        f"{device.name}{free}, {counted(host.num_usable_cores, 'usable core')}, "
        f"{bytes_text(host.ram_available_bytes)} RAM available, torch {host.torch or MISSING}{cuda}"
    )


def _holders_text(gpu: GpuFacts) -> str | None:
    """Who holds a visible part of it, most first: ``held by python (pid 812), 12.3 GiB``; or how much it is that the
    driver names no holder of. None: nothing worth a word."""

    def said(process: GpuProcess) -> str:
        name = f"pid {process.pid}" if process.name is None else f"{process.name} (pid {process.pid})"
        return name if process.used_bytes is None else f"{name}, {bytes_text(process.used_bytes)}"

    # Where the driver does not say what each holds, what they hold together decides.
    held = ((each, gpu.others_bytes if each.used_bytes is None else each.used_bytes) for each in gpu.processes)
    if named := [said(process) for process, used in held if (used or 0) > VISIBLE_BYTES]:
        return f"held by {'; '.join(named)}"
    if (gpu.others_bytes or 0) <= VISIBLE_BYTES:
        return None
    return f"{bytes_text(gpu.others_bytes)} held by processes that the driver does not name"


_ACRONYMS = {"cpu": "CPU", "gpu": "GPU", "sm": "SM"}
_UNIT = re.compile(r"_(per_s|bytes|fraction|s)$")


def telemetry_rows(telemetry: Telemetry) -> tuple[tuple[str, str], ...]:
    """How many figures of CPU, memory and GPU are available, and one row for each reason why some are not."""
    by_reason: dict[str, list[str]] = {}
    for figure, reason in telemetry.missing.items():
        words = _UNIT.sub("", figure).split("_")
        by_reason.setdefault(reason, []).append(" ".join(_ACRONYMS.get(word, word) for word in words))
    about = ("seconds", "missing")
    figures = [getattr(telemetry, field.name) for field in fields(telemetry) if field.name not in about]
    num_seen, num_missing = sum(figure not in (None, ()) for figure in figures), len(telemetry.missing)
    missing = (("", f"not available: {', '.join(names)}: {reason}") for reason, names in by_reason.items())
    return (("sensors", f"{num_seen} of {num_seen + num_missing} figures"), *missing)
