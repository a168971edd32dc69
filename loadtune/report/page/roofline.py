"""The roofline of data loading: what each resource allows over the number of workers, and what was measured under it.

In: a `TuningResult`. Out: a `Figure`, at the winner's batch size, recipe and pinning.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from loadtune.records.answer import finalist_of
from loadtune.records.config import TrialConfig
from loadtune.records.interval import Interval, around
from loadtune.records.result import Bottleneck, Resource, RooflinePoint, TuningResult
from loadtune.report.page import figures as draw
from loadtune.report.page.figures import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, Figure, Panel, Trace
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
    config = found.config
    tried = [trial.config for trial in result.trials] + [each.config for each in result.finalists]
    most = max(each.loader.num_workers for each in (*tried, config))  # that could be chosen
    roof = [at for at in found.roofline if at.num_workers <= most]
    marks = _marks(result, config)
    rates = [at.samples_per_s.value for at in roof] + [y for mark in marks for y in mark["y"]]
    top = _ROOM * max(rates, default=1.0)
    pinned = "pinned" if config.loader.pin_memory else "not pinned"
    return Panel(
        title=f"Batch {config.batch_size}, {config.precision}, {recipe_text(config.recipe)}, {pinned}",
        data=(*_prediction(roof), *_limits(found, roof, top), *marks),
        layout={
            "xaxis": draw.counting_axis("workers", most, range=[-0.02 * most, 1.03 * most or 1], zeroline=False),
            "yaxis": draw.rate_axis(range=[0, top]),
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
    look = {"mode": "lines", "line": {"color": GREY, "width": 4}}
    return (
        draw.line("95% interval", [*places, *reversed(places)], band, "rgba(0,0,0,0)", **filled),
        draw.points("predicted", places, [rate.value for rate in rates], words, **look),
    )


def _limits(found: Bottleneck, roof: Sequence[RooflinePoint], top: float) -> list[Trace]:
    """A line for each resource from 1 worker on: without workers everything happens in turn. Lines above the picture
    are left out."""
    share, lines = {limit.resource: f" {percent_text(limit.probability)}" for limit in found.limits}, list[Trace]()
    for resource, (colour, dash) in _LINES.items() if found.holds else ():
        limits = {at.num_workers: at.limits[resource] for at in roof if resource in at.limits and at.num_workers}
        if min(limits.values(), default=top) < top:
            name = RESOURCE_TEXT[resource].removeprefix("the ")
            words = [f"{name}: {rate_text(rate)} with {counted(number, 'worker')}" for number, rate in limits.items()]
            look = {"mode": "lines", "line": {"color": colour, "width": 2, "dash": dash}}
            name += share.get(resource, "")
            lines.append(draw.points(name, list(limits), list(limits.values()), words, **look))
    return lines


def _marks(result: TuningResult, winner: TrialConfig) -> list[Trace]:
    """What was measured on this roofline: only the workers may differ from the winner's settings."""
    by_kind = {kind: list[tuple[int, Interval, str]]() for kind in _MARKS}
    confirmed = [each.config for each in result.finalists if each.runs]
    for config in dict.fromkeys([winner, *confirmed, *(trial.config for trial, _ in draw.timed_trials(result))]):
        here, there = ((one.batch_size, one.loader.pin_memory, one.recipe) for one in (config, winner))
        runs, finalist = draw.whose_runs(result, config), finalist_of(result, config)
        if runs and here == there and not config.remedies:
            kind = "best" if config == winner else "baseline" if config == result.yours else "measured"
            half = finalist.half_width_fraction if finalist else None
            rate = around(fmean(run.samples_per_s for run in runs), half)
            words = draw.hover(result, config, runs[-1], f"{kind}, mean of {counted(len(runs), 'run')}")
            by_kind[kind].append((config.loader.num_workers, rate, words))
    return [
        draw.points(
            kind,
            [num_workers for num_workers, _, _ in marks],
            [rate.value for _, rate, _ in marks],
            [words for _, _, words in marks],
            marker=_MARKS[kind],
            error_y=draw.error_bars([rate for _, rate, _ in marks]),
        )
        for kind, marks in by_kind.items()
        if marks
    ]
