"""The pages as plain data, which `write` turns into HTML and tests read.

In: a `TuningResult`. Out: a `Page`: the answer, its figures, notes, what was tried. In: many results. Out: a `Board`, a
table of workloads × machines × dates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtune.records.memory import MemoryCeiling
from loadtune.records.result import TuningResult, Winner
from loadtune.report.export import loader_code, step_code
from loadtune.report.machine import banner, holders_text
from loadtune.report.page.figures import Figure, contestants, gains, memory_lines, timelines, trials
from loadtune.report.page.roofline import roofline
from loadtune.report.sentences import (
    batch_caution,
    best_with_changes,
    bottleneck_sentence,
    changes_code,
    keep_text,
    late_sentence,
    seen_once,
    warning,
)
from loadtune.report.tables import (
    Cell,
    Section,
    SortedRow,
    SortedTable,
    Table,
    best_and_baseline,
    interval_cell,
    number,
    trial_table,
)
from loadtune.report.wording import STAGE_TEXT, limit_text, recipe_line, settings_text
from loadtune.units import MISSING, bytes_text, counted, percent_text, rate_text, ratio_text, seconds_text

MOST_NOTES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One large figure of the answer."""

    name: str
    value: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A figure, and what belongs to it."""

    figure: Figure
    table: Table | None = None
    code: tuple[Section, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    title: str
    subtitle: str
    """When, and by which version."""
    warning: str | None
    """The run was cut short, or confirmed nothing. None: it went to its end."""
    headline: str
    """The answer in one line, or that there is none."""
    tiles: tuple[Tile, ...]
    figures: Table | None
    """Best and baseline. None: nothing was confirmed."""
    sections: tuple[Section, ...]
    """What is said of the table, notes last; only those that have lines."""
    code: tuple[Section, ...]
    """Python for pasting, each under what it is for."""
    machine: tuple[tuple[str, str], ...]
    chapters: tuple[Chapter, ...]
    table: SortedTable


def page_view(result: TuningResult) -> Page:
    best, headline = result.best, "No configuration could be confirmed."
    if best is not None:
        headline = f"{'Keep your settings: ' * (best.config == result.yours)}{settings_text(best.config)}"
    return Page(
        title=f"{result.config.workload.title} on {result.device.name}",
        subtitle=f"{result.created[:16].replace('T', ' ')} UTC, loadtune {result.loadtune_version}",
        warning=warning(result),
        headline=headline,
        tiles=() if best is None else _tiles(best),
        figures=best_and_baseline(result),
        sections=tuple(Section(title=title, lines=lines) for title, lines in _words(result).items() if lines),
        code=() if best is None else _code(result, best),
        machine=banner(result.host, result.device),
        chapters=(
            Chapter(figure=roofline(result)),
            Chapter(figure=gains(result), code=changes_code(result)),
            Chapter(figure=contestants(result)),
            Chapter(figure=memory_lines(result), table=limits_table(result)),
            Chapter(figure=timelines(result)),
            Chapter(figure=trials(result)),
        ),
        table=trial_table(result),
    )


def _tiles(best: Winner) -> tuple[Tile, ...]:
    half, gain = best.half_width_fraction, best.speedup
    speedup, detail = "not known", "the baseline was not measured"
    if gain is not None:
        speedup, detail = "no difference" if gain.holds(1.0) else ratio_text(gain.value), "too few runs to be sure"
        if gain.half_width is not None:
            detail = f"{ratio_text(gain.low)} to {ratio_text(gain.high)} (99%)"
    return (
        Tile(
            name="throughput",
            value=rate_text(best.samples_per_s),
            detail="no interval: too few runs" if half is None else f"± {percent_text(half, 1)} (95%)",
        ),
        Tile(name="speed-up over the baseline", value=speedup, detail=detail),
        Tile(
            name="share of compute-only rate",
            value=percent_text(best.compute_fraction),
            detail="100%: no loader is faster",
        ),
    )


def _words(result: TuningResult) -> dict[str, tuple[str, ...]]:
    winners = (result.best, result.best_at_your_batch)
    kept = dict.fromkeys(said for winner in winners if winner and (said := keep_text(result, winner)))
    notes = result.notes[:MOST_NOTES]
    if more := result.notes[MOST_NOTES:]:
        notes = (*notes, f"{counted(len(more), 'more note')} in result.json.")
    return {
        "Answer": (*kept, *best_with_changes(result), *batch_caution(result)),
        "Measured once, not confirmed": seen_once(result),
        "Bottleneck": (*bottleneck_sentence(result), *late_sentence(result)),
        "Memory format and optimizer, compute only": tuple(map(recipe_line, result.recipes)),
        "Time taken": (_took(result),),
        "Notes": notes,
    }


def _took(result: TuningResult) -> str:
    stages = ", ".join(f"{STAGE_TEXT.get(stage, stage)} {seconds_text(s)}" for stage, s in result.stage_seconds.items())
    num_failed = sum(trial.failure is not None for trial in result.trials)
    tried = f"{counted(len(result.trials), 'trial')}{f', of which {num_failed} failed' if num_failed else ''}"
    return f"{seconds_text(result.seconds)}: {stages or 'nothing was measured'}; {tried}."


def _code(result: TuningResult, best: Winner) -> tuple[Section, ...]:
    """At the user's batch size only what differs from the best."""
    winners = {"": best} | ({" at your batch size": each} if (each := result.best_at_your_batch) else {})
    blocks = dict[str, str]()
    for where, winner in winners.items():
        blocks.setdefault(loader_code(result, winner.config), f"Loader{where}")
        blocks.setdefault(step_code(result, winner.config), f"Training step{where}")
    return tuple(Section(title=title, lines=tuple(code.rstrip("\n").split("\n"))) for code, title in blocks.items())


