"""Tables: of the configurations that were tried, of the machine, of the memory of a step. And how rich shows a table.

The page and the terminal show the same cells.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from loadtune.records.config import TrialConfig
from loadtune.records.facts import Device, GpuFacts, GpuProcess, HostFacts
from loadtune.records.measurement import Measurement, Telemetry, compute_fraction
from loadtune.records.memory import FootprintReport, LayerFootprint, StepAccount
from loadtune.records.result import Result, Winner, finalist_of
from loadtune.records.statistics import Interval, gain_text
from loadtune.report.sentences import (
    FAILURE_TEXT,
    PRECISION_TEXT,
    RESOURCE_TEXT,
    doubt_of,
    interval_text,
    names,
    recipe_text,
    settings_text,
    shown_winner,
)
from loadtune.units import MISSING, bytes_text, count_text, counted, number_text, percent_text, seconds_text

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    order: float | None = None
    """A number to sort by, in one unit for the whole column. None: the text sorts; missing figures come last."""


Row = dict[str, Cell]
"""A configuration's cells by the name of their column. What was not measured is left out."""


@dataclass(frozen=True, slots=True)
class SortedRow:
    """Of a table that the page sorts and filters; all have the same columns."""

    outcome: str
    """One of a few, to filter by."""
    by_column: Row
    is_best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Strings in rows; the first column names the row. Cells may hold a line break."""

    title: str = ""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and whole lines under it, of words or of code."""

    title: str
    lines: tuple[str, ...]
    note: str = ""
    """A sentence between the two."""


View = Sequence[Table | tuple[str, ...]]
"""What a command prints: tables, then lines on what they say."""


def number(found: float | Interval | None, shown: Callable[[Any], str] = str) -> Cell:
    if found is None:
        return Cell(MISSING)
    return Cell(shown(found), found.value if isinstance(found, Interval) else found)


def best_and_baseline(result: Result) -> Table | None:
    """A column for each answer and one for the baseline; a line for each figure that one of them has. None: nothing was
    confirmed."""
    best = result.best
    if best is None:
        return None
    winners = {each.config: each for each in (best, shown_winner(result)) if each and each.config != result.yours}
    columns = {name: confirmed_row(result, each, winners.get(each)) for each, name in names(result).items()}
    missing = Cell(MISSING)
    figures = dict.fromkeys(name for row in columns.values() for name, cell in row.items() if cell != missing)
    rows = tuple((name, *(row.get(name, missing).text for row in columns.values())) for name in figures)
    title = "Confirmed" if doubt_of(result, best) is None else "Not confirmed"
    return Table(title=title, columns=("", *columns), rows=rows)


def confirmed_row(result: Result, config: TrialConfig, winner: Winner | None) -> Row:
    """``winner``: None for the baseline."""
    finalist = finalist_of(result.finalists, config)
    row = _settings(result, config)
    if finalist is None:
        return row | {"samples/s (95% CI)": Cell("not measured")}
    runs = finalist.runs
    row["runs"] = number(len(runs))
    row["samples/s (95% CI)"] = number(finalist.throughput, interval_text)
    row["gain (99% CI)"] = number(winner.speedup if winner else None, gain_text)
    if texts := [each for run in runs for each in run.windows if each.num_tokens is not None]:
        # Padding included: samples of larger batches are padded to more.
        tokens = sum(each.num_tokens or 0 for each in texts) / sum(each.num_samples for each in texts)
        row["tokens/s"] = number(finalist.samples_per_s * tokens, number_text)
    if epochs_s := [run.epoch_s for run in runs if run.epoch_s is not None]:  # with the start of their workers
        row[f"epoch of {number_text(runs[0].epoch_samples)} samples"] = number(fmean(epochs_s), seconds_text)
    share = compute_fraction(result.compute_points, config, finalist.samples_per_s)
    row["share of compute-only"] = number(share, percent_text)
    found = result.bottleneck
    if found is not None and found.holds and found.config == config:
        row["limited by"] = Cell(RESOURCE_TEXT[found.limits[0].resource].removeprefix("the "))
    return row | _measured(result, config, runs)


