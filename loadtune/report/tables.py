"""Tables: a row is a configuration, with what was set, measured and judged of it. And how rich shows a table.

The page and the terminal show the same cells.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from loadtune.records.config import TrialConfig
from loadtune.records.measurement import Measurement, compute_fraction
from loadtune.records.result import Result, Winner, finalist_of
from loadtune.report.sentences import doubt_of, titles_text
from loadtune.report.wording import FAILURE_TEXT, PRECISION_TEXT, RESOURCE_TEXT, gain_text, interval_text, recipe_text
from loadtune.statistics.interval import Interval
from loadtune.units import MISSING, bytes_text, number_text, percent_text, seconds_text

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
    best, at_yours = result.best, result.best_at_your_batch
    if best is None:
        return None
    winners = {"best": best, f"best at batch {result.config.yours.batch_size}": None if at_yours == best else at_yours}
    better = {title: each for title, each in winners.items() if each is not None and each.config != result.yours}
    columns = {title: confirmed_row(result, each.config, each) for title, each in better.items()}
    if result.yours is not None:
        columns["baseline"] = confirmed_row(result, result.yours, None)
    missing = Cell(MISSING)
    names = dict.fromkeys(name for row in columns.values() for name, cell in row.items() if cell != missing)
    rows = tuple((name, *(row.get(name, missing).text for row in columns.values())) for name in names)
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
    row["speed-up (99% CI)"] = number(winner.speedup if winner else None, gain_text)
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
    best, rows = result.best and not result.best.inconclusive and result.best.config, list[SortedRow]()
    for trial in result.trials:
        run, failure = trial.measurement, trial.failure
        outcome = "measured, noisy" if run and run.noisy else "measured"
        if failure is not None:
            outcome = f"{FAILURE_TEXT[failure.kind]} ({failure.phase}): {failure.message}"
        row = {
            "trial": number(trial.number),
            "from": Cell("search" if trial.predicted else "baseline"),
            **_settings(result, trial.config),
            "samples/s": number(run.throughput if run else None, interval_text),
            **_measured(result, trial.config, [run] if run else []),
            "outcome": Cell(outcome),
        }
        rows.append(SortedRow("failed" if failure else "measured", row, trial.config == best))
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
        "change of your code": Cell(titles_text(result, config) or MISSING),
    }
    optional = {"prefetch_factor", "in_order", "persistent_workers"} - fixed
    optional |= set() if any(trial.config.remedies for trial in result.trials) else {"change of your code"}
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
    start_s = fmean(run.first_batch_s for run in runs) if runs and config.loader.num_workers else None
    return {
        "blocked in next(loader)": number(fmean(run.wait_fraction for run in runs) if runs else None, percent_text),
        **({} if on_cpu else gpu),
        "CPU utilization": mean("cpu_utilization_fraction"),
        "peak RAM" if on_cpu else "peak GPU memory": number(max(peaks, default=None), bytes_text),
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
