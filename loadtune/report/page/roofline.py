"""The roofline of data loading: what each resource allows over the number of workers, and what was measured under it.

In: a `TuningResult`. Out: a `Figure`, at the winner's batch size, precision and pinning. Changes stand to its right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2
from statistics import fmean
from typing import Any

from loadtune.records import (
    Bottleneck,
    ChangeKind,
    Ratio,
    Remedies,
    Resource,
    RooflinePoint,
    TrialConfig,
    TriedRemedy,
    TuningResult,
)
from loadtune.report.bottleneck import RESOURCE_TEXT
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
    error_bars,
    line,
    points,
    score_axis,
    text,
    upright,
)
from loadtune.report.page.measured import baseline, timed_trials, whose_runs
from loadtune.report.remedies import gain_text
from loadtune.report.wording import remedy_text, settings_text
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
    rate: float
    """Samples/s."""
    low: float | None = None
    high: float | None = None
    """Its interval. None: not known."""
    said: str
    change: str = ""
    """Its name. Empty: a configuration without changes of the code."""

    @property
    def num_workers(self) -> int:
        return self.config.loader.num_workers

    @property
    def words(self) -> str:
        known = self.low is not None and self.high is not None
        interval = f" ({number_text(self.low)} to {number_text(self.high)})" if known else ""
        return f"{self.said}<br>{settings_text(self.config)}<br>{rate_text(self.rate)}{interval}"


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
    rates = [at.samples_per_s.value for at in found.roofline] + [one.rate for one in marks if not one.change]
    top = max([_ROOM * max(rates, default=1.0)] + [1.05 * (one.high or one.rate) for one in marks])
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
        return (
            "The throughput model does not describe this job, so no resource is named. "
            f"{found.num_missed} of {counted(found.num_predicted, 'prediction')} missed, and the resources explain "
            f"{percent_text(found.explained)} of the measured throughput.",
        )
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
    numbers = {one.num_workers for one in marks if not one.change} | {config.loader.num_workers}
    numbers |= {at.num_workers for at in found.roofline}
    right = _place(max(numbers))
    placed = [(one, _place(one.num_workers)) for one in marks if not one.change]
    placed += [(one, right + _APART * (number + 1.5)) for number, one in enumerate(changes)]
    shown = [one for one in _LINES if min(_limits(found, one).values(), default=top) < top]
    title = f"Batch {config.batch_size}, {config.precision}, {'' if config.loader.pin_memory else 'not '}pinned"
    if found.limits:
        first = found.limits[0]
        title += f". Most likely limit: {_name(first.resource)} ({percent_text(first.probability)})"
    edge = max([right, *(place for _, place in placed)]) + 0.25
    layout = {
        "xaxis": axis("workers", range=[-0.15, edge], zeroline=False, **_ticks(numbers, config)),
        "yaxis": score_axis() | {"range": [0, top]},
        "shapes": [
            upright(place, PINK, f"{one.change}: {number_text(one.rate)}", one.rate)
            for one, place in placed
            if one.change
        ],
    }
    kinds = [[(one, place) for one, place in placed if one.kind == kind] for kind in _MARKS]
    traces = [*_prediction(found.roofline), *(_limit(found, one) for one in shown), *map(_marks, filter(None, kinds))]
    return Panel(title=title, data=tuple(traces), layout=layout, height_px=540)


def _marks(placed: Sequence[tuple[_Mark, float]]) -> Trace:
    """Of one kind."""
    marks = [one for one, _ in placed]
    above = [None if one.high is None else one.high - one.rate for one in marks]
    below = [None if one.low is None else one.rate - one.low for one in marks]
    where, rates, words = [place for _, place in placed], [one.rate for one in marks], [one.words for one in marks]
    kind = marks[0].kind
    return points(kind, where, rates, words, marker=_MARKS[kind], error_y=error_bars(above, below))


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


def _mark(
    kind: str,
    config: TrialConfig,
    base: float,
    factors: tuple[float, float | None, float | None],
    said: str,
    change: str = "",
) -> _Mark:
    """``factors``: its value and the ends of its interval, as multiples of the base in samples/s."""
    value, low, high = factors
    low, high = (None if end is None else base * end for end in (low, high))
    return _Mark(kind=kind, config=config, rate=base * value, low=low, high=high, said=said, change=change)


def _around(half: float | None) -> tuple[float, float | None, float | None]:
    return (1.0, None, None) if half is None else (1.0, 1 - half, 1 + half)


def _configurations(result: TuningResult, winner: TrialConfig) -> list[_Mark]:
    """Of the winner's batch size, recipe and pinning, and the baseline. Changes of the code are drawn apart."""
    own, found = baseline(result), list[_Mark]()
    confirmed = {one.config: one for one in result.finalists if one.runs}
    for config in dict.fromkeys([*confirmed, *(trial.config for trial, _ in timed_trials(result))]):
        is_under = _without_workers(config) == _without_workers(winner)
        whose = " and ".join(["winner"] * (config == winner) + ["baseline"] * (config == own))
        if config.remedies or not (is_under or whose):
            continue
        kind, runs = whose or ("confirmed" if config in confirmed else "trial"), whose_runs(result, config)
        other = "" if is_under else ", with other settings than this roofline"
        half = confirmed[config].half_width_fraction if config in confirmed else None
        rate, said = fmean(run.samples_per_s for run in runs), f"{kind}{other}, mean of {counted(len(runs), 'run')}"
        found.append(_mark(kind, config, rate, _around(half), said))
    return found


