"""The page of one result as plain data, top to bottom: the answer, the machine, how it was found.

In: a `TuningResult`. Out: a `Page`, which `render` turns into HTML and tests read as data.
"""

from dataclasses import dataclass

from loadtune.records import Efficiency, TuningResult, Winner
from loadtune.report.memory import memory_words
from loadtune.report.page.compute import compute_curve
from loadtune.report.page.figure import Figure
from loadtune.report.page.finalists import finalists
from loadtune.report.page.history import history
from loadtune.report.page.memory import memory_lines
from loadtune.report.page.roofline import roofline
from loadtune.report.page.step_time import step_time
from loadtune.report.page.table import TrialTable, trial_table
from loadtune.report.page.timelines import timelines
from loadtune.report.remedies import TITLE, RemediesView, best_with_changes
from loadtune.report.view import Section, Summary, banner, summary
from loadtune.report.wording import settings_text
from loadtune.units import efficiency_text, percent_text, rate_text, ratio_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One large figure of the answer."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """Figures under one heading, or changes of the code."""

    title: str
    figures: tuple[Figure, ...] = ()
    remedies: RemediesView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    title: str
    subtitle: str
    """When, in what time, by which version."""
    headline: str
    """The answer in one line, or that there is none."""
    tiles: tuple[Tile, ...]
    with_changes: str | None
    """The throughput with all changes of the code that gain. None: none does."""
    summary: Summary
    """Every figure, in words."""
    machine: tuple[tuple[str, str], ...]
    chapters: tuple[Chapter, ...]
    memory_words: tuple[Section, ...]
    table: TrialTable


def page_view(result: TuningResult) -> Page:
    said = summary(result)
    return Page(
        title=said.title,
        subtitle=f"{result.created[:16].replace('T', ' ')} UTC, loadtune {result.loadtune_version}",
        headline=_headline(result),
        tiles=_tiles(result),
        with_changes=_with_changes(result),
        summary=said,
        machine=banner(result.host, result.device).rows,
        chapters=(
            Chapter(title="What limits throughput", figures=(roofline(result),)),
            *([] if said.remedies is None else [Chapter(title=TITLE, remedies=said.remedies)]),
            Chapter(title="Confirmed", figures=(finalists(result), step_time(result))),
            Chapter(title="Utilization over time", figures=(timelines(result),)),
            Chapter(title="Search", figures=(history(result),)),
            Chapter(title="Compute and memory limits", figures=(compute_curve(result), memory_lines(result))),
        ),
        memory_words=tuple(
            Section(title=f"Memory in {ceiling.precision}", lines=lines)
            for ceiling in result.ceilings
            if (lines := memory_words(ceiling))
        ),
        table=trial_table(result),
    )


def _headline(result: TuningResult) -> str:
    if result.best is None:
        return "No configuration could be confirmed."
    kept = "Keep your settings: " if result.best.config == result.yours else ""
    return f"{kept}{settings_text(result.best.config)}"


def _with_changes(result: TuningResult) -> str | None:
    share = None if result.remedies is None else result.remedies.compute_fraction
    of_compute = "" if share is None else f" That is {percent_text(share)} of the compute-only rate."
    return next((f"{said}{of_compute}" for said in best_with_changes(result)), None)


def _tiles(result: TuningResult) -> tuple[Tile, ...]:
    best = result.best
    if best is None:
        return ()
    tiles = [
        Tile(name="throughput", value=rate_text(best.samples_per_s), detail=_interval(best)),
        Tile(name="speed-up over the baseline", value=_speedup(best), detail=_speedup_detail(result, best)),
        Tile(
            name="share of compute-only rate",
            value=percent_text(best.compute_fraction),
            detail="100%: no loader is faster",
        ),
    ]
    if best.efficiency is not None:
        tiles.insert(0, _efficiency_tile(best.efficiency))
    return tuple(tiles)


def _efficiency_tile(found: Efficiency) -> Tile:
    half = found.half_width_fraction
    detail = "no interval: too few runs" if half is None else f"± {percent_text(half, 1)} (95%), the objective"
    return Tile(name="samples per joule", value=efficiency_text(found.samples_per_joule), detail=detail)


def _interval(winner: Winner) -> str:
    half = winner.half_width_fraction
    return "no interval: too few runs" if half is None else f"± {rate_text(half * winner.samples_per_s)} (95%)"


def _speedup(winner: Winner) -> str:
    if winner.speedup is None:
        return "not known"
    return "no difference" if winner.different is False else ratio_text(winner.speedup)


def _speedup_detail(result: TuningResult, winner: Winner) -> str:
    if winner.speedup is None:
        return "the baseline was not measured"
    if winner.config == result.yours:
        return "nothing else is proven better"
    if winner.speedup_low is None or winner.speedup_high is None:
        return "too few runs to be sure"
    return f"{ratio_text(winner.speedup_low)} to {ratio_text(winner.speedup_high)} (99%)"