def trial_table(result: Result) -> list[SortedRow]:
    kinds, rows = names(result), list[SortedRow]()
    for trial in result.trials:
        run, failure = trial.measurement, trial.failure
        outcome = "measured, noisy" if run and run.noisy else "measured"
        if failure is not None:
            outcome = f"{FAILURE_TEXT[failure.kind]} ({failure.phase}): {failure.message}"
        row = {
            "trial": Cell(" ".join(filter(None, (str(trial.number), kinds.get(trial.config)))), trial.number),
            "settings": Cell(settings_text(trial.config)),
            "samples/s": number(run.throughput if run else None, interval_text),
            **_measured(result, trial.config, [run] if run else []),
            "outcome": Cell(outcome),
        }
        rows.append(SortedRow("failed" if failure else "measured", row, kinds.get(trial.config) in ("answer", "best")))
    return rows


def _settings(result: Result, config: TrialConfig) -> Row:
    """Those that are searched, and those that this run was told to fix."""
    loader, fixed = config.loader, {each.name for each in result.config.fix}
    row = {
        "batch_size": number(loader.batch_size),
        "num_workers": number(loader.num_workers),
        "pin_memory": Cell(str(loader.pin_memory)),
        "prefetch_factor": number(loader.prefetch_factor if loader.num_workers else None),
        "in_order": Cell(str(loader.in_order)),
        "persistent_workers": Cell(str(loader.persistent_workers)),
        "precision": Cell(PRECISION_TEXT["own"] if config.precision == "own" else config.precision),
        "memory format, optimizer": Cell(recipe_text(config.recipe)),
    }
    optional = {"prefetch_factor", "in_order", "persistent_workers"} - fixed
    assumed = result.assumed if config == result.yours else ()
    return {
        name: replace(cell, text=f"{cell.text} (assumed)") if name in assumed else cell
        for name, cell in row.items()
        if name not in optional
    }


def _measured(result: Result, config: TrialConfig, runs: Sequence[Measurement]) -> Row:
    """Means over runs, and the largest memory."""
    seen = [run.telemetry for run in runs if run.telemetry is not None]
    on_cpu = result.device.kind == "cpu"

    def mean(figure: str) -> Cell:
        known = [value for each in seen if (value := getattr(each, figure)) is not None]
        return number(fmean(known) if known else None, percent_text)

    gpu = {"GPU utilization": mean("gpu_utilization_fraction"), "SM activity": mean("gpu_sm_activity_fraction")}
    peaks = [peak for run in runs if (peak := peak_bytes(run, result.device.kind)) is not None]
    memory = "peak RAM, summed over processes" if on_cpu else "peak GPU memory"
    start_s = fmean(run.first_batch_s for run in runs) if runs and config.loader.num_workers else None
    return {
        "waits for data": number(fmean(run.wait_fraction for run in runs) if runs else None, percent_text),
        **({} if on_cpu else gpu),
        "CPU utilization": mean("cpu_utilization_fraction"),
        memory: number(max(peaks, default=None), bytes_text),
        "start of workers": number(start_s, seconds_text),
    }


def peak_bytes(measurement: Measurement, device_kind: str) -> int | None:
    """Of the GPU, as the training process allocated it; of a CPU's RAM, the training process and its workers."""
    if device_kind != "cpu":
        return measurement.peak_allocated_bytes
    return None if measurement.telemetry is None else measurement.telemetry.training_rss_bytes


def table_text(shown: Table) -> "RenderableType":
    """A heading stands only where a column has one."""
    from rich.table import Table as RichTable
    from rich.text import Text

    look: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "box": None, "padding": (0, 2, 0, 0)}
    look |= dict.fromkeys(("show_header", "pad_edge"), any(shown.columns))
    table = RichTable(title=shown.title or None, **look)
    for number, column in enumerate(shown.columns):
        table.add_column(column, style="" if number else "dim", header_style="bold", overflow="fold")
    for row in shown.rows:
        table.add_row(*map(Text, row))
    return table


