"""What a figure is: traces and a layout as plotly.js takes them, built as plain dicts, with the words around them.

Theme, fonts and margins are the page's own business; a figure says what is drawn. A module of its own because every
figure is made of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

from loadtune.records import SCORE_UNITS, Objective, Precision

Trace = dict[str, Any]

# Okabe & Ito, Color Universal Design (2008), the blue lighter and the yellow left out so that all are seen on black and
# on white.
BLUE, ORANGE, GREEN, RED = "#3d8bd4", "#e69f00", "#009e73", "#d55e00"
PINK, SKY, GREY = "#cc79a7", "#56b4e9", "#8c8c8c"

PRECISION_COLOUR: Mapping[Precision, str] = {
    "fp32": BLUE,
    "fp16": ORANGE,
    "bf16": GREEN,
    "own": BLUE,
}
PRECISION_SYMBOL: Mapping[Precision, str] = {
    "fp32": "circle",
    "fp16": "square",
    "bf16": "diamond",
    "own": "circle",
}


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


def sizes_axis(title: str, sizes: Sequence[int]) -> dict[str, Any]:
    """Logarithmic, with the sizes themselves as ticks, thinned out where they are many."""
    known = sorted(set(sizes))
    step = -(-len(known) // 8)
    ticks = known[::-1][::step][::-1]
    return axis(title, type="log", tickmode="array", tickvals=ticks, ticktext=[str(size) for size in ticks])


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


def bar(name: str, x: Sequence[Any], y: Sequence[Any], hover: Sequence[str], **more: Any) -> Trace:
    """Bars with a text each; ``orientation`` ``h`` lays them down. The text stands in no bar."""
    trace = points(name, x, y, hover, **more) | {"type": "bar", "textposition": "none"}
    del trace["mode"]
    return trace


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


def across(y: float, colour: str, label: str) -> tuple[Trace, Trace]:
    """A line over the full width at a height, and its name, as a shape and an annotation of a layout."""
    shape = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": _dashed(colour)}
    words = {"xref": "paper", "x": 0.01, "y": y, "text": label, "showarrow": False, "yanchor": "bottom"}
    return shape, {**words, "xanchor": "left"}


def upright(x: float, colour: str, label: str, side: Literal["left", "right"]) -> tuple[Trace, Trace]:
    """A line over the full height at a place, with its name on one side, as a shape and an annotation of a layout."""
    shape = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x, "line": _dashed(colour)}
    words = {"yref": "paper", "x": x, "y": 0.02, "text": label, "showarrow": False, "textangle": -90}
    return shape, {**words, "xanchor": "right" if side == "left" else "left", "yanchor": "bottom"}


def _dashed(colour: str) -> dict[str, Any]:
    return {"color": colour, "width": 1.5, "dash": "dash"}
