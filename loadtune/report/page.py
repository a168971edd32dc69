"""Pages: their figures, as traces and a layout that plotly.js takes; what else they show, as plain data; and one HTML
file each, written whole or not at all. Its policy forbids a browser any request, and any script but the two whose
hashes it names. Theme, fonts and margins of figures are the page's.
"""

import base64
import hashlib
import importlib.util
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from loadtune.errors import ResultError
from loadtune.records.config import TrialConfig
from loadtune.records.loading import LoadingStep
from loadtune.records.measurement import Measurement
from loadtune.records.result import Bottleneck, Resource, Result, RooflinePoint, finalist_of
from loadtune.records.statistics import Interval, gain_text
from loadtune.report import sentences, tables
from loadtune.report.forms import changes_code, loader_code, script_lines, step_code
from loadtune.report.tables import banner, peak_bytes
from loadtune.store import load_result, result_files, write_whole
from loadtune.units import MISSING, bytes_text, counted, number_text, percent_text, rate_text, ratio_text, seconds_text

if TYPE_CHECKING:
    import jinja2

Trace = dict[str, Any]
Point = tuple[Any, Any, str]
"""x and y, of which an `Interval` is drawn with its bars, and the text that shows when the mouse is on it."""

# Okabe & Ito, Color Universal Design (2008), without yellow and with a lighter blue: seen on black and on white.
BLUE, ORANGE, GREEN, RED = "#3d8bd4", "#e69f00", "#009e73", "#d55e00"
PINK, SKY, GREY = "#cc79a7", "#56b4e9", "#8c8c8c"

_KINDS: dict[str, Trace] = {
    "measured": {"color": BLUE, "symbol": "circle", "size": 8},
    "baseline": {"color": ORANGE, "symbol": "diamond", "size": 13},
    **{name: {"color": GREEN, "symbol": "star", "size": 15} for name in ("best", "answer")},
}
_LINES: dict[Resource, tuple[str, str]] = {
    "workers": (BLUE, "dash"),
    "cores": (SKY, "dashdot"),
    "pinning": (PINK, "longdash"),
    "main": (RED, "dot"),
    "device": (GREEN, "longdashdot"),
}
_MOST_STEPS, _MARGINS_PX = 5, 78
"""Of loading that are named; above and below a plot together."""
_BELOW = "<br>" + 4 * "\N{NO-BREAK SPACE}"
_ROOM = 1.6
"""Height of the roofline ÷ the highest rate that was predicted or measured: a resource may allow far more than that."""
_NAME_WIDTH = 26
"""Of a name beside a figure: half of a phone's width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot."""

    title: str = ""
    """Plain text; empty where the figure has one panel."""
    data: Sequence[Trace]
    layout: dict[str, Any]
    height_px: int = 380


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def points(name: str, found: Sequence[Point], **look: Any) -> Trace:
    trace: Trace = {"type": "scatter", "mode": "markers", "name": name, **look}
    trace |= {"text": [words for *_, words in found], "hovertemplate": "%{text}<extra></extra>"}
    for along, places in {"x": [x for x, *_ in found], "y": [y for _, y, _ in found]}.items():
        spans = [each if isinstance(each, Interval) else Interval(value=each) for each in places]
        trace[along] = [each.value for each in spans]
        if any(each.half_width is not None for each in spans):
            above = [None if each.high is None else each.high - each.value for each in spans]
            below = [None if each.low is None else each.value - max(0.0, each.low) for each in spans]
            drawn = {"type": "data", "color": GREY, "thickness": 2, "width": 0}
            trace[f"error_{along}"] = {**drawn, "array": above, "arrayminus": below}
    return trace


def line(name: str, x: Iterable[Any], y: Iterable[Any], colour: str, *, shape: str = "linear", **more: Any) -> Trace:
    """``shape`` ``hv`` is a staircase: a value holds until the next."""
    drawn = {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y)}
    return {**drawn, "line": {"color": colour, "width": 2, "shape": shape}, "hoverinfo": "skip", **more}


def kind_of(result: Result, config: TrialConfig) -> str:
    return sentences.names(result).get(config, "measured")


