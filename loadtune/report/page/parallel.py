"""All settings of all measured trials at once, as lines over parallel axes. In: a `TuningResult`. Out: a `Figure`.

Drawn with ordinary lines: plotly.js's own kind needs WebGL and code made at run time, which the page forbids.
"""

from collections.abc import Callable
from dataclasses import dataclass

from loadtune.records import MEMORY_FORMATS, PRECISIONS, SCORE_UNITS, TrialConfig, TuningResult
from loadtune.report.page.figure import GREY, RED, Figure, Panel, Trace, points
from loadtune.report.page.measured import SETTINGS, Timed, hover, leader, timed_trials
from loadtune.report.wording import short_score_text

_LABELS = 7
"""Values written along an axis at most."""
_CLASSES = ((0.75, "#8c8c8c"), (0.98, "#5b8fc9"), (1.01, "#e0a93f"))
"""Share of the best figure below which a line has this colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """Values in order, each as far up as its place among them: settings are few and unevenly spread."""

    title: str
    of: Callable[[TrialConfig], int | str]
    values: tuple[int | str, ...]

    def height(self, config: TrialConfig) -> float:
        return self.values.index(self.of(config)) / max(1, len(self.values) - 1)


def parallel(result: TuningResult) -> Figure:
    timed = timed_trials(result)
    axes = _axes(timed)
    drawable = len(timed) > 1 and len(axes) > 0
    return Figure(
        key="settings",
        title="All settings at once",
        reading="A line is a trial; its end on the right is what it was judged by. Where the best run through one "
        "value, that setting matters; where they fan out, it does not. "
        "Thick is the best, where the search tried it; yellow within 2% of the top, blue within a quarter, "
        "grey below.",
        source="Measured trials of the search. A setting that all of them share has no axis.",
        panels=(_panel(result, timed, axes),) if drawable else (),
        missing=() if drawable else ("It takes two measured trials that differ in a setting.",),
    )


def _axes(timed: tuple[Timed, ...]) -> list[_Axis]:
    axes = [_Axis(title=title, of=of, values=_ordered({of(one.config) for one in timed})) for title, of in SETTINGS]
    return [one for one in axes if len(one.values) > 1]


def _ordered(values: set[int | str]) -> tuple[int | str, ...]:
    order = {name: place for place, name in enumerate((*PRECISIONS, *MEMORY_FORMATS, "no", "yes"))}
    return tuple(sorted(values, key=lambda value: value if isinstance(value, int) else order[value]))


def _panel(result: TuningResult, timed: tuple[Timed, ...], axes: list[_Axis]) -> Panel:
    top, objective = max(one.score.value for one in timed), result.config.objective
    best = leader(result)
    best_last = sorted(timed, key=lambda one: (one.config == best, one.score.value))
    traces = [_line(result, one, axes, top, is_best=one.config == best) for one in best_last]
    places = range(len(axes) + 1)
    layout = {
        "showlegend": False,
        "margin": {"r": 64},
        "xaxis": {
            "tickvals": list(places),
            "ticktext": [*(one.title for one in axes), SCORE_UNITS[objective]],
            "range": [-0.35, len(axes) + 0.1],
            "side": "top",
            "showgrid": False,
            "showline": False,
            "zeroline": False,
        },
        "yaxis": {"visible": False, "range": [-0.06, 1.06]},
        "shapes": [_upright(place) for place in places],
        "annotations": [words for place, one in enumerate(axes) for words in _labels(place, one)]
        + [
            _label(len(axes), share, short_score_text(share * top, objective) if share else "0")
            for share in (0.0, 0.25, 0.5, 0.75, 1.0)
        ],
    }
    return Panel(data=tuple(traces), layout=layout, height_px=420)


def _line(result: TuningResult, one: Timed, axes: list[_Axis], top: float, *, is_best: bool) -> Trace:
    share = one.score.value / top if top else 0.0
    colour = next(colour for limit, colour in _CLASSES if share <= limit)
    heights = [*(each.height(one.config) for each in axes), share]
    words = hover(result, one.config, one.measurement, f"trial {one.number}")
    return points(
        "",
        list(range(len(heights))),
        heights,
        [words] * len(heights),
        mode="lines+markers",
        line={"color": RED if is_best else colour, "width": 4 if is_best else 1.5, "shape": "linear"},
        marker={"size": 7, "color": RED if is_best else colour},
        opacity=1.0 if is_best or share > 0.9 else 0.65,
    )


def _upright(place: int) -> Trace:
    line = {"color": GREY, "width": 1}
    return {"type": "line", "x0": place, "x1": place, "y0": 0, "y1": 1, "line": line, "layer": "below"}


def _labels(place: int, one: _Axis) -> list[Trace]:
    step = -(-len(one.values) // _LABELS)
    shown = [(number, value) for number, value in enumerate(one.values) if number % step == 0]
    return [_label(place, number / (len(one.values) - 1), str(value)) for number, value in shown]


def _label(place: int, height: float, words: str) -> Trace:
    return {"x": place, "y": height, "text": words, "showarrow": False, "xanchor": "left", "xshift": 6, "yshift": 9}
