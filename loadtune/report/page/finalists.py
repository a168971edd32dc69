"""The confirmation: each run of each finalist as a point. In: a `TuningResult`. Out: a `Figure`."""

from loadtune.records import Finalist, TuningResult
from loadtune.report.page.figure import BLUE, GREEN, GREY, ORANGE, Figure, Panel, Trace, bar, points, rate_axis
from loadtune.report.page.measured import hover, short_names
from loadtune.units import rate_text


def finalists(result: TuningResult) -> Figure:
    known = sorted((f for f in result.finalists if f.runs), key=lambda finalist: -finalist.samples_per_s)
    return Figure(
        key="finalists",
        title="The finalists, run by run",
        reading="A point is one run with a fresh loader, a bar the mean with its 95% interval. Where intervals "
        "overlap, the order may be luck: " + _who_wins(result),
        source="Finalists and your own configuration in turn, each time with fresh workers; the interval comes from "
        "the spread between runs.",
        panels=(_panel(result, known),) if known else (),
        missing=() if known else ("Nothing was confirmed.",),
    )


def _who_wins(result: TuningResult) -> str:
    if result.config.objective == "samples-per-joule":
        return "the winner is not the fastest here, but the one with the most samples per joule of the GPU's board."
    return "among those within 2% of the fastest the smallest wins."


def _panel(result: TuningResult, known: list[Finalist]) -> Panel:
    names = short_names(result, [finalist.config for finalist in known])
    colours = [_colour(result, finalist) for finalist in known]
    traces = [_mean(known, names, colours), _runs(result, known, names, colours)]
    layout = {"xaxis": {"type": "category", "tickangle": 0}, "yaxis": rate_axis(), "showlegend": False}
    return Panel(data=tuple(traces), layout=layout)


def _colour(result: TuningResult, finalist: Finalist) -> str:
    if result.best is not None and finalist.config == result.best.config:
        return GREEN
    return ORANGE if finalist.config == result.yours else BLUE


def _mean(known: list[Finalist], names: list[str], colours: list[str]) -> Trace:
    halves = [(finalist.half_width_fraction or 0.0) * finalist.samples_per_s for finalist in known]
    words = [f"mean of {len(finalist.runs)}: {rate_text(finalist.samples_per_s)}" for finalist in known]
    interval = {"type": "data", "array": halves, "thickness": 1.5, "width": 8, "color": GREY}
    marker = {"color": colours, "opacity": 0.35}
    return bar("mean", names, [finalist.samples_per_s for finalist in known], words, marker=marker, error_y=interval)


def _runs(result: TuningResult, known: list[Finalist], names: list[str], colours: list[str]) -> Trace:
    every = [
        (name, colour, run, finalist)
        for name, colour, finalist in zip(names, colours, known, strict=True)
        for run in finalist.runs
    ]
    words = [hover(finalist.config, run, result.device.kind) for _, _, run, finalist in every]
    marker = {"color": [colour for _, colour, _, _ in every], "size": 9, "line": {"width": 1, "color": GREY}}
    where = [name for name, _, _, _ in every]
    return points("run", where, [run.samples_per_s for _, _, run, _ in every], words, marker=marker)