def view_text(view: View) -> "RenderableType":
    """With an empty line between them. Adds no word and no figure."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[RenderableType] = [
        table_text(each) if isinstance(each, Table) else Group(*(Padding(Text(line), (0, 0, 0, 2)) for line in each))
        for each in view
    ]
    return Group(*parts[:1], *(Group(Text(), part) for part in parts[1:]))


# The machine: what it offers, who else uses it, and how busy it was

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
    return (("sensors", f"{num_seen} of {num_seen + num_missing} work"), *missing)


# Where memory goes: the account of a step, its layers, the largest batch in words

_OPTIMIZER_TEXT = {"sgd": "SGD with momentum 0.9", "adamw": "AdamW"}
_LINES = {
    "parameters": "parameters_bytes",
    "buffers": "buffers_bytes",
    "gradients": "gradients_bytes",
    "optimizer state": "optimizer_state_bytes",
    "activations kept for backward": "activations_bytes",
    "input batch": "input_bytes",
    "temporary tensors": "temporary_bytes",
    "library workspace": "workspace_bytes",
    "allocator rounding": "rounding_bytes",
}
# Widths that leave a row of the layers' table below 80 columns.
_NAME_WIDTH, _KIND_WIDTH = 20, 12
_LARGEST = " ◀"


def footprint_view(report: FootprintReport) -> View:
    layers = [_layers_table(report.layers, report.account)] if report.layers else []
    return [_account_table(report.account, report.estimate), *layers, _notes(report)]


def _account_table(account: StepAccount, estimate: StepAccount | None) -> Table:
    """Measured beside estimated where both are there."""
    shown = [account, *([] if estimate is None else [estimate])]
    parts = [account.largest, *(each.at_peak for each in shown)]
    rows = [(name, *(bytes_text(getattr(part, field)) for part in parts)) for name, field in _LINES.items()]
    rows += [
        ("not attributed", "", *(bytes_text(each.unexplained_bytes) for each in shown)),
        ("peak", "", *(bytes_text(each.peak_bytes) for each in shown)),
        ("fragmentation", "", *(bytes_text(each.fragmentation_bytes) for each in shown)),
        ("CUDA context and libraries", "", *(bytes_text(each.outside_bytes) for each in shown)),
    ]
    columns = ("", "row's own\nmaximum", "at the\npeak", "at the peak,\nestimated")
    shape = "×".join(map(str, (account.batch_size, *account.input_shape)))
    optimizer = _OPTIMIZER_TEXT.get(account.optimizer, account.optimizer)
    how = "estimated" if account.estimated else "measured"
    title = f"{account.model}, {shape}, {PRECISION_TEXT[account.precision]}, {optimizer}: {how}"
    return Table(title=title, columns=columns[: 2 + len(shown)], rows=tuple(rows))


def _layers_table(layers: tuple[LayerFootprint, ...], account: StepAccount) -> Table:
    rows = list[tuple[str, ...]]()
    most = max(layer.kept_bytes for layer in layers)
    for layer in layers:
        shape = MISSING if layer.output_shape is None else "×".join(map(str, layer.output_shape[1:])) or "1"
        name = layer.name if len(layer.name) <= _NAME_WIDTH else f"…{layer.name[1 - _NAME_WIDTH :]}"
        kept = f"{bytes_text(layer.kept_bytes)}{_LARGEST if layer.kept_bytes == most else ''}"
        rows.append((name, layer.kind[:_KIND_WIDTH], shape, count_text(layer.num_parameters), kept))
    # Of modules that the forward pass uses without calling them, as nn.MultiheadAttention its output projection.
    if rest := account.num_parameters - sum(layer.num_parameters for layer in layers):
        rows.append(("(not called)", "", "", count_text(rest), ""))
    kept_bytes = sum(layer.kept_bytes for layer in layers)
    rows.append(("total", "", "", count_text(account.num_parameters), bytes_text(kept_bytes)))
    columns = ("layer", "type", "output shape\nof a sample", "parameters", "kept for\nbackward")
    return Table(title=f"Layers at batch size {account.batch_size}", columns=columns, rows=tuple(rows))


def _notes(report: FootprintReport) -> tuple[str, ...]:
    account = report.account
    if account.estimated:
        notes = [f"Estimated from tensor shapes; nothing was run. {MISSING}: only a run on a GPU can measure this."]
    else:
        share = percent_text(abs(account.unexplained_bytes) / account.peak_bytes, 1)
        notes = [
            f"Measured in a separate process. One step took {seconds_text(account.step_s)}."
            f" {share} of the peak is not attributed to any row."
        ]
    if report.estimate is not None:
        error = report.estimate.peak_bytes / account.peak_bytes - 1
        notes.append(f"The estimated peak differs from the measured peak by {error:+.1%}.")
    if report.layers:
        notes.append(f"kept for backward: what autograd saves.{_LARGEST}: keeps most.")
    if (found := report.largest_batch) is not None:
        largest = f"{found.batch_size:,}" if found.batch_size else "none, not even one sample fits"
        notes += [
            f"Largest batch size in {bytes_text(found.memory_bytes)}: {largest}. This is an estimate.",
            f"Peak memory = {bytes_text(found.fixed_bytes)} + batch size × {bytes_text(found.bytes_per_sample)},"
            " a line through two estimated peaks.",
            f"{bytes_text(found.context_bytes)} is subtracted for the CUDA context. Library workspace and fragmentation"
            " are not included.",
        ]
    return tuple(notes)
