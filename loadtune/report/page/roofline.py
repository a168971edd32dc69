"""The roofline of data loading: what each resource allows over the number of workers, and what was measured under it.

In: a `TuningResult`. Out: a `Figure`, at the winner's batch size, recipe and pinning.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from loadtune.records.answer import finalist_of
from loadtune.records.config import TrialConfig
from loadtune.records.interval import around
from loadtune.records.result import Bottleneck, Resource, RooflinePoint, TuningResult
from loadtune.report.page import figure as draw
from loadtune.report.page.figure import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, Figure, Panel, Trace
from loadtune.report.sentences import misfit_text
from loadtune.report.wording import RESOURCE_TEXT, recipe_text
from loadtune.units import counted, number_text, percent_text, rate_text

_LINES: dict[Resource, tuple[str, str]] = {
    "workers": (BLUE, "dash"),
    "cores": (SKY, "dashdot"),
    "pinning": (PINK, "longdash"),
    "main": (RED, "dot"),
    "device": (GREEN, "longdashdot"),
}
_MARKS: dict[str, dict[str, Any]] = {
    "measured": {"color": BLUE, "symbol": "circle", "size": 8},
    "baseline": {"color": ORANGE, "symbol": "diamond", "size": 13},
    "best": {"color": GREEN, "symbol": "star", "size": 15},
}
_ROOM = 1.6
"""Height of the picture ÷ the highest rate that was predicted or measured: a resource may allow far more than that."""
_APART = 0.05
"""Between the names of two lines, as a share of the picture's height."""
_LABELS_PX = 132
"""Width of the margin that holds the names."""


def roofline(result: TuningResult) -> Figure:
    found = result.bottleneck if result.best else None
    reading = (
        "Each dashed line is the throughput that one resource alone would allow, with the probability that it limits "
        "training; the grey band is the prediction with its 95% interval."
    )
    missing = "No configuration was confirmed, so there is no winner to explain."
    if result.best:
        missing = "This result has no throughput model: the best precision was not searched."
    if found is not None and not found.holds:
        reading = f"The throughput model does not describe this job, so no resource is named: {misfit_text(found)}."
    return Figure(
        key="roofline",
        title="The roofline of data loading",
        reading=reading,
        panels=() if found is None else (_panel(result, found),),
        missing="" if found else missing,
    )


def _panel(result: TuningResult, found: Bottleneck) -> Panel:
    tried = [trial.config for trial in result.trials] + [each.config for each in result.finalists]
    most = max(each.loader.num_workers for each in (*tried, found.config))  # that could be chosen
    roof = [at for at in found.roofline if at.num_workers <= most]
    marks = _marks(result, found.config)
    rates = [at.samples_per_s.value for at in roof] + [y for mark in marks for y in mark["y"]]
    top = _ROOM * max(rates, default=1.0)
    lines = [line for each in _LINES if found.holds and (line := _line(roof, each, top))]
    config = found.config
    pinned = "pinned" if config.loader.pin_memory else "not pinned"
    return Panel(
        title=f"Batch {config.batch_size}, {config.precision}, {recipe_text(config.recipe)}, {pinned}",
        data=(*_prediction(roof), *lines, *marks),
        layout={
            "xaxis": draw.counting_axis("workers", most, range=[-0.02 * most, 1.03 * most or 1], zeroline=False),
            "yaxis": draw.score_axis() | {"range": [0, top]},
            "annotations": _labels(found, lines, top),
            "margin": {"r": _LABELS_PX if lines else 8},
        },
        height_px=440,
    )


