"""What terminal and page both say: of the machine, and of a result that is not a whole answer. Judges nothing.

In: `HostFacts` or a `TuningResult`. Out: rows and sentences.
"""

from dataclasses import dataclass

from loadtune.records import Device, GpuFacts, HostFacts, TuningResult
from loadtune.records.chosen import doubt_of, was_confirmed_whole
from loadtune.report.wording import held_text, settings_text
from loadtune.units import MISSING, bytes_text, counted, efficiency_text, percent_text, rate_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and whole lines under it, of words or of code."""

    title: str
    lines: tuple[str, ...]
    note: str = ""
    """A sentence between the two."""


def banner(host: HostFacts, device: Device | None = None) -> tuple[tuple[str, str], ...]:
    """Limits in force beside what the hardware lists; the chosen ``device`` is marked."""
    return (
        ("host", f"{host.hostname}, {host.os}"),
        ("Python", host.python),
        ("torch", f"{host.torch or 'not installed'} (CUDA {host.cuda or MISSING}, driver {host.driver or MISSING})"),
        *_gpu_rows(host.gpus, device),
        ("CPU", (host.cpu_name or "unknown model") + _chosen(device is not None and device.kind == "cpu")),
        ("cores", f"{host.num_usable_cores} usable of {host.num_listed_cores} listed"),
        ("RAM", f"{bytes_text(host.ram_available_bytes)} available, {_ram_limit(host)}"),
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


def _gpu_rows(gpus: tuple[GpuFacts, ...], device: Device | None) -> list[tuple[str, str]]:
    rows = [] if gpus else [("GPU", "none")]
    for gpu in gpus:
        memory = f"{bytes_text(gpu.free_bytes)} free of {bytes_text(gpu.total_bytes)}"
        busy = f"{percent_text(gpu.utilization_fraction)} busy{_chosen(device is not None and device.uuid == gpu.uuid)}"
        rows.append((f"GPU {gpu.index}", f"{gpu.name}, {memory}, {busy}"))
        hardware = [] if gpu.num_multiprocessors is None else [f"{gpu.num_multiprocessors} multiprocessors"]
        hardware += [] if gpu.compute_capability is None else [f"compute capability {gpu.compute_capability}"]
        rows += [("", ", ".join(hardware))] if hardware else []
        if gpu.driver_bytes is not None:
            driver = f"{bytes_text(gpu.driver_bytes)} reserved by the driver"
            rows.append(("", f"memory: {bytes_text(gpu.others_bytes)} allocated, {driver}"))
        rows += [] if (held := held_text(gpu)) is None else [("", held)]
    return rows


def _chosen(chosen: bool) -> str:
    return " ← chosen" if chosen else ""


def _ram_limit(host: HostFacts) -> str:
    total = f"{bytes_text(host.ram_total_bytes)} in the machine"
    return (
        total if host.ram_limit_bytes == host.ram_total_bytes else f"limit {bytes_text(host.ram_limit_bytes)}, {total}"
    )


def warning(result: TuningResult) -> str | None:
    """That the run was cut short, or confirmed nothing. None: it went to its end with an answer."""
    if result.cut_short is not None:
        scope = "The figures come from fewer runs than planned."
        if was_confirmed_whole(result):
            scope = "The confirmation was complete before that."
        if result.best is None:
            scope = "Nothing was confirmed."
        return f"Cut short: {result.cut_short.rstrip('.')}. {scope}"
    if result.best is None:
        return "No configuration could be confirmed."
    return None if (doubt := doubt_of(result, result.best)) is None else f"The answer is not confirmed: {doubt}"


def seen_once(result: TuningResult) -> tuple[str, ...]:
    """The best trial of a run that confirmed nothing. Empty: there is an answer."""
    if result.best is not None:
        return ()
    timed = [(trial.measurement, trial.config) for trial in result.trials if trial.measurement is not None]
    if not timed:
        return ("No trial was measured.",)
    best, config = max(timed, key=lambda pair: pair[0].score(result.config.objective))
    by_energy = result.config.objective == "samples-per-joule"
    efficiency = f", {efficiency_text(best.samples_per_joule)}" if by_energy else ""
    return (
        f"The fastest trial, measured once: {rate_text(best.samples_per_s)}{efficiency} with {settings_text(config)}.",
    )


def batch_caution(result: TuningResult) -> tuple[str, ...]:
    """What another batch size changes in training. Empty: it is the baseline's."""
    if result.best is None or result.yours is None or result.best.config.batch_size == result.yours.batch_size:
        return ()
    return (
        f"Batch size {result.best.config.batch_size} instead of {result.yours.batch_size}: tune the learning rate "
        "again, check accuracy.",
    )
