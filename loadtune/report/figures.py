"""The figures of the page, as traces and a layout that plotly.js takes. Theme, fonts and margins are the page's."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean
from typing import Any

from loadtune.records.config import TrialConfig
from loadtune.records.measurement import Measurement
from loadtune.records.result import Bottleneck, Resource, Result, RooflinePoint, finalist_of
from loadtune.report import sentences, wording
from loadtune.report.tables import peak_bytes
from loadtune.statistics.interval import Interval
from loadtune.units import bytes_text, counted, number_text, percent_text, rate_text, ratio_text

Trace = dict[str, Any]
Point = tuple[Any, Any, str]
"""x and y, of which an `Interval` is drawn with its bars, and the text that shows when the mouse is on it."""

# Okabe & Ito, Color Universal Design (2008), without yellow and with a lighter blue: seen on black and on white.
BLUE, ORANGE, GREEN, RED = "#3d8bd4", "#e69f00", "#009e73", "#d55e00"
PINK, SKY, GREY = "#cc79a7", "#56b4e9", "#8c8c8c"

_KINDS: dict[str, Trace] = {
    "measured": {"color": BLUE, "symbol": "circle", "size": 8},
    "baseline": {"color": ORANGE, "symbol": "diamond", "size": 13},
    "best": {"color": GREEN, "symbol": "star", "size": 15},
}
_LINES: dict[Resource, tuple[str, str]] = {
    "workers": (BLUE, "dash"),
    "cores": (SKY, "dashdot"),
    "pinning": (PINK, "longdash"),
    "main": (RED, "dot"),
    "device": (GREEN, "longdashdot"),
}
_STEPS = (BLUE, ORANGE, GREEN, PINK, SKY)
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
    if config == result.yours:
        return "baseline"
    return "best" if result.best is not None and config == result.best.config else "measured"


def hover(result: Result, config: TrialConfig, run: Measurement, *head: str) -> str:
    """What is shown of a point: settings, rate, wait, memory."""
    memory = peak_bytes(run, result.device.kind)
    rate, waits = f"{wording.interval_text(run.throughput)} samples/s", percent_text(run.wait_fraction)
    peak = () if memory is None else (f"peak {bytes_text(memory)}",)
    return "<br>".join((*head, wording.settings_text(config), f"{rate}, {waits} blocked in next(loader)", *peak))


def loading(result: Result) -> list[Panel]:
    """One bar of the best's steps of loading, hatched as far as they wait; all names are in the legend."""
    shown = [
        (f"{percent_text(step.share)} {step.text}", step.share, step.waits or 0.0)
        for step in result.steps[: len(_STEPS)]
    ]
    if not shown:
        return []
    rest = 1.0 - sum(share for _, share, _ in shown)
    shown += [(f"{percent_text(rest)} other steps", rest, 0.0)] if rest > 0.005 else []
    look = {"type": "bar", "mode": None, "orientation": "h", "textposition": ["inside", "none"], "textangle": 0}
    traces = list[Trace]()
    for (name, share, waits), colour in zip(shown, (*_STEPS, GREY), strict=False):
        words = "<br>".join(escape(part, quote=False) for part in textwrap.wrap(name, 40))  # plotly.js reads some HTML
        parts = [(share * (1 - waits), 0, words), (share * waits, 0, words)]
        marker = {"color": colour, "pattern": {"shape": ["", "/"], "fillmode": "overlay"}}
        traces.append(points(words, parts, marker=marker, insidetextanchor="middle", **look))
    layout = {
        "barmode": "stack",
        "xaxis": axis("", range=[0, 1], tickformat=".0%"),
        "yaxis": {"visible": False, "fixedrange": True},
        "legend": {"traceorder": "normal", "maxheight": 0.8},
        "margin": {"l": 16, "b": 28},
        "uniformtext": {"minsize": 11, "mode": "hide"},
    }
    return [Panel(data=traces, layout=layout, height_px=180)]


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
    title = f"Batch {config.batch_size}, {config.precision}, {wording.recipe_text(config.recipe)}, {pinned}"
    traces = [*_prediction(roof), *_limits(found, roof, top), *measured]
    return [Panel(title=title, data=traces, layout=layout, height_px=440)]


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
    share, lines = {limit.resource: f" {percent_text(limit.probability)}" for limit in found.limits}, list[Trace]()
    for resource, (colour, dash) in _LINES.items():
        limits = {at.num_workers: at.limits[resource] for at in roof if resource in at.limits and at.num_workers}
        if min(limits.values(), default=top) < top:
            name = wording.RESOURCE_TEXT[resource].removeprefix("the ")
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
    shown = [(each.is_measured, (each.ratio, place, wording.gain_text(each.ratio))) for place, each in enumerate(found)]
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
    layout = {
        "showlegend": True,
        "xaxis": axis("seconds", rangemode="tozero"),
        "yaxis": axis("utilization", range=[-0.03, 1.03], tickformat=".0%"),
    }
    panels = list[Panel]()
    for config in dict.fromkeys((result.yours, result.best and result.best.config)):
        found = finalist_of(result.finalists, config)
        timeline = found and found.runs[-1].telemetry and found.runs[-1].telemetry.timeline
        if not found or not timeline:
            continue
        gpu, cpu = timeline.gpu_utilization_fraction, timeline.cpu_utilization_fraction
        traces = list[Trace]()
        for name, values, colour in (("GPU utilization", gpu, GREEN), ("CPU utilization", cpu, ORANGE)):
            if values:
                times = [round(place * timeline.slice_s, 4) for place in range(len(values) + 1)]
                words = {"hoverinfo": "all", "hovertemplate": name + " %{y:.0%} at %{x:.2f} s<extra></extra>"}
                traces.append(line(name, times, [*values, values[-1]], colour, shape="hv", **words))
        title = f"{kind_of(result, found.config)}: {wording.settings_text(found.config)}"
        panels.append(Panel(title=title, data=traces, layout=layout, height_px=240))
    return panels


def figures(result: Result) -> dict[str, list[Panel]]:
    """By their anchor in the page; empty where there is nothing to draw."""
    return {
        "loading": loading(result),
        "roofline": roofline(result),
        "gains": gains(result),
        "timelines": timelines(result),
    }