def line_ends(ends: Iterable[tuple[str, str, float]], top: float, height_px: int, name_px: int) -> list[dict[str, Any]]:
    """Names beside the ends of lines, moved down where they would overlap. ``ends``: names, colours and heights;
    ``top``: of the axis, which begins near 0."""
    found, below, gap = list[dict[str, Any]](), top, name_px * top / (height_px - _MARGINS_PX)
    for name, colour, height in sorted(ends, key=lambda end: -end[2]):
        text = f'<span style="color:{colour}">▬</span> {name}'
        place = {"x": 1, "xref": "paper", "xanchor": "left", "y": min(height, below)}
        found.append({**place, "text": text, "showarrow": False, "align": "left"})
        below = min(height, below) - gap
    return found


def hover(result: Result, config: TrialConfig, run: Measurement, *head: str) -> str:
    """What is shown of a point: settings, rate, wait, memory."""
    memory = peak_bytes(run, result.device.kind)
    rate, waits = f"{sentences.interval_text(run.throughput)} samples/s", percent_text(run.wait_fraction)
    peak = () if memory is None else (f"peak {bytes_text(memory)}",)
    return "<br>".join((*head, sentences.settings_text(config), f"{rate}, waits for data {waits} of the time", *peak))


def loading(result: Result) -> list[LoadingStep]:
    """The largest steps of the best's loading, and the rest."""
    shown = [each for each in result.steps[:_MOST_STEPS] if each.share > 0.005]
    rest = LoadingStep(name="other steps", share=1.0 - sum(each.share for each in shown), waits=None)
    return [*shown, rest] if shown and rest.share > 0.005 else shown