def limits_table(result: TuningResult) -> Table | None:
    """What fits in each precision. None: there is no ceiling."""
    rows = tuple(_limits(result, ceiling) for ceiling in result.ceilings)
    columns = ("", "safe batch", "largest", "limited by", "memory for training", "compute-only rate")
    return Table(title="Limits of each precision", columns=columns, rows=rows) if rows else None


def _limits(result: TuningResult, ceiling: MemoryCeiling) -> tuple[str, ...]:
    predicted, alone = "" if ceiling.verified else " (predicted)", result.compute_only(ceiling.precision)
    memory = MISSING
    if ceiling.budget_bytes is not None:
        held = holders_text(ceiling.others, ceiling.others_bytes)
        memory = bytes_text(ceiling.budget_bytes) + (f"\n{held}" if held else "")
    return (
        ceiling.precision,
        f"{ceiling.safe_batch_size:,}{predicted}",
        f"{ceiling.batch_size:,}{predicted}",
        limit_text(ceiling.limit, result.device.kind),
        memory,
        MISSING if alone is None else f"{rate_text(alone.samples_per_s)} at batch {alone.batch_size:,}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    title: str
    subtitle: str
    table: SortedTable
    """A row for each result; those of one workload and machine stand together, the newest first."""
    unread: tuple[str, ...]
    """Files that are no result this loadtune can read, and why."""


def board_view(results: Sequence[TuningResult], unread: Sequence[str] = ()) -> Board:
    newest_first = sorted(results, key=lambda one: one.created, reverse=True)
    rows = [_row(result) for result in sorted(newest_first, key=lambda one: (_workload(one), _machine(one)))]
    num_confirmed = sum(result.best is not None for result in results)
    return Board(
        title="Benchmark board",
        subtitle=f"{counted(len(results), 'result')}, {num_confirmed} with an answer",
        table=SortedTable(rows=rows),
        unread=tuple(unread),
    )


def _row(result: TuningResult) -> SortedRow:
    best = result.best
    by_column = {
        "when (UTC)": Cell(result.created[:16].replace("T", " ")),
        "workload": Cell(_workload(result)),
        "machine": Cell(_machine(result)),
        "samples/s": interval_cell(best.throughput if best else None),
        "over the baseline": number(best.speedup.value if best and best.speedup else None, ratio_text),
        "of compute-only": number(best.compute_fraction if best else None, percent_text),
        "configuration": Cell(settings_text(best.config) if best else MISSING),
        "host": Cell(result.host.hostname),
        "torch": Cell(result.host.torch or MISSING),
    }
    return SortedRow(outcome="answer" if best else "no answer", by_column=by_column)


def _workload(result: TuningResult) -> str:
    """With what makes another training step of it."""
    spec = result.config.workload
    size = "" if spec.image_size is None else f", {spec.image_size} pixels"
    classes = "" if spec.num_classes is None else f", {counted(spec.num_classes, 'class')}"
    optimizer = "" if spec.named_optimizer is None else f", {spec.named_optimizer}"
    return f"{spec.title}{size}{classes}{optimizer}"


def _machine(result: TuningResult) -> str:
    return f"{result.device.name}, {counted(result.host.num_usable_cores, 'core')}"
