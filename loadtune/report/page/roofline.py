"""The roofline of data loading: what each resource allows over the number of workers, and what was measured under it.

In: a `TuningResult`. Out: a `Figure`, at the winner's batch size, precision and pinning. Changes stand to its right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from statistics import fmean
from typing import Any

from loadtune.records.config import TrialConfig
from loadtune.records.interval import Interval, around
from loadtune.records.result import Bottleneck, ChangeKind, Remedies, Resource, RooflinePoint, TuningResult
from loadtune.report.page import figure as draw
from loadtune.report.page.figure import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, Figure, Panel, Trace
from loadtune.report.sentences import RESOURCE_TEXT, misfit_text
from loadtune.report.wording import gain_text, remedy_text, settings_text
from loadtune.units import counted, number_text, percent_text, rate_text

_LINES: dict[Resource, tuple[str, str]] = {
    "workers": (BLUE, "dash"),
    "cores": (SKY, "dashdot"),
    "pinning": (PINK, "longdash"),
    "main": (RED, "dot"),
    "device": (GREEN, "longdashdot"),
}
_MARKS: dict[str, dict[str, Any]] = {
    "trial": {"color": BLUE, "symbol": "circle-open", "size": 8, "line": {"width": 2}},
    "confirmed": {"color": BLUE, "symbol": "circle", "size": 9},
    "baseline": {"color": ORANGE, "symbol": "diamond", "size": 13},
    "winner": {"color": GREEN, "symbol": "star", "size": 15},
    "winner and baseline": {"color": GREEN, "symbol": "star-diamond", "size": 15},
    "winner with code changes": {"color": PINK, "symbol": "star", "size": 15},
    "measured with a change": {"color": PINK, "symbol": "triangle-up", "size": 11},
    "predicted with a change": {"color": PINK, "symbol": "triangle-up-open", "size": 11, "line": {"width": 2}},
}
_CHANGES: dict[ChangeKind, str] = {"twice_the_cores": "twice the cores", "half_the_loading": "half the loading time"}
_ROOM = 1.6
"""Height of the picture ÷ the highest rate that was predicted or measured: a resource may allow far more than that."""
_APART = 0.4
"""Between two changes, in places on the axis: room for a name along each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    kind: str
    """A key of `_MARKS`."""
    config: TrialConfig
    rate: Interval
    """Samples/s."""
    said: str
    change: str = ""
    """Its name. Empty: a configuration without changes of the code."""

    @property
    def words(self) -> str:
        low, high = self.rate.low, self.rate.high
        interval = "" if low is None or high is None else f" ({number_text(low)} to {number_text(high)})"
        return f"{self.said}<br>{settings_text(self.config)}<br>{rate_text(self.rate.value)}{interval}"


def roofline(result: TuningResult) -> Figure:
    found, key, title = result.bottleneck, "roofline", "The roofline of data loading"
    if found is None:
        why = "No configuration was confirmed, so there is no winner to explain."
        if result.best is not None:
            why = "This result has no throughput model: the best precision was not searched."
        return Figure(key=key, title=title, missing=(why,))
    if not found.holds:  # then no resource is drawn or named
        found = replace(found, limits=(), changes=(), roofline=tuple(replace(at, limits={}) for at in found.roofline))
    marks = [*_configurations(result, found.config), *_changes(result, found)]
    rates = [at.samples_per_s.value for at in found.roofline] + [one.rate.value for one in marks if not one.change]
    top = max([_ROOM * max(rates, default=1.0)] + [1.05 * (one.rate.high or one.rate.value) for one in marks])
    sentences = ["The grey line is the predicted throughput, its band the 95% interval."]
    if found.limits:
        sentences.insert(
            0,
            "A dashed line is the throughput that one resource would allow if it were the only limit. The lowest line "
            "limits training; where it is level, more workers do not help.",
        )
    if any(one.change for one in marks):
        sentences.append(
            "Pink marks on the right are changes: the star is the winner with all changes of your code that gain, a "
            "filled triangle was measured with one change, an open one is a prediction."
        )
    return Figure(
        key=key,
        title=title,
        reading=" ".join(sentences),
        source="Lines: the throughput model, fitted to the trials and confirmed runs. Marks: measured, except open "
        "triangles; the mean over its runs, with the 95% interval where a configuration was confirmed. A filled "
        "triangle has the interval of its gain.",
        panels=(_panel(found, marks, top),),
        missing=_missing(found, top),
    )


def _missing(found: Bottleneck, top: float) -> tuple[str, ...]:
    if not found.holds:
        return (f"The throughput model does not describe this job, so no resource is named: {misfit_text(found)}.",)
    lowest = {name: min(_limits(found, name).values(), default=0.0) for name in _LINES}
    above = [f"{_name(name)} (from {rate_text(least)})" for name, least in lowest.items() if least >= top]
    return (f"These limits lie above the picture: {', '.join(above)}.",) if above else ()


def _limits(found: Bottleneck, resource: Resource) -> dict[int, float]:
    """Number of workers → samples/s that the resource allows, where it is used."""
    return {one.num_workers: one.limits[resource] for one in found.roofline if resource in one.limits}


def _name(resource: Resource) -> str:
    return RESOURCE_TEXT[resource].removeprefix("the ")


def _place(num_workers: int) -> float:
    """On the axis: as on a logarithmic one, with a place for 0 workers."""
    return log2(1 + num_workers)