def _without_workers(config: TrialConfig) -> tuple[object, ...]:
    return config.batch_size, config.loader.pin_memory, config.recipe


def _changes(result: TuningResult, found: Bottleneck) -> list[_Mark]:
    """All that gain together, each that was measured, each that was predicted."""
    remedies, marks = result.remedies or Remedies(), list[_Mark]()
    if remedies.config is not None and remedies.samples_per_s is not None:
        kind, around = "winner with code changes", _around(remedies.half_width_fraction)
        marks.append(_mark(kind, remedies.config, remedies.samples_per_s, around, kind, "with code changes"))
    by_speed = result.config.objective == "samples-per-s"
    marks += [_measured(one, by_speed=by_speed) for one in remedies.tried if one.runs and one.config != remedies.config]
    predicted = (_predicted(one, remedies, result) for one in remedies.tried if not one.runs)
    marks += [mark for mark in predicted if mark is not None]
    for one in found.changes:
        config = replace(found.config, loader=replace(found.config.loader, num_workers=one.num_workers))
        name, rate = _CHANGES[one.kind], one.samples_per_s
        said = f"{name}, predicted: {gain_text(one.gain.value, one.gain.low, one.gain.high)}"
        marks.append(_mark("predicted with a change", config, 1.0, (rate.value, rate.low, rate.high), said, name))
    return marks


def _measured(one: TriedRemedy, *, by_speed: bool) -> _Mark:
    """Its interval is that of the gain, which was measured in turn with the runs without the change."""
    rate, gain = fmean(run.samples_per_s for run in one.runs), one.gain or Ratio(ratio=1.0)
    said = f"{one.title}: {gain_text(gain.ratio, gain.low, gain.high)}, mean of {counted(len(one.runs), 'run')}"
    factors = (gain.ratio, gain.low, gain.high) if by_speed else (gain.ratio, None, None)
    return _mark("measured with a change", one.config, rate / gain.ratio, factors, said, _name_of(one))


def _predicted(one: TriedRemedy, remedies: Remedies, result: TuningResult) -> _Mark | None:
    """None: nothing was predicted, or what it would be compared with was not measured."""
    gain, runs = one.predicted, [each.runs for each in remedies.tried if each.config == one.base and each.runs]
    base = [run.samples_per_s for run in (runs[0] if runs else whose_runs(result, one.base))]
    if one.base == remedies.config and remedies.samples_per_s is not None:
        base = [remedies.samples_per_s]
    if gain is None or not base:
        return None
    why = f"<br>not measured: {text(one.reason[:200])}" if one.reason else ""
    said = f"{one.title}, predicted: {gain_text(gain.value, gain.low, gain.high)}{why}"
    factors = (gain.value, gain.low, gain.high)
    return _mark("predicted with a change", one.config, fmean(base), factors, said, _name_of(one))


def _name_of(one: TriedRemedy) -> str:
    """``+ copy ahead`` on top of others."""
    return f"{'+ ' if one.base.remedies else ''}{remedy_text(one.name)}"