def _prediction(roof: Sequence[RooflinePoint]) -> tuple[Trace, Trace]:
    places, rates = [one.num_workers for one in roof], [one.samples_per_s for one in roof]
    band = [rate.low for rate in rates] + [rate.high for rate in reversed(rates)]
    filled: Trace = {"fill": "toself", "fillcolor": "rgba(140,140,140,0.28)", "showlegend": False}
    words = [
        f"{counted(one.num_workers, 'worker')}: {rate_text(one.samples_per_s.value)} predicted<br>95% interval: "
        f"{number_text(one.samples_per_s.low)} to {number_text(one.samples_per_s.high)}"
        for one in roof
    ]
    look = {"mode": "lines", "line": {"color": GREY, "width": 4}, "showlegend": False}
    return (
        draw.line("95% interval", [*places, *reversed(places)], band, "rgba(0,0,0,0)", **filled),
        draw.points("predicted", places, [rate.value for rate in rates], words, **look),
    )


def _line(roof: Sequence[RooflinePoint], resource: Resource, top: float) -> Trace | None:
    """From 1 worker on: without workers everything happens in turn. None: it is not used, or lies above the picture."""
    limits = {at.num_workers: at.limits[resource] for at in roof if resource in at.limits and at.num_workers}
    if min(limits.values(), default=top) >= top:
        return None
    (colour, dash), name = _LINES[resource], RESOURCE_TEXT[resource].removeprefix("the ")
    words = [f"{name}: {rate_text(rate)} with {counted(number, 'worker')}" for number, rate in limits.items()]
    look = {"mode": "lines", "line": {"color": colour, "width": 2, "dash": dash}, "showlegend": False}
    return draw.points(resource, list(limits), list(limits.values()), words, **look)


def _labels(found: Bottleneck, lines: Sequence[Trace], top: float) -> list[Trace]:
    """Each line's name at its right end, in the margin, apart from the others."""
    ends = sorted((min(line["y"][-1], top), line["name"], line["line"]["color"]) for line in lines)
    heights = list[float]()
    for height, _, _ in ends:
        heights.append(max([height, *(below + _APART * top for below in heights[-1:])]))
    for place in reversed(range(len(heights))):
        heights[place] = min([heights[place], top, *(above - _APART * top for above in heights[place + 1 : place + 2])])
    share = {limit.resource: f" {percent_text(limit.probability)}" for limit in found.limits}
    return [
        {
            "text": f"{RESOURCE_TEXT[name].removeprefix('the ')}{share.get(name, '')}",
            "font": {"color": colour, "size": 11},
            "xref": "paper",
            "x": 1,
            "y": height,
            "xanchor": "left",
            "yanchor": "middle",
            "showarrow": False,
        }
        for height, (_, name, colour) in zip(heights, ends, strict=True)
    ]


def _marks(result: TuningResult, winner: TrialConfig) -> list[Trace]:
    """What was measured on this roofline: only the workers may differ from the winner's settings."""
    by_kind = {kind: list[TrialConfig]() for kind in _MARKS}
    confirmed = [each.config for each in result.finalists if each.runs]
    for config in dict.fromkeys([winner, *confirmed, *(trial.config for trial, _ in draw.timed_trials(result))]):
        here, there = ((one.batch_size, one.loader.pin_memory, one.recipe) for one in (config, winner))
        if here == there and not config.remedies:
            by_kind["best" if config == winner else "baseline" if config == result.yours else "measured"].append(config)
    traces = list[Trace]()
    for kind, configs in by_kind.items():
        runs = [draw.whose_runs(result, config) for config in configs]
        halves = [each.half_width_fraction if (each := finalist_of(result, one)) else None for one in configs]
        rates = [
            around(fmean(run.samples_per_s for run in each), half) for each, half in zip(runs, halves, strict=True)
        ]
        words = [
            draw.hover(result, config, each[-1], f"{kind}, mean of {counted(len(each), 'run')}")
            for config, each in zip(configs, runs, strict=True)
        ]
        places = [config.loader.num_workers for config in configs]
        bars, marker = draw.error_bars(rates), _MARKS[kind]
        if configs:
            traces.append(draw.points(kind, places, [r.value for r in rates], words, marker=marker, error_y=bars))
    return traces
