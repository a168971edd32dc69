"""The figures of the page, as traces and a layout that plotly.js takes, with the words around them.

In: a `TuningResult`. Out: a `Figure` each; the roofline has a module of its own. Theme, fonts and margins are those of
the page; a figure says what is drawn.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import accumulate
from typing import Any

from loadtune.records.answer import finalist_of
from loadtune.records.config import TrialConfig
from loadtune.records.interval import Interval
from loadtune.records.measurement import Measurement
from loadtune.records.memory import MemoryCeiling
from loadtune.records.result import Trial, TuningResult
from loadtune.records.telemetry import Timeline
from loadtune.report.sentences import changes, steps
from loadtune.report.tables import peak_bytes
from loadtune.report.wording import FAILURE_TEXT, gain_text, interval_text, settings_text
from loadtune.units import bytes_text, percent_text, ratio_text

Trace = dict[str, Any]

# Okabe & Ito, Color Universal Design (2008), the blue lighter and the yellow left out so that all are seen on black and
# on white.
BLUE, ORANGE, GREEN, RED = "#3d8bd4", "#e69f00", "#009e73", "#d55e00"
PINK, SKY, GREY = "#cc79a7", "#56b4e9", "#8c8c8c"

_NAME_WIDTH = 26
"""Of a name beside a figure: half of a phone's width."""
_GIB = 2**30


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
    """Of whole numbers up to ``last``: plotly.js would also mark those between, and round them."""
    return axis(title, dtick=max(1, last // 8), **more)


def rate_axis(**more: Any) -> dict[str, Any]:
    return axis("samples/s", rangemode="tozero", tickformat=",~r", **more)


def error_bars(found: Sequence[Interval]) -> dict[str, Any]:
    """None where there is no interval."""
    above = [None if each.high is None else each.high - each.value for each in found]
    below = [None if each.low is None else each.value - each.low for each in found]
    return {"type": "data", "array": above, "arrayminus": below, "color": GREY, "thickness": 2, "width": 0}


def points(name: str, x: Sequence[Any], y: Sequence[Any], hover: Sequence[str], **more: Any) -> Trace:
    """Marks with a text each, which is all that shows when the mouse is on one."""
    shown = {"text": list(hover), "hovertemplate": "%{text}<extra></extra>"}
    return {"type": "scatter", "mode": "markers", "name": name, "x": list(x), "y": list(y), **shown, **more}


def line(name: str, x: Sequence[Any], y: Sequence[Any], colour: str, *, shape: str = "linear", **more: Any) -> Trace:
    """``shape`` ``hv`` is a staircase: a value holds until the next."""
    drawn = {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y)}
    return {**drawn, "line": {"color": colour, "width": 2, "shape": shape}, "hoverinfo": "skip", **more}


def straight(colour: str, label: str, *, x: float | None = None, y: float | None = None) -> Trace:
    """A line over the full height at ``x``, or over the full width at ``y``, with its name, as a shape of a layout."""
    ends, side = {"yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1}, "bottom"
    if x is None:
        ends, side = {"xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y}, "top"
    named = {"text": label, "textposition": "start", "xanchor": "left", "yanchor": side, "font": {"size": 11}}
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
    """What is shown of a point: settings, rate, wait, memory."""
    memory = peak_bytes(measurement, result.device.kind)
    lines = [
        head,
        settings_text(config),
        f"{interval_text(measurement.throughput)}, {percent_text(measurement.wait_fraction)} blocked in next(loader)",
        "" if memory is None else f"peak {bytes_text(memory)}",
    ]
    return "<br>".join(one for one in lines if one)


def gains(result: TuningResult) -> Figure:
    winner = result.best_at_your_batch or result.best
    found = [] if winner is None else [*steps(result, winner), *changes(result)]
    panels = tuple[Panel, ...]()
    if found:
        ratios, traces = [each.ratio for each in found], list[Trace]()
        for name, is_measured, symbol in (("measured", True, "circle"), ("predicted", False, "circle-open")):
            here = [place for place, each in enumerate(found) if each.is_measured == is_measured]
            shown = [ratios[place] for place in here]
            marker, words = {"color": GREEN, "symbol": symbol, "size": 11}, [gain_text(each) for each in shown]
            bars = error_bars(shown)
            traces.append(points(name, [each.value for each in shown], here, words, marker=marker, error_x=bars))
        names = [f"{each.name}: {ratio_text(each.ratio.value)}" for each in found]
        scale = axis("samples/s after ÷ before", range=[0, 1.1 * max(each.high or each.value for each in ratios)])
        panels = (lying(names, traces, scale, shapes=[straight(GREY, "", x=1.0)]),)
    return Figure(
        key="gains",
        title="What each step gains",
        reading="First the steps from your settings to the answer, then what a change of the code, more cores or "
        "faster samples gain on top of the best; bars are intervals.",
        panels=panels,
        missing="" if found else "Your settings are the answer, or nothing was confirmed.",
    )


def contestants(result: TuningResult) -> Figure:
    """Highest mean first, with every run beside it."""
    best, panels = None if result.best is None else result.best.config, tuple[Panel, ...]()
    known = sorted((one for one in result.finalists if one.runs), key=lambda one: -one.samples_per_s)
    if known:
        whose = {result.yours: (ORANGE, "baseline: "), best: (GREEN, "best: ")}
        if best == result.yours:
            whose = {best: (GREEN, "best and baseline: ")}
        marks = [whose.get(one.config, (BLUE, "")) for one in known]
        means = [one.throughput for one in known]
        words = [f"mean of {len(one.runs)}: {interval_text(mean)}" for one, mean in zip(known, means, strict=True)]
        faint = {"color": [colour for colour, _ in marks], "opacity": 0.35}
        rates, bars = [mean.value for mean in means], error_bars(means)
        bar = points("mean", rates, range(len(known)), words, marker=faint, error_x=bars, orientation="h")
        every = [(place, run) for place, one in enumerate(known) for run in one.runs]
        dots = points(
            "run",
            [run.samples_per_s for _, run in every],
            [place for place, _ in every],
            [hover(result, known[place].config, run) for place, run in every],
            marker={"color": [marks[place][0] for place, _ in every], "size": 9, "line": {"width": 1, "color": GREY}},
        )
        names = [f"{name}{settings_text(one.config)}" for one, (_, name) in zip(known, marks, strict=True)]
        traces = [bar | {"type": "bar", "mode": None, "textposition": "none"}, dots]
        panels = (lying(names, traces, rate_axis(), showlegend=False),)
    return Figure(
        key="finalists",
        title="The contestants, run by run",
        reading="A point is one run, a bar the mean with its 95% interval: where intervals overlap, the order may be "
        "chance.",
        panels=panels,
        missing="" if known else "Nothing was confirmed.",
    )


def memory_lines(result: TuningResult) -> Figure:
    return Figure(
        key="memory",
        title="Memory over batch size",
        reading="Dots were run, the line is model + batch size × bytes a sample; the safe size leaves 5% of "
        "the memory for hours of training.",
        panels=tuple(_memory(ceiling) for ceiling in result.ceilings),
        missing="" if result.ceilings else "The memory probe had not finished when the run ended.",
    )


def _memory(ceiling: MemoryCeiling) -> Panel:
    """Sizes that failed stand at the height of the budget."""
    reports = sorted(ceiling.probes, key=lambda report: report.batch_size)
    traces, budget = list[Trace](), (ceiling.budget_bytes or 0) / _GIB
    most = max(ceiling.batch_size, *(report.batch_size for report in reports))
    if ceiling.bytes_per_sample is not None and ceiling.fixed_bytes is not None:
        heights = [(ceiling.fixed_bytes + ceiling.bytes_per_sample * size) / _GIB for size in (0, most)]
        traces.append(line("line", [0, most], heights, GREY))
    trained = {each.batch_size: peak for each in reports if each.fits and (peak := each.peak_bytes) is not None}
    words = [f"batch {size:,}<br>{bytes_text(peak)} allocated" for size, peak in trained.items()]
    heights, marker = [peak / _GIB for peak in trained.values()], {"color": BLUE, "size": 9}
    traces.append(points("trained", list(trained), heights, words, marker=marker))
    if failed := {report.batch_size: report.failure for report in reports if report.failure is not None}:
        words = [
            f"batch {size:,}: {FAILURE_TEXT[failure.kind]}<br>{text(failure.message[:200])}"
            for size, failure in failed.items()
        ]
        marker = {"color": RED, "symbol": "x", "size": 10}
        traces.append(points("failed", list(failed), [budget] * len(failed), words, marker=marker))
    predicted = "" if ceiling.verified else ", predicted"
    levels = [] if ceiling.budget_bytes is None else [straight(RED, "memory for training", y=budget)]
    levels.append(straight(GREEN, f"safe{predicted}", x=ceiling.safe_batch_size))
    layout = {
        "xaxis": axis("batch size", range=[0, 1.08 * most]),  # with room for a name behind the last line
        "yaxis": axis("GiB", rangemode="tozero"),
        "shapes": levels,
    }
    return Panel(title=ceiling.precision, data=tuple(traces), layout=layout, height_px=320)


def timelines(result: TuningResult) -> Figure:
    """Of the baseline and the best, the last run of each, when the machine was warm."""
    panels, reasons = list[Panel](), list[str]()
    best = None if result.best is None else result.best.config
    for name, config in {"baseline": None if result.yours == best else result.yours, "best": best}.items():
        seen = None if config is None else next((run.telemetry for run in whose_runs(result, config)[-1:]), None)
        if config is not None and seen is not None:
            reasons += seen.missing.values()
            if seen.timeline is not None:
                panels.append(_timeline(f"{name}: {settings_text(config)}", seen.timeline))
    return Figure(
        key="timelines",
        title="Utilization over time",
        reading="A GPU that swings between 0% and 100% waits for batches; where the CPU is at 100% meanwhile, more "
        "workers will not help."
        if result.device.kind != "cpu"
        else "Training and workers share these cores: at 100% the cores are the limit, in a dip both wait, mostly for "
        "the disk.",
        panels=tuple(panels),
        missing="" if panels else f"This result has no timelines{f': {reasons[0]}' if reasons else ''}.",
    )


def _timeline(title: str, timeline: Timeline) -> Panel:
    """A value holds for its slice; the last is drawn to its end."""
    traces = list[Trace]()
    for name, values, colour in (
        ("GPU utilization", timeline.gpu_utilization_fraction, GREEN),
        ("CPU utilization", timeline.cpu_utilization_fraction, ORANGE),
    ):
        if values:
            times = [round(place * timeline.slice_s, 4) for place in range(len(values) + 1)]
            words = {"hoverinfo": "all", "hovertemplate": name + " %{y:.0%} at %{x:.2f} s<extra></extra>"}
            traces.append(line(name, times, [*values, values[-1]], colour, shape="hv", **words))
    layout = {
        "showlegend": True,
        "xaxis": axis("seconds", rangemode="tozero"),
        "yaxis": axis("utilization", range=[-0.03, 1.03], tickformat=".0%"),
    }
    return Panel(title=title, data=tuple(traces), layout=layout, height_px=240)


def trials(result: TuningResult) -> Figure:
    return Figure(
        key="trials",
        title="Every trial, in order",
        reading="The line is the best so far: where it has been level for long, more trials would hardly have helped.",
        panels=(_trials(result),) if result.trials else (),
        missing="" if result.trials else "No trial was run.",
    )


def _trials(result: TuningResult) -> Panel:
    """Marks at the ends are drawn whole, and no interval opens the axis far below zero."""
    timed = timed_trials(result)
    rates = [run.samples_per_s for _, run in timed]
    so_far = list(accumulate(rates, max))
    traces = [line("best so far", [trial.number for trial, _ in timed], so_far, GREY, shape="hv")]
    for name, colour in (("baseline", ORANGE), ("measured", BLUE)):
        here = [(trial, run) for trial, run in timed if (trial.origin == "yours") == (name == "baseline")]
        words = [hover(result, trial.config, run, f"trial {trial.number}, {trial.origin}") for trial, run in here]
        numbers, found = [trial.number for trial, _ in here], [run.throughput for _, run in here]
        marker, bars = {"color": colour, "size": 9}, error_bars(found)
        traces.append(points(name, numbers, [one.value for one in found], words, marker=marker, error_y=bars))
    if failed := [(trial, trial.failure.message) for trial in result.trials if trial.failure is not None]:
        words = [
            f"trial {trial.number}, failed<br>{settings_text(trial.config)}<br>{text(why)}" for trial, why in failed
        ]
        marker, numbers = {"color": RED, "symbol": "x", "size": 9}, [trial.number for trial, _ in failed]
        traces.append(points("failed", numbers, [0] * len(failed), words, marker=marker))
    last, top = max(trial.number for trial in result.trials), max(rates, default=1.0)
    layout = {
        "xaxis": counting_axis("trial", last, range=[-0.6, last + 0.6]),
        "yaxis": rate_axis(range=[-0.03 * top, 1.08 * top]),
    }
    return Panel(data=tuple(traces), layout=layout)
