"""The roofline of data loading: what each resource allows over the number of workers, and what was measured under it.

In: a `TuningResult`. Out: a `Figure`, at the winner's batch size, precision and pinning.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from statistics import fmean
from typing import Any

from loadtune.records import Bottleneck, Resource, RooflinePoint, TrialConfig, TuningResult
from loadtune.report.bottleneck import RESOURCE_TEXT
from loadtune.report.page.changes import Change, change_labels, change_marks, change_places, shown_changes
from loadtune.report.page.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    Figure,
    Panel,
    Trace,
    axis,
    line,
    points,
    score_axis,
)
from loadtune.report.page.measured import baseline, timed_trials, whose_runs
from loadtune.report.wording import settings_text
from loadtune.units import counted, number_text, percent_text, rate_text

_LINES: dict[Resource, tuple[str, str]] = {
    "workers": (BLUE, "dash"),
    "cores": (SKY, "dashdot"),
    "pinning": (PINK, "longdash"),
    "main": (RED, "dot"),
    "device": (GREEN, "longdashdot"),
}
_MARKS = {
    "trial": {"color": BLUE, "symbol": "circle-open", "size": 8, "line": {"width": 2}},
    "confirmed": {"color": BLUE, "symbol": "circle", "size": 9},
    "baseline": {"color": ORANGE, "symbol": "diamond", "size": 13},
    "winner": {"color": GREEN, "symbol": "star", "size": 15},
    "winner and baseline": {"color": GREEN, "symbol": "star-diamond", "size": 15},
}
_ROOM = 1.6
"""Height of the picture ÷ the highest rate that was predicted or measured: a resource may allow far more than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """A configuration's mark."""

    kind: str
    """A key of `_MARKS`."""
    num_workers: int
    rate: float
    half_width: float | None
    words: str


def roofline(result: TuningResult) -> Figure:
    found = result.bottleneck
    if found is not None and not found.holds:
        found = _without_resources(found)
    return Figure(
        key="roofline",
        title="The roofline of data loading",
        reading="" if found is None else _reading(found, shown_changes(result, found.changes)),
        source="Lines: the throughput model, fitted to the trials and confirmed runs. Marks: measured, except open "
        "triangles; the mean over its runs, with the 95% interval where a configuration was confirmed. A filled "
        "triangle has the interval of its gain.",
        panels=() if found is None else (_panel(result, found),),
        missing=_missing(result),
    )


def _without_resources(found: Bottleneck) -> Bottleneck:
    roof = tuple(replace(one, limits={}) for one in found.roofline)
    return replace(found, limits=(), changes=(), roofline=roof)


def _reading(found: Bottleneck, changes: Sequence[Change]) -> str:
    kinds = {one.kind for one in changes}
    sentences = ["The grey line is the predicted throughput, its band the 95% interval."]
    if "winner with code changes" in kinds:
        sentences.append("The pink star is the winner with all changes of your code that gain, measured.")
    if "measured with a change" in kinds:
        sentences.append("Filled triangles are the winner with one change more, measured.")
    if "predicted with a change" in kinds:
        sentences.append("Open triangles are predictions for one change, which was not tried.")
    if len(changes) > 1:
        sentences.append("Changes with the same number of workers are side by side, from its tick to the right.")
    if found.limits:
        sentences.insert(
            0,
            "A dashed line is the throughput that one resource would allow if it were the only limit. The lowest line "
            "limits training; where it is level, more workers do not help.",
        )
    return " ".join(one for one in sentences if one)


def _missing(result: TuningResult) -> tuple[str, ...]:
    found = result.bottleneck
    if found is None and result.best is None:
        return ("No configuration was confirmed, so there is no winner to explain.",)
    if found is None:
        return (
            "This result has no throughput model: the best precision was not searched, or an older loadtune wrote it.",
        )
    if not found.holds:
        return (
            "The throughput model does not describe this job, so no resource is named. "
            f"{found.num_missed} of {counted(found.num_predicted, 'prediction')} missed, and the resources explain "
            f"{percent_text(found.explained)} of the measured throughput.",
        )
    top = _top(found, _measured(result, found.config), shown_changes(result, found.changes))
    above = [
        f"{_name(resource)} (from {rate_text(min(limits))})"
        for resource in _LINES
        if (limits := list(_limits(found, resource).values())) and min(limits) >= top
    ]
    return (f"These limits lie above the picture: {', '.join(above)}.",) if above else ()


def _limits(found: Bottleneck, resource: Resource) -> dict[int, float]:
    """Number of workers → samples/s that the resource allows, where it is used."""
    return {one.num_workers: one.limits[resource] for one in found.roofline if resource in one.limits}


def _top(found: Bottleneck, measured: Sequence[_Measured], changes: Sequence[Change]) -> float:
    highest = max([one.samples_per_s.value for one in found.roofline] + [one.rate for one in measured], default=1.0)
    return max([_ROOM * highest] + [1.05 * (one.value if one.high is None else one.high) for one in changes])


def _name(resource: Resource) -> str:
    return RESOURCE_TEXT[resource].removeprefix("the ")


def _place(num_workers: int) -> float:
    """On the axis: as on a logarithmic one, with a place for 0 workers."""
    return log2(1 + num_workers)