def roofline(result: Result) -> list[Panel]:
    """At the winner's batch size, recipe and pinning."""
    found = result.bottleneck
    if found is None or not found.holds:
        return []
    config = found.config
    tried = [config, *(each.config for each in result.finalists), *(each.config for each in result.trials)]
    most = max(each.loader.num_workers for each in tried)  # that could be chosen
    roof = [at for at in found.roofline if at.num_workers <= most]
    by_kind = {kind: list[Point]() for kind in _KINDS}
    for each, point in _beside(result, config, dict.fromkeys(tried)):
        by_kind[kind_of(result, each)].append(point)
    measured = [points(kind, found, marker=_KINDS[kind]) for kind, found in by_kind.items() if found]
    rates = [at.samples_per_s.value for at in roof] + [rate for trace in measured for rate in trace["y"]]
    top = _ROOM * max(rates, default=1.0)
    pinned = "pinned" if config.loader.pin_memory else "not pinned"
    layout = {
        # Whole numbers: plotly.js would also mark those between, and round them.
        "xaxis": axis("workers", dtick=max(1, most // 8), range=[-0.02 * most, 1.03 * most or 1], zeroline=False),
        "yaxis": axis("samples/s", tickformat=",~r", range=[0, top]),
    }
    title = f"Batch {config.batch_size}, {config.precision}, {sentences.recipe_text(config.recipe)}, {pinned}"
    lines = [*_prediction(roof), *_limits(found, roof, top)]
    ends = [(each["name"].replace(", ", _BELOW), each["line"]["color"], each["y"][-1]) for each in lines[1:]]
    names: dict[str, Any] = {"annotations": line_ends(ends, top, 440, 34), "margin": {"r": 126}}
    return [Panel(title=title, data=[*lines, *measured], layout=layout | names, height_px=440)]


def _prediction(roof: Sequence[RooflinePoint]) -> list[Trace]:
    places, rates = [at.num_workers for at in roof], [at.samples_per_s for at in roof]
    band = [rate.low for rate in rates] + [rate.high for rate in reversed(rates)]
    filled: Trace = {"fill": "toself", "fillcolor": "rgba(140,140,140,0.28)", "showlegend": False}
    predicted = list[Point]()
    for number, rate in zip(places, rates, strict=True):
        interval = f"95% interval: {number_text(rate.low)} to {number_text(rate.high)}"
        words = f"{counted(number, 'worker')}: {rate_text(rate.value)} predicted<br>{interval}"
        predicted.append((number, rate.value, words))
    return [
        line("95% interval", [*places, *reversed(places)], band, "rgba(0,0,0,0)", **filled),
        points("predicted", predicted, mode="lines", line={"color": GREY, "width": 4}),
    ]


def _limits(found: Bottleneck, roof: Sequence[RooflinePoint], top: float) -> list[Trace]:
    """A line for each resource from 1 worker on: without workers everything happens in turn. Lines above the picture
    are left out."""
    share, lines = {limit.resource: f", {percent_text(limit.probability)}" for limit in found.limits}, list[Trace]()
    for resource, (colour, dash) in _LINES.items():
        limits = {at.num_workers: at.limits[resource] for at in roof if resource in at.limits and at.num_workers}
        if min(limits.values(), default=top) < top:
            name = sentences.RESOURCE_TEXT[resource].removeprefix("the ")
            drawn = [(n, rate, f"{name}: {rate_text(rate)} with {counted(n, 'worker')}") for n, rate in limits.items()]
            look = {"mode": "lines", "line": {"color": colour, "width": 2, "dash": dash}}
            lines.append(points(name + share.get(resource, ""), drawn, **look))
    return lines


def _beside(result: Result, winner: TrialConfig, configs: Iterable[TrialConfig]) -> Iterator[tuple[TrialConfig, Point]]:
    """What was measured where only the workers differ from the winner's settings: confirmed, else in trials."""
    for config in configs:
        here, there = ((one.batch_size, one.loader.pin_memory, one.recipe) for one in (config, winner))
        finalist = finalist_of(result.finalists, config)
        tried = [trial.measurement for trial in result.trials if trial.config == config and trial.measurement]
        runs = finalist.runs if finalist else tried
        if runs and here == there and not config.remedies:
            rate = finalist.throughput if finalist else fmean(run.samples_per_s for run in runs)
            words = hover(result, config, runs[-1], f"{kind_of(result, config)}, mean of {counted(len(runs), 'run')}")
            yield config, (config.loader.num_workers, rate, words)


def gains(result: Result) -> list[Panel]:
    winner = result.best_at_your_batch or result.best
    found = [] if winner is None else [*sentences.steps(result, winner), *sentences.changes(result)]
    if not found:
        return []
    shown = [(each.is_measured, (each.ratio, place, gain_text(each.ratio))) for place, each in enumerate(found)]
    look, traces = {"color": GREEN, "size": 11}, list[Trace]()
    for name, measured, symbol in (("measured", True, "circle"), ("predicted", False, "circle-open")):
        here = [point for is_measured, point in shown if is_measured == measured]
        traces.append(points(name, here, marker={**look, "symbol": symbol}))
    most = max(each.ratio.high or each.ratio.value for each in found)
    names = [textwrap.wrap(f"{each.name}: {ratio_text(each.ratio.value)}", _NAME_WIDTH) for each in found]
    places = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": list(map("<br>".join, names))}
    layout = {
        "xaxis": axis("samples/s after ÷ before", range=[0, 1.1 * most]),
        "yaxis": {**places, "range": [len(names) - 0.5, -0.5]},
        "shapes": [{"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper", "line": {"color": GREY}}],
    }
    return [Panel(data=traces, layout=layout, height_px=120 + len(names) * (14 * max(map(len, names)) + 16))]


def timelines(result: Result) -> list[Panel]:
    """Of the baseline and the best, the last run of each, when the machine was warm.

    A value holds for its slice; the last is drawn to its end.
    """
    xaxis, yaxis = axis("seconds", rangemode="tozero"), axis("utilization", range=[-0.03, 1.03], tickformat=".0%")
    panels = list[Panel]()
    for config in dict.fromkeys((result.yours, result.best and result.best.config)):
        found = finalist_of(result.finalists, config)
        timeline = found and found.runs[-1].telemetry and found.runs[-1].telemetry.timeline
        if not found or not timeline:
            continue
        gpu, cpu = timeline.gpu_utilization_fraction, timeline.cpu_utilization_fraction
        traces, ends = list[Trace](), list[tuple[str, str, float]]()
        for name, values, colour in (("GPU", gpu, GREEN), ("CPU", cpu, ORANGE)):
            if any(value is not None for value in values):
                times = [round(place * timeline.slice_s, 4) for place in range(len(values) + 1)]
                words = {"hoverinfo": "all", "hovertemplate": name + " %{y:.0%} at %{x:.2f} s<extra></extra>"}
                traces.append(line(name, times, [*values, values[-1]], colour, shape="hv", **words))
                ends.append((name, colour, [value for value in values if value is not None][-1]))
        title = f"{kind_of(result, found.config)}: {sentences.settings_text(found.config)}"
        layout = {"annotations": line_ends(ends, 1.03, 240, 16), "margin": {"r": 58}, "xaxis": xaxis, "yaxis": yaxis}
        panels.append(Panel(title=title, data=traces, layout=layout, height_px=240))
    return panels


def figures(result: Result) -> dict[str, list[Panel]]:
    """By their anchor in the page; empty where there is nothing to draw."""
    return {
        "roofline": roofline(result),
        "gains": gains(result),
        "timelines": timelines(result),
    }


# The page

PAGE_FILE = "report.html"
MOST_NOTES = 5
_FILES = Path(__file__).parent / "page_files"


def write_page(result: Result, path: Path) -> Path:
    """One run. Raises ResultError where it cannot be written, or plotly.js is not installed."""
    return write_whole(path, _rendered("page.html.jinja", page_view(result)).encode())


def write_board(folders: Sequence[Path], path: Path) -> Path:
    """Every result below these folders on one page, which names those that cannot be read."""
    results, unread = list[Result](), list[str]()
    for file in sorted({file.resolve() for folder in folders for file in result_files(folder)}):
        try:
            results.append(load_result(file))
        except ResultError as error:
            unread.append(str(error))
    return write_whole(path, _rendered("board.html.jinja", board_view(results, unread)).encode())


def _rendered(template: str, view: dict[str, Any]) -> str:
    """With plotly.js where there are figures. Raises ResultError where it is not installed."""
    figures = view.get("figures", {}).items()
    plotly, script = _plotly_js() if figures else "", (_FILES / "page.js").read_text(encoding="utf-8")
    hashes = (hashlib.sha256(each.encode()).digest() for each in (plotly, script))
    return (
        _templates()
        .get_template(template)
        .render(
            page=view,
            drawn={
                f"{key}-{place}": {"data": panel.data, "layout": panel.layout}
                for key, panels in figures
                for place, panel in enumerate(panels)
            },
            style=(_FILES / "page.css").read_text(encoding="utf-8"),
            plotly=plotly,
            script=script,
            hashes=[base64.b64encode(each).decode() for each in hashes],
        )
    )


@cache
def _templates() -> "jinja2.Environment":
    """Compiled once in a process."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FILES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}  # its default sorts
    return made


def _plotly_js() -> str:
    """The script that the package ``plotly`` brings, read without importing that: nothing else of it is used."""
    spec = importlib.util.find_spec("plotly")
    for folder in () if spec is None else spec.submodule_search_locations or ():
        file = Path(folder) / "package_data" / "plotly.min.js"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    raise ResultError("plotly.js was not found, which draws the page. The package plotly brings it: pip install plotly")


def page_view(result: Result) -> dict[str, Any]:
    winner, headline, lines = sentences.shown_winner(result), "No answer", sentences.seen_once(result)
    if winner is not None:
        headline, *others = sentences.answer_lines(result, winner)
        set_to = [] if winner.config == result.yours else [f"Settings: {sentences.settings_text(winner.config)}."]
        lines = (*set_to, *others, *sentences.bottleneck_sentence(result))
    return {
        "title": f"{result.config.workload.title} on {result.device.name}",
        "subtitle": f"{result.created[:16].replace('T', ' ')} UTC, loadtune {result.loadtune_version}",
        "warning": sentences.warning(result),
        "headline": headline,
        "lines": lines,
        "steps": loading(result),
        "confirmed": tables.best_and_baseline(result),
        "sections": [tables.Section(title=title, lines=lines) for title, lines in _words(result).items() if lines],
        "code": _code(result),
        "machine": banner(result.host, result.device),
        "figures": figures(result),
        "changes": changes_code(result),
        "limits": limits_table(result),
        "trials": tables.trial_table(result),
    }


def _words(result: Result) -> dict[str, tuple[str, ...]]:
    notes = result.notes[:MOST_NOTES]
    if more := result.notes[MOST_NOTES:]:
        notes = (*notes, f"{counted(len(more), 'more note')} in result.json.")
    stages = ", ".join(
        f"{sentences.STAGE_TEXT.get(stage, stage)} {seconds_text(s)}" for stage, s in result.stage_seconds.items()
    )
    took, tried = seconds_text(result.seconds), counted(len(result.trials), "trial")
    return {
        "Notes": notes,
        "Time taken": (f"{took}: {stages or 'nothing was measured'}; {tried}.",),
    }


def _code(result: Result) -> list[tables.Section]:
    """Of what is proven better: the answer, and at another batch size only what differs from it."""
    blocks = dict[str, str]()
    for winner in filter(None, (sentences.shown_winner(result), result.best)):
        where = f" at batch {winner.config.batch_size}" if blocks else ""
        if winner.config == result.yours:
            continue
        if result.config.workload.command:
            blocks.setdefault("\n".join(script_lines(result, winner.config)), f"To keep it{where}")
        else:
            blocks.setdefault(loader_code(result, winner.config), f"Loader{where}")
            blocks.setdefault(step_code(result, winner.config), f"Training step{where}")
    return [tables.Section(title=title, lines=tuple(code.splitlines())) for code, title in blocks.items()]


def limits_table(result: Result) -> tables.Table:
    """A column for each precision."""
    found, trained = list[tuple[str, ...]](), {choice.chosen for choice in result.recipes}
    for each in result.ceilings:
        predicted = "" if each.verified else " (predicted)"
        sizes = [f"{size:,}{predicted}" for size in (each.safe_batch_size, each.batch_size)]
        # Other points are of recipes that were turned down, or of the user's own.
        timed = [p for p in result.compute_points if p.recipe in trained and p.recipe.precision == each.precision]
        alone = max(timed, key=lambda point: point.samples_per_s, default=None)
        ran = ", ".join(f"{p.batch_size:,}{'' if p.fits else ' failed'}" for p in each.probes)
        rate = MISSING if alone is None else f"{rate_text(alone.samples_per_s)} at batch {alone.batch_size:,}"
        limit = sentences.limit_text(each.limit, result.device.kind)
        found.append((*sizes, limit, bytes_text(each.budget_bytes), rate, ran))
    names = ("safe batch", "largest", "limited by", "memory for training", "compute-only rate", "sizes run")
    rows = tuple(zip(names, *found, strict=True)) if found else ()
    columns = ("", *(each.precision for each in result.ceilings))
    return tables.Table(title="Limits of each precision", columns=columns, rows=rows)


def board_view(results: Sequence[Result], unread: Sequence[str] = ()) -> dict[str, Any]:
    """A row for each result; those of one workload and machine stand together, the newest first.

    ``unread``: files that are no result this loadtune can read, and why.
    """
    rows = [_row(result) for result in sorted(results, key=lambda one: one.created, reverse=True)]
    rows.sort(key=lambda row: [row.by_column[each].text for each in ("workload", "machine")])
    num_answers = sum(row.outcome == "answer" for row in rows)
    return {
        "title": "Benchmark board",
        "subtitle": f"{counted(len(results), 'result')}, {num_answers} with an answer",
        "rows": rows,
        "unread": unread,
    }


def _row(result: Result) -> tables.SortedRow:
    best = None if result.best is None or result.best.inconclusive else result.best
    spec = result.config.workload
    size = "" if spec.image_size is None else f"{spec.image_size} pixels"
    classes = "" if spec.num_classes is None else counted(spec.num_classes, "class")
    workload = ", ".join(filter(None, (spec.title, size, classes, spec.named_optimizer)))  # what makes a training step
    by_column = {
        "when (UTC)": tables.Cell(result.created[:16].replace("T", " ")),
        "workload": tables.Cell(workload),
        "machine": tables.Cell(f"{result.device.name}, {counted(result.host.num_usable_cores, 'core')}"),
        "samples/s": tables.number(best.throughput if best else None, sentences.interval_text),
        "gain": tables.number(best.speedup.value if best and best.speedup else None, ratio_text),
        "of compute-only": tables.number(best.compute_fraction if best else None, percent_text),
        "configuration": tables.Cell(sentences.settings_text(best.config) if best else MISSING),
        "host": tables.Cell(result.host.hostname),
        "torch": tables.Cell(result.host.torch or MISSING),
    }
    return tables.SortedRow(outcome="answer" if best else "no answer", by_column=by_column)
