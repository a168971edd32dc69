"""The page of one result as plain data, top to bottom: the answer, the machine, how it was found.

In: a `TuningResult`. Out: a `Page`, which `render` turns into HTML and tests read as data.
"""

import statistics
from dataclasses import dataclass

from loadtune.records import TuningResult, Winner
from loadtune.records.chosen import finalist_of
from loadtune.report.bottleneck import lines as bottleneck_lines
from loadtune.report.export import loader_code, step_code
from loadtune.report.figures import Table, figures
from loadtune.report.page.figure import Figure
from loadtune.report.page.memory import limits_table, memory_lines
from loadtune.report.page.roofline import roofline
from loadtune.report.page.runs import finalists, step_time, timelines
from loadtune.report.page.table import SortedTable
from loadtune.report.page.trials import history, trial_table
from loadtune.report.remedies import TITLE, RemediesView, best_with_changes, remedies_view
from loadtune.report.view import Section, banner, batch_caution, seen_once, warning
from loadtune.report.wording import STAGE_TEXT, failures_text, keep_text, recipe_line, score_text, settings_text
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
    remedies = remedies_view(result)
    return Page(
        title=f"{result.config.workload.title} on {result.device.name}",
        subtitle=f"{result.created[:16].replace('T', ' ')} UTC, loadtune {result.loadtune_version}",
        warning=warning(result),
        headline=_headline(result),
        tiles=() if result.best is None else _tiles(result, result.best),
        with_changes=_with_changes(result),
        sections=tuple(Section(title=title, lines=lines) for title, lines in _words(result).items() if lines),
        figures=figures(result),
        code=() if result.best is None else _code(result, result.best),
        machine=banner(result.host, result.device),
        chapters=(
            Chapter(title="What limits throughput", figures=(roofline(result),)),
            *([] if remedies is None else [Chapter(title=TITLE, remedies=remedies)]),
            Chapter(title="Confirmed", figures=(finalists(result), step_time(result))),
            Chapter(title="Utilization over time", figures=(timelines(result),)),
            Chapter(title="Search", figures=(history(result),)),
            Chapter(title="Compute and memory limits", figures=(memory_lines(result),), table=limits_table(result)),
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


def _tiles(result: TuningResult, best: Winner) -> tuple[Tile, ...]:
    scores = dict.fromkeys([best.picked_by, best.throughput])
    names = {"samples-per-s": "throughput", "samples-per-joule": "samples per joule"}
    gain = "not known" if best.speedup is None else ratio_text(best.speedup)
    return (
        *(
            Tile(
                name=names[score.objective],
                value=score_text(score.value, score.objective),
                detail="no interval: too few runs"
                if score.half_width is None
                else f"± {score_text(score.half_width, score.objective)} (95%)",
            )
            for score in scores
        ),
        Tile(
            name="speed-up over the baseline",
            value="no difference" if best.different is False and best.speedup is not None else gain,
            detail=_speedup_detail(result, best),
        ),
        Tile(
            name="share of compute-only rate",
            value=percent_text(best.compute_fraction),
            detail="100%: no loader is faster",
        ),
    )


def _speedup_detail(result: TuningResult, winner: Winner) -> str:
    if winner.speedup is None:
        return "the baseline was not measured"
    if winner.config == result.yours:
        return "nothing else is proven better"
    if winner.speedup_low is None or winner.speedup_high is None:
        return "too few runs to be sure"
    return f"{ratio_text(winner.speedup_low)} to {ratio_text(winner.speedup_high)} (99%)"


def _words(result: TuningResult) -> dict[str, tuple[str, ...]]:
    winners = (result.best, result.best_at_your_batch)
    kept = dict.fromkeys(said for winner in winners if winner and (said := keep_text(result, winner)))
    return {
        "Answer": tuple(kept),
        "Measured once, not confirmed": seen_once(result),
        "Batch size": batch_caution(result),
        "Bottleneck": bottleneck_lines(result),
        "Epochs and checkpoints": _epochs(result),
        "Memory format and optimizer, compute only": tuple(map(recipe_line, result.recipes)),
        "Time taken": _took(result),
        "Notes": result.notes,
    }


def _epochs(result: TuningResult) -> tuple[str, ...]:
    """The start of an epoch, which the throughput does not contain: medians over the runs of the confirmation."""
    best = None if result.best is None else finalist_of(result, result.best.config)
    if best is None or best.epoch_s is None or best.config.loader.num_workers == 0:
        return ()
    kept, anew = (statistics.median(getattr(run, name) for run in best.runs) for name in ("refill_s", "first_batch_s"))
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
