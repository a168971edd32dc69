"""The page of one result as plain data, top to bottom: the answer, its figures, notes, what was tried.

In: a `TuningResult`. Out: a `Page`, which `write` turns into HTML and tests read as data.
"""

from dataclasses import dataclass

from loadtune.records.interval import Interval
from loadtune.records.result import TuningResult, Winner
from loadtune.report.export import loader_code, step_code
from loadtune.report.machine import banner
from loadtune.report.page.figure import Figure
from loadtune.report.page.memory import limits_table, memory_lines
from loadtune.report.page.roofline import roofline
from loadtune.report.page.runs import contestants, gains, timelines, trials
from loadtune.report.sentences import (
    batch_caution,
    best_with_changes,
    bottleneck_sentence,
    changes_view,
    keep_text,
    late_sentence,
    seen_once,
    warning,
)
from loadtune.report.tables import Section, SortedTable, Table, best_and_baseline, trial_table
from loadtune.report.wording import STAGE_TEXT, recipe_line, settings_text
from loadtune.units import counted, efficiency_text, percent_text, rate_text, ratio_text, seconds_text

MOST_NOTES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One large figure of the answer."""

    name: str
    value: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """A figure, or a table with what belongs to it."""

    figures: tuple[Figure, ...]
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
    best, code_changes = result.best, changes_view(result)
    headline = "No configuration could be confirmed."
    if best is not None:
        headline = f"{'Keep your settings: ' * (best.config == result.yours)}{settings_text(best.config)}"
    table, code = (code_changes.tables[0], code_changes.sections) if code_changes else (None, ())
    return Page(
        title=f"{result.config.workload.title} on {result.device.name}",
        subtitle=f"{result.created[:16].replace('T', ' ')} UTC, loadtune {result.loadtune_version}",
        warning=warning(result),
        headline=headline,
        tiles=() if best is None else _tiles(best, is_baseline=best.config == result.yours),
        figures=best_and_baseline(result),
        sections=tuple(Section(title=title, lines=lines) for title, lines in _words(result).items() if lines),
        code=() if best is None else _code(result, best),
        machine=banner(result.host, result.device),
        chapters=(
            Chapter(figures=(roofline(result),)),
            Chapter(figures=(gains(result),), table=table, code=code),
            Chapter(figures=(contestants(result),)),
            Chapter(figures=(memory_lines(result),), table=limits_table(result)),
            Chapter(figures=(timelines(result),)),
            Chapter(figures=(trials(result),)),
        ),
        table=trial_table(result),
    )


def _tiles(best: Winner, *, is_baseline: bool) -> tuple[Tile, ...]:
    tiles = [Tile(name="throughput", value=rate_text(best.samples_per_s), detail=_half(best.throughput))]
    if best.samples_per_joule is not None:
        value = efficiency_text(best.samples_per_joule.value)
        tiles.insert(0, Tile(name="samples per joule", value=value, detail=_half(best.samples_per_joule)))
    speedup, detail = "not known", "the baseline was not measured"
    if (gain := best.speedup) is not None:
        speedup, detail = "no difference" if gain.holds(1.0) else ratio_text(gain.value), "too few runs to be sure"
        if gain.half_width is not None:
            detail = f"{ratio_text(gain.low)} to {ratio_text(gain.high)} (99%)"
        if is_baseline:
            detail = "nothing else is proven better"
    share = percent_text(best.compute_fraction)
    return (
        *tiles,
        Tile(name="speed-up over the baseline", value=speedup, detail=detail),
        Tile(name="share of compute-only rate", value=share, detail="100%: no loader is faster"),
    )


def _half(found: Interval) -> str:
    if found.half_width is None:
        return "no interval: too few runs"
    return f"± {percent_text(found.half_width / found.value, 1)} (95%)"


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
