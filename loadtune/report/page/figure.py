"""What a figure is: traces and a layout as plotly.js takes them, built as plain dicts, with the words around them.

Theme, fonts and margins are the page's own business; a figure says what is drawn. A module of its own because every
figure is made of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from loadtune.records import SCORE_UNITS, Objective

Trace = dict[str, Any]

# Okabe & Ito, Color Universal Design (2008), the blue lighter and the yellow left out so that all are seen on black and
# on white.
BLUE, ORANGE, GREEN, RED = "#3d8bd4", "#e69f00", "#009e73", "#d55e00"
PINK, SKY, GREY = "#cc79a7", "#56b4e9", "#8c8c8c"


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
    """A heading, how to read what is under it, and how that was measured."""

    key: str
    """Its anchor in the page."""
    title: str
    reading: str = ""
    source: str = ""
    panels: tuple[Panel, ...] = ()
    """Empty: there is nothing to draw, and `missing` says why."""
    missing: tuple[str, ...] = ()
    """What is not drawn, and why: whole sentences."""


def text(words: str) -> str:
    """Words of a user's for a label: plotly.js reads some HTML in those."""
    return escape(words, quote=False).replace("\n", "<br>")


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def score_axis(objective: Objective = "samples-per-s") -> dict[str, Any]:
    """Of what a run looked for, or of samples/s in any case."""
    return axis(SCORE_UNITS[objective], rangemode="tozero", tickformat=",~r")


def error_bars(halves: Sequence[float | None], below: Sequence[float | None] | None = None) -> dict[str, Any]:
    """Half widths of intervals; ``below`` where they are not the same to both sides. None: no bar there."""
    lower = {} if below is None else {"arrayminus": list(below)}
    return {"type": "data", "array": list(halves), **lower, "thickness": 1.3, "width": 4}


def points(name: str, x: Sequence[Any], y: Sequence[Any], hover: Sequence[str], **more: Any) -> Trace:
    """Marks with a text each, which is all that shows when the mouse is on one."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "text": list(hover),
        "hovertemplate": "%{text}<extra></extra>",
        **more,
    }


def lying_bars(names: Sequence[str], traces: Sequence[Trace], scale: dict[str, Any], **layout: Any) -> Panel:
    """Bars and points at 0, 1, … from top to bottom, each place with its name of one line or more."""
    lines = max(name.count("<br>") + 1 for name in names)
    places = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": list(names)}
    layout |= {"xaxis": scale, "yaxis": {**places, "autorange": "reversed"}}
    return Panel(data=tuple(traces), layout=layout, height_px=130 + len(names) * (14 * lines + 16))


def bar(name: str, lengths: Sequence[Any], hover: Sequence[str], **more: Any) -> Trace:
    """For `lying_bars`, one a place. The text stands in no bar."""
    trace = points(name, lengths, range(len(lengths)), hover, orientation="h", **more)
    return trace | {"type": "bar", "mode": None, "textposition": "none"}


def line(
    name: str, x: Sequence[Any], y: Sequence[Any], colour: str, dash: str = "solid", shape: str = "linear", **more: Any
) -> Trace:
    """``shape`` ``hv`` is a staircase: a value holds until the next."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": 2, "dash": dash, "shape": shape},
        "hoverinfo": "skip",
        **more,
    }


def across(y: float, colour: str, label: str) -> Trace:
    """A line over the full width at a height, with its name, as a shape of a layout."""
    named = {"text": label, "textposition": "start", "yanchor": "bottom"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "label": named, "line": _thin(colour)}


def upright(x: float, colour: str, label: str, top: float | None = None) -> Trace:
    """A line from the lower edge up to ``top``, or over the full height, with its name along it."""
    reach = {"yref": "paper", "y1": 1} if top is None else {"y1": top}
    named = {"text": label, "textposition": "start", "xanchor": "left", "yanchor": "bottom", "font": {"size": 11}}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, **reach, "label": named, "line": _thin(colour)}


def _thin(colour: str) -> dict[str, Any]:
    return {"color": colour, "width": 1, "dash": "dash"}