def _panel(found: Bottleneck, marks: Sequence[_Mark], top: float) -> Panel:
    config, changes = found.config, [one for one in marks if one.change]
    numbers = {one.config.loader.num_workers for one in marks if not one.change} | {config.loader.num_workers}
    numbers |= {at.num_workers for at in found.roofline}
    right = _place(max(numbers))
    placed = [(one, _place(one.config.loader.num_workers)) for one in marks if not one.change]
    placed += [(one, right + _APART * (number + 1.5)) for number, one in enumerate(changes)]
    title = f"Batch {config.batch_size}, {config.precision}, {'' if config.loader.pin_memory else 'not '}pinned"
    if found.limits:
        first = found.limits[0]
        title += f". Most likely limit: {_name(first.resource)} ({percent_text(first.probability)})"
    edge = max([right, *(place for _, place in placed)]) + 0.25
    layout = {
        "xaxis": draw.axis("workers", range=[-0.15, edge], zeroline=False, **_ticks(numbers, config)),
        "yaxis": draw.score_axis() | {"range": [0, top]},
        "shapes": [
            draw.upright(place, PINK, f"{one.change}: {number_text(one.rate.value)}", one.rate.value)
            for one, place in placed
            if one.change
        ],
    }
    traces = [*_prediction(found.roofline)]
    traces += [_limit(found, one) for one in _LINES if min(_limits(found, one).values(), default=top) < top]
    for kind, marker in _MARKS.items():
        if here := [(one, place) for one, place in placed if one.kind == kind]:
            rates, words = [one.rate for one, _ in here], [one.words for one, _ in here]
            places, values = [place for _, place in here], [rate.value for rate in rates]
            traces.append(draw.points(kind, places, values, words, marker=marker, error_y=draw.error_bars(rates)))
    return Panel(title=title, data=tuple(traces), layout=layout, height_px=540)


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
        draw.line("95% interval", [*places, *reversed(places)], band, "rgba(0,0,0,0)", **filled),
        draw.points("predicted", places, [rate.value for rate in rates], words, **look),
    )


def _limit(found: Bottleneck, resource: Resource) -> Trace:
    limits, name, (colour, dash) = _limits(found, resource), _name(resource), _LINES[resource]
    places: list[Any] = [_place(number) for number in limits]
    rates: list[Any] = list(limits.values())
    words: list[Any] = [
        f"{name}: {rate_text(rate)} with {counted(number, 'worker')}" for number, rate in limits.items()
    ]
    if 0 in limits:  # there the training process loads: no line leads from it to 1 worker
        for each in (places, rates, words):
            each.insert(1, None)
    look = {"mode": "lines+markers", "line": {"color": colour, "width": 2, "dash": dash}}
    return draw.points(name, places, rates, words, marker={"color": colour, "size": 5}, **look)


def _configurations(result: TuningResult, winner: TrialConfig) -> list[_Mark]:
    """Of the winner's batch size, recipe and pinning, and the baseline. Changes of the code are drawn apart."""
    own, found = draw.baseline(result), list[_Mark]()
    confirmed = {one.config: one for one in result.finalists if one.runs}
    for config in dict.fromkeys([*confirmed, *(trial.config for trial, _ in draw.timed_trials(result))]):
        here, there = ((one.batch_size, one.loader.pin_memory, one.recipe) for one in (config, winner))
        is_under = here == there
        whose = " and ".join(["winner"] * (config == winner) + ["baseline"] * (config == own))
        if config.remedies or not (is_under or whose):
            continue
        kind, runs = whose or ("confirmed" if config in confirmed else "trial"), draw.whose_runs(result, config)
        other = "" if is_under else ", with other settings than this roofline"
        half = confirmed[config].half_width_fraction if config in confirmed else None
        said = f"{kind}{other}, mean of {counted(len(runs), 'run')}"
        rate = around(fmean(run.samples_per_s for run in runs), half)
        found.append(_Mark(kind=kind, config=config, rate=rate, said=said))
    return found


def _changes(result: TuningResult, found: Bottleneck) -> list[_Mark]:
    """All that gain together, each that was measured by itself, each that was predicted."""
    remedies, marks, kind = result.remedies or Remedies(), list[_Mark](), "winner with code changes"
    together = remedies.samples_per_s
    if remedies.config is not None and together is not None:
        marks.append(_Mark(kind=kind, config=remedies.config, rate=together, said=kind, change="with code changes"))
    for one in remedies.tried:
        gain, kind = (one.predicted, "predicted") if one.gain is None else (one.gain, "measured")
        base = [run.samples_per_s for run in draw.whose_runs(result, one.base)]
        if one.base == remedies.config and together is not None:
            base = [together.value]
        is_told = one.gain is not None and (one.config == remedies.config or result.config.objective != "samples-per-s")
        if gain is None or not base or is_told:
            continue
        low, high = (None if end is None else fmean(base) * end for end in (gain.low, gain.high))
        why = f"<br>not measured: {draw.text(one.reason[:200])}" if one.reason else ""
        marks.append(
            _Mark(
                kind=f"{kind} with a change",
                config=one.config,
                rate=Interval(value=fmean(base) * gain.value, low=low, high=high),
                said=f"{one.title}, {kind}: {gain_text(gain)}{why}",
                change=f"{'+ ' if one.base.remedies else ''}{remedy_text(one.name)}",
            )
        )
    for each in found.changes:
        config = replace(found.config, loader=replace(found.config.loader, num_workers=each.num_workers))
        name, said = _CHANGES[each.kind], f"{_CHANGES[each.kind]}, predicted: {gain_text(each.gain)}"
        kind = "predicted with a change"
        marks.append(_Mark(kind=kind, config=config, rate=each.samples_per_s, said=said, change=name))
    return marks
