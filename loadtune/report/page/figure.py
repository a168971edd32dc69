"""What a figure is: traces and a layout as plotly.js takes them, built as plain dicts, with the words around them.

Theme, fonts and margins are the page's own business; a figure says what is drawn.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from loadtune.records.answer import finalist_of
from loadtune.records.config import SCORE_UNITS, Objective, TrialConfig
from loadtune.records.interval import Interval
from loadtune.records.measurement import Measurement
from loadtune.records.result import Trial, TuningResult
from loadtune.report.tables import peak_bytes
from loadtune.report.wording import interval_text, settings_text
from loadtune.units import bytes_text, percent_text

Trace = dict[str, Any]

# Okabe & Ito, Color Universal Design (2008), the blue lighter and the yellow left out so that all are seen on black and
# on white.
BLUE, ORANGE, GREEN, RED = "#3d8bd4", "#e69f00", "#009e73", "#d55e00"
PINK, SKY, GREY = "#cc79a7", "#56b4e9", "#8c8c8c"

_NAME_WIDTH = 26
"""Of a name beside a figure: half of a phone's width."""
_EACH_NAMED = 15
"""Fewer have room for a number each, on a phone too. Without a tick at each, those between would be rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot."""

    title: str = ""
    """Plain text; empty where the figure has one panel."""
    data: tuple[Trace, ...]
    layout: dict[str, Any] = field(default_factory=dict)
    height_px: int = 380


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A heading, a sentence on how to read what is under it, and the plots."""

    key: str
    """Its anchor in the page."""
    title: str
    reading: str
    panels: tuple[Panel, ...] = ()
    """Empty: there is nothing to draw, and `missing` says why."""
    missing: str = ""
    """What is not drawn, and why."""


def text(words: str) -> str:
    """Words of a user's for a label: plotly.js reads some HTML in those."""
    return escape(words, quote=False).replace("\n", "<br>")


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def counting_axis(title: str, last: int, **more: Any) -> dict[str, Any]:
    """Of whole numbers up to ``last``."""
    each = {"dtick": 1} if last < _EACH_NAMED else {}
    return axis(title, tickformat="d", **each, **more)


def score_axis(objective: Objective = "samples-per-s") -> dict[str, Any]:
    """Of what a run looked for, or of samples/s in any case."""
    return axis(SCORE_UNITS[objective], rangemode="tozero", tickformat=",~r")


def error_bars(found: Sequence[Interval]) -> dict[str, Any]:
    """None where there is no interval."""
    above = [None if each.high is None else each.high - each.value for each in found]
    below = [None if each.low is None else each.value - each.low for each in found]
    return {"type": "data", "array": above, "arrayminus": below, "color": GREY, "thickness": 2, "width": 0}


def points(name: str, x: Sequence[Any], y: Sequence[Any], hover: Sequence[str], **more: Any) -> Trace:
    """Marks with a text each, which is all that shows when the mouse is on one."""
    shown = {"text": list(hover), "hovertemplate": "%{text}<extra></extra>"}
    return {"type": "scatter", "mode": "markers", "name": name, "x": list(x), "y": list(y), **shown, **more}


def line(
    name: str, x: Sequence[Any], y: Sequence[Any], colour: str, dash: str = "solid", shape: str = "linear", **more: Any
) -> Trace:
    """``shape`` ``hv`` is a staircase: a value holds until the next."""
    look = {"color": colour, "width": 2, "dash": dash, "shape": shape}
    drawn = {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y), "line": look}
    return {**drawn, "hoverinfo": "skip", **more}


def straight(colour: str, label: str, *, x: float | None = None, y: float | None = None, **more: Any) -> Trace:
    """A line over the full height at ``x``, or over the full width at ``y``, with its name, as a shape of a layout."""
    ends, side = {"yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1}, "bottom"
    if x is None:
        ends, side = {"xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y}, "top"
    named = {"text": label, "textposition": "start", "xanchor": "left", "yanchor": side, "font": {"size": 11}, **more}
    return {"type": "line", **ends, "label": named, "line": {"color": colour, "width": 1, "dash": "dash"}}


def lying(names: Sequence[str], traces: Sequence[Trace], scale: dict[str, Any], **layout: Any) -> Panel:
    """Bars or points at 0, 1, … from top to bottom, each place with its name of one line or more."""
    wrapped = ["<br>".join(textwrap.wrap(name, _NAME_WIDTH)) for name in names]
    lines = max(name.count("<br>") + 1 for name in wrapped)
    places = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": wrapped}
    layout |= {"xaxis": scale, "yaxis": {**places, "range": [len(names) - 0.5, -0.5]}}
    return Panel(data=tuple(traces), layout=layout, height_px=120 + len(names) * (14 * lines + 16))


def timed_trials(result: TuningResult) -> list[tuple[Trial, Measurement]]:
    """In the order in which they were run."""
    return [(trial, trial.measurement) for trial in result.trials if trial.measurement is not None]


def whose_runs(result: TuningResult, config: TrialConfig) -> tuple[Measurement, ...]:
    """Confirmed runs of a configuration; where there are none, its trials."""
    confirmed = finalist_of(result, config)
    return confirmed.runs if confirmed else tuple(run for trial, run in timed_trials(result) if trial.config == config)


def hover(result: TuningResult, config: TrialConfig, measurement: Measurement, head: str = "") -> str:
    """What is shown of a point: settings, rate, samples per joule where they were looked for, wait, memory."""
    memory, rate = peak_bytes(measurement, result.device.kind), interval_text(measurement.scored("samples-per-s"))
    if result.config.objective == "samples-per-joule":
        rate = f"{rate}, {interval_text(measurement.scored('samples-per-joule'), 'samples-per-joule')}"
    lines = [
        head,
        settings_text(config),
        f"{rate}, {percent_text(measurement.wait_fraction)} blocked in next(loader)",
        "" if memory is None else f"peak {bytes_text(memory)}",
    ]
    return "<br>".join(one for one in lines if one)