def _panel(result: TuningResult, found: Bottleneck) -> Panel:
    measured, changes = _measured(result, found.config), shown_changes(result, found.changes)
    top, places = _top(found, measured, changes), change_places(changes, _place)
    numbers = {one.num_workers for one in found.roofline} | {one.num_workers for one in changes}
    numbers |= {one.num_workers for one in measured} | {found.config.loader.num_workers}
    right = max([_place(number) for number in numbers] + places) + 0.25
    shown = [one for one in _LINES if min(_limits(found, one).values(), default=top) < top]
    labels = change_labels(changes, places, top, right)
    layout = {
        "xaxis": axis("workers", range=[-0.15, right], zeroline=False, **_ticks(numbers, found.config)),
        "yaxis": score_axis() | {"range": [0, top]},
        "shapes": [shape for shape, _ in labels],
        "annotations": [words for _, words in labels],
        "margin": {"r": 150} if labels else {},
    }
    data = [
        *_prediction(found.roofline),
        *(_limit(found, one) for one in shown),
        *_marks(measured),
        *change_marks(changes, places),
    ]
    return Panel(title=_title(found), data=tuple(data), layout=layout, height_px=540)


def _title(found: Bottleneck) -> str:
    config = found.config
    words = f"Batch {config.batch_size}, {config.precision}, {'' if config.loader.pin_memory else 'not '}pinned"
    if not found.limits:
        return words
    first = found.limits[0]
    return f"{words}. Most likely limit: {_name(first.resource)} ({percent_text(first.probability)})"


def _ticks(numbers: set[int], winner: TrialConfig) -> Trace:
    """Numbers of workers, without those whose text would touch a more important one's."""
    least = _place(max(numbers)) / 10
    kept = dict[int, float]()
    powers_first = sorted(numbers, key=lambda number: (number & (number - 1) != 0, number))
    for number in (winner.loader.num_workers, 0, max(numbers), *powers_first):
        if all(abs(_place(number) - place) > least for place in kept.values()):
            kept[number] = _place(number)
    return {"tickmode": "array", "tickvals": list(kept.values()), "ticktext": [str(number) for number in kept]}


def _prediction(roof: Sequence[RooflinePoint]) -> tuple[Trace, Trace]:
    places, rates = [_place(one.num_workers) for one in roof], [one.samples_per_s for one in roof]
    band = [rate.low for rate in rates] + [rate.high for rate in reversed(rates)]
    filled: Trace = {"fill": "toself", "fillcolor": "rgba(140,140,140,0.28)", "showlegend": False}
    words = [
        f"{counted(one.num_workers, 'worker')}: {rate_text(one.samples_per_s.value)} predicted<br>95% interval: "
        f"{number_text(one.samples_per_s.low)} to {number_text(one.samples_per_s.high)}"
        for one in roof
    ]
    look = {"mode": "lines", "line": {"color": GREY, "width": 4}}
    return (
        line("95% interval", [*places, *reversed(places)], band, "rgba(0,0,0,0)", **filled),
        points("predicted", places, [rate.value for rate in rates], words, **look),
    )


def _limit(found: Bottleneck, resource: Resource) -> Trace:
    limits, name, (colour, dash) = _limits(found, resource), _name(resource), _LINES[resource]
    places: list[Any] = [_place(number) for number in limits]
    rates: list[Any] = list(limits.values())
    words = [f"{name}: {rate_text(rate)} with {counted(number, 'worker')}" for number, rate in limits.items()]
    if 0 in limits:  # there the training process loads: no line leads from it to 1 worker
        places.insert(1, None)
        rates.insert(1, None)
        words.insert(1, "")
    look = {"mode": "lines+markers", "line": {"color": colour, "width": 2, "dash": dash}}
    return points(name, places, rates, words, marker={"color": colour, "size": 5}, **look)


def _measured(result: TuningResult, winner: TrialConfig) -> list[_Measured]:
    """Of the winner's batch size, recipe and pinning, and the baseline."""
    own, found = baseline(result), list[_Measured]()
    confirmed = {one.config: one for one in result.finalists if one.runs}
    for config in dict.fromkeys([*confirmed, *(one.config for one in timed_trials(result))]):
        is_under = _without_workers(config) == _without_workers(winner)
        whose = " and ".join(["winner"] * (config == winner) + ["baseline"] * (config == own))
        if config.remedies or not (is_under or whose):  # changes of the code are drawn apart
            continue
        kind = whose or ("confirmed" if config in confirmed else "trial")
        runs = whose_runs(result, config)
        rate = fmean(run.samples_per_s for run in runs)
        half = confirmed[config].scored("samples-per-s").half_width if config in confirmed else None
        interval = "" if half is None else f" ± {rate_text(half)} (95%)"
        words = f"{kind}{'' if is_under else ', with other settings than this roofline'}<br>{settings_text(config)}"
        words += f"<br>{rate_text(rate)}{interval}, mean of {counted(len(runs), 'run')}"
        number = config.loader.num_workers
        found.append(_Measured(kind=kind, num_workers=number, rate=rate, half_width=half, words=words))
    return found


def _without_workers(config: TrialConfig) -> tuple[object, ...]:
    return config.batch_size, config.loader.pin_memory, config.recipe


def _marks(measured: Sequence[_Measured]) -> list[Trace]:
    found = {kind: [one for one in measured if one.kind == kind] for kind in _MARKS}
    return [
        points(
            kind,
            [_place(one.num_workers) for one in here],
            [one.rate for one in here],
            [one.words for one in here],
            marker=_MARKS[kind],
            error_y={"type": "data", "array": [one.half_width for one in here], "thickness": 1.2, "width": 4}
            if any(one.half_width for one in here)
            else {},
        )
        for kind, here in found.items()
        if here
    ]
