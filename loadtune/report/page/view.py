"""The page of one result as plain data, top to bottom: the answer, the machine, how it was found.

In: a `TuningResult`. Out: a `Page`, which `write` turns into HTML and tests read as data.
"""

import statistics
from dataclasses import dataclass

from loadtune.records.answer import finalist_of
from loadtune.records.config import Objective
from loadtune.records.interval import Interval
from loadtune.records.result import TuningResult, Winner
from loadtune.report.export import loader_code, step_code
from loadtune.report.figures import Section, Table, best_and_baseline
from loadtune.report.machine import banner
from loadtune.report.page.figure import Figure
from loadtune.report.page.memory import limits_table, memory_lines
from loadtune.report.page.roofline import roofline
from loadtune.report.page.runs import finalists, history, step_time, timelines
from loadtune.report.page.table import SortedTable, trial_table
from loadtune.report.sentences import (
    CODE_CHANGES,
    RemediesView,
    batch_caution,
    best_with_changes,
    bottleneck_lines,
    keep_text,
    remedies_view,
    seen_once,
    warning,
)
from loadtune.report.wording import STAGE_TEXT, failures_text, recipe_line, score_text, settings_text
from loadtune.units import counted, percent_text, ratio_text, seconds_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One large figure of the answer."""

    name: str
    value: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """Figures and a table under one heading, or changes of the code."""

    title: str
    figures: tuple[Figure, ...] = ()
    table: Table | None = None
    remedies: RemediesView | None = None


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
    with_changes: str | None
    """The throughput with all changes of the code that gain. None: none does."""
    sections: tuple[Section, ...]
    """Every figure in words; only those that have lines."""
    figures: Table | None
    """Best and baseline. None: nothing was confirmed."""
    code: tuple[Section, ...]
    """Python for pasting, each under what it is for."""
    machine: tuple[tuple[str, str], ...]
    chapters: tuple[Chapter, ...]
    table: SortedTable


def page_view(result: TuningResult) -> Page:
    best, remedies, headline = result.best, remedies_view(result), "No configuration could be confirmed."
    if best is not None:
        headline = f"{'Keep your settings: ' * (best.config == result.yours)}{settings_text(best.config)}"
    share = None if result.remedies is None else result.remedies.compute_fraction
    of_compute = "" if share is None else f" That is {percent_text(share)} of the compute-only rate."
    return Page(
        title=f"{result.config.workload.title} on {result.device.name}",
        subtitle=f"{result.created[:16].replace('T', ' ')} UTC, loadtune {result.loadtune_version}",
        warning=warning(result),
        headline=headline,
        tiles=() if best is None else _tiles(result, best),
        with_changes=next((f"{said}{of_compute}" for said in best_with_changes(result)), None),
        sections=tuple(Section(title=title, lines=lines) for title, lines in _words(result).items() if lines),
        figures=best_and_baseline(result),
        code=() if best is None else _code(result, best),
        machine=banner(result.host, result.device),
        chapters=(
            Chapter(title="What limits throughput", figures=(roofline(result),)),
            *([] if remedies is None else [Chapter(title=CODE_CHANGES, remedies=remedies)]),
            Chapter(title="Confirmed", figures=(finalists(result), step_time(result))),
            Chapter(title="Utilization over time", figures=(timelines(result),)),
            Chapter(title="Search", figures=(history(result),)),
            Chapter(title="Compute and memory limits", figures=(memory_lines(result),), table=limits_table(result)),
        ),
        table=trial_table(result),
    )


def _tiles(result: TuningResult, best: Winner) -> tuple[Tile, ...]:
    scores: dict[Objective, Interval | None] = {
        "samples-per-joule": best.samples_per_joule,
        "samples-per-s": best.throughput,
    }
    names, tiles = {"samples-per-joule": "samples per joule", "samples-per-s": "throughput"}, list[Tile]()
    for objective, score in scores.items():
        if score is not None:
            half = score_text(score.half_width, objective)
            detail = "no interval: too few runs" if score.half_width is None else f"± {half} (95%)"
            tiles.append(Tile(name=names[objective], value=score_text(score.value, objective), detail=detail))
    gain = best.speedup
    speedup, detail = "not known", "the baseline was not measured"
    if gain is not None:
        speedup, detail = "no difference" if gain.holds(1.0) else ratio_text(gain.value), "too few runs to be sure"
        if gain.half_width is not None:
            detail = f"{ratio_text(gain.low)} to {ratio_text(gain.high)} (99%)"
        if best.config == result.yours:
            detail = "nothing else is proven better"
    share = percent_text(best.compute_fraction)
    return (
        *tiles,
        Tile(name="speed-up over the baseline", value=speedup, detail=detail),
        Tile(name="share of compute-only rate", value=share, detail="100%: no loader is faster"),
    )


def _words(result: TuningResult) -> dict[str, tuple[str, ...]]:
    winners = (result.best, result.best_at_your_batch)
    kept = dict.fromkeys(said for winner in winners if winner and (said := keep_text(result, winner)))
    return {
        "Answer": tuple(kept),
        "Measured once, not confirmed": seen_once(result),
        "Batch size": batch_caution(result),
        "Bottleneck": bottleneck_lines(result),
        "Epochs": _epochs(result),
        "Memory format and optimizer, compute only": tuple(map(recipe_line, result.recipes)),
        "Time taken": _took(result),
        "Notes": result.notes,
    }


def _epochs(result: TuningResult) -> tuple[str, ...]:
    """The start of an epoch, which the throughput does not contain: medians over the runs of the confirmation."""
    best = None if result.best is None else finalist_of(result, result.best.config)
    if best is None or best.epoch_s is None or best.config.loader.num_workers == 0:
        return ()
    kept = statistics.median(run.refill_s for run in best.runs)
    anew = statistics.median(run.first_batch_s for run in best.runs)
    return (
        f"Where an epoch begins, training waits {seconds_text(kept)} for a batch with persistent_workers, "
        f"{seconds_text(anew)} without: {percent_text(kept / best.epoch_s, 1)} and "
        f"{percent_text(anew / best.epoch_s, 1)} of an epoch of {seconds_text(best.epoch_s)}.",
    )


def _took(result: TuningResult) -> tuple[str, ...]:
    stages = ", ".join(f"{STAGE_TEXT.get(stage, stage)} {seconds_text(s)}" for stage, s in result.stage_seconds.items())
    measured = sum(trial.measurement is not None for trial in result.trials)
    failed = failures_text(trial.failure for trial in result.trials if trial.failure is not None)
    return (
        f"{seconds_text(result.seconds)}: {stages}" if stages else seconds_text(result.seconds),
        f"{counted(len(result.trials), 'trial')}: {measured} measured, {failed}",
    )


def _code(result: TuningResult, best: Winner) -> tuple[Section, ...]:
    """At the user's batch size only what differs from the best."""
    winners = {"": best} | ({" at your batch size": each} if (each := result.best_at_your_batch) else {})
    blocks = dict[str, str]()
    for where, winner in winners.items():
        blocks.setdefault(loader_code(result, winner.config), f"Loader{where}")
        blocks.setdefault(step_code(result, winner.config), f"Training step{where}")
    return tuple(Section(title=title, lines=tuple(code.rstrip("\n").split("\n"))) for code, title in blocks.items())
