"""What a report says, as plain data: rows of strings, with units, in order. Judges nothing, prints nothing.

In: `HostFacts` or a `TuningResult`. Out: a `Banner`, which `text` renders, or a `Summary`, which the page shows.
"""

from dataclasses import dataclass

from loadtune.records import Device, GpuFacts, HostFacts, Trial, TuningResult
from loadtune.records.chosen import doubt_of, was_confirmed_whole
from loadtune.report.bottleneck import lines as bottleneck_lines
from loadtune.report.costs import cost_lines
from loadtune.report.export import loader_code, recipe_code, structure_of
from loadtune.report.figures import Table, figures
from loadtune.report.memory import ceilings_table
from loadtune.report.remedies import RemediesView, remedies_view
from loadtune.report.wording import STAGE_TEXT, failures_text, held_text, keep_text, recipe_line, settings_text
from loadtune.units import (
    MISSING,
    bytes_text,
    counted,
    efficiency_text,
    percent_text,
    rate_text,
    seconds_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Banner:
    """What the machine offers, as name and value."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and whole lines under it."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The result of a run, in the order it is read."""

    title: str
    warning: str | None
    """The run was cut short, or confirmed nothing. None: it went to its end."""
    figures: Table | None
    """None: nothing was confirmed."""
    sections: tuple[Section, ...]
    """Only those that have lines."""
    ceilings: Table | None
    remedies: RemediesView | None
    """Changes of the code, all that were tried or predicted. None: there are none."""
    code: tuple[Section, ...]
    """Python for pasting, each under what it is for."""


def banner(host: HostFacts, device: Device | None = None) -> Banner:
    """Limits in force beside what the hardware lists; the chosen ``device`` is marked."""
    rows = [
        ("host", f"{host.hostname}, {host.os}"),
        ("Python", host.python),
        ("torch", f"{host.torch or 'not installed'} (CUDA {host.cuda or MISSING}, driver {host.driver or MISSING})"),
        *_gpu_rows(host.gpus, device),
        ("CPU", (host.cpu_name or "unknown model") + _chosen(device is not None and device.kind == "cpu")),
        ("cores", f"{host.num_usable_cores} usable of {host.num_listed_cores} listed"),
        ("RAM", f"{bytes_text(host.ram_available_bytes)} available, {_ram_limit(host)}"),
        ("/dev/shm", f"{bytes_text(host.shm_free_bytes)} free of {bytes_text(host.shm_total_bytes)}"),
    ]
    return Banner(rows=tuple(rows))


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
    if not gpus:
        return [("GPU", "none")]
    return [row for gpu in gpus for row in _rows_of(gpu, chosen=device is not None and device.uuid == gpu.uuid)]


def _rows_of(gpu: GpuFacts, *, chosen: bool) -> list[tuple[str, str]]:
    held = held_text(gpu)
    details = (_hardware(gpu), _memory_use(gpu), held)
    return [(f"GPU {gpu.index}", _gpu(gpu) + _chosen(chosen)), *(("", text) for text in details if text)]


def _gpu(gpu: GpuFacts) -> str:
    memory = f"{bytes_text(gpu.free_bytes)} free of {bytes_text(gpu.total_bytes)}"
    return f"{gpu.name}, {memory}, {percent_text(gpu.utilization_fraction)} busy"


def _hardware(gpu: GpuFacts) -> str:
    known = [] if gpu.num_multiprocessors is None else [f"{gpu.num_multiprocessors} multiprocessors"]
    known += [] if gpu.compute_capability is None else [f"compute capability {gpu.compute_capability}"]
    return ", ".join(known)


def _memory_use(gpu: GpuFacts) -> str | None:
    """None: the driver does not say what it reserves."""
    if gpu.driver_bytes is None:
        return None
    return f"memory: {bytes_text(gpu.others_bytes)} allocated, {bytes_text(gpu.driver_bytes)} reserved by the driver"


def _chosen(chosen: bool) -> str:
    return " ← chosen" if chosen else ""


def _ram_limit(host: HostFacts) -> str:
    total = f"{bytes_text(host.ram_total_bytes)} in the machine"
    return (
        total if host.ram_limit_bytes == host.ram_total_bytes else f"limit {bytes_text(host.ram_limit_bytes)}, {total}"
    )


def summary(result: TuningResult) -> Summary:
    """Every measured figure in words; a run without a winner names its best trial, which ran once."""
    table = figures(result)
    sections = (
        Section(title="Answer", lines=kept(result)),
        Section(title="Measured once, not confirmed", lines=seen_once(result)),
        Section(title="Batch size", lines=batch_caution(result)),
        Section(title="Bottleneck", lines=bottleneck_lines(result)),
        Section(title="Epochs and checkpoints", lines=cost_lines(result)),
        Section(title="Memory format and optimizer, compute only", lines=tuple(map(recipe_line, result.recipes))),
        Section(title="Time taken", lines=_took(result)),
        Section(title="Notes", lines=result.notes),
    )
    return Summary(
        title=f"{result.config.workload.title} on {result.device.name}",
        warning=warning(result),
        figures=table,
        sections=tuple(section for section in sections if section.lines),
        ceilings=ceilings_table(result.ceilings, result.device.kind),
        remedies=remedies_view(result),
        code=_code(result),
    )


def kept(result: TuningResult) -> tuple[str, ...]:
    """That the user's settings are the answer, or are it at their batch size. Empty: something is proven better."""
    winners = (result.best, result.best_at_your_batch)
    return tuple(dict.fromkeys(said for winner in winners if winner and (said := keep_text(result, winner))))


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


def _took(result: TuningResult) -> tuple[str, ...]:
    stages = ", ".join(f"{STAGE_TEXT.get(stage, stage)} {seconds_text(s)}" for stage, s in result.stage_seconds.items())
    total = f"{seconds_text(result.seconds)}: {stages}" if stages else seconds_text(result.seconds)
    return (total, _trial_counts(result.trials))


def _trial_counts(trials: tuple[Trial, ...]) -> str:
    measured = sum(trial.measurement is not None for trial in trials)
    failed = failures_text(trial.failure for trial in trials if trial.failure is not None)
    return f"{counted(len(trials), 'trial')}: {measured} measured, {failed}"


def _code(result: TuningResult) -> tuple[Section, ...]:
    """At the user's batch size only what differs from the best."""
    if result.best is None:
        return ()
    best, spec, kind = result.best.config, result.config.workload, result.device.kind
    blocks = {"Loader": loader_code(result, best), "Training step": recipe_code(best, spec, kind, structure_of(result))}
    if result.best_at_your_batch is not None:
        fixed = result.best_at_your_batch.config
        blocks["Loader at your batch size"] = loader_code(result, fixed)
        blocks["Training step at your batch size"] = recipe_code(fixed, spec, kind, structure_of(result))
    shown = {code: title for title, code in reversed(blocks.items())}  # of two alike, the first title stays
    return tuple(
        Section(title=title, lines=tuple(code.rstrip("\n").split("\n")))
        for title, code in blocks.items()
        if shown[code] == title
    )
