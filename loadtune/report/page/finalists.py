"""The confirmation: each run of each finalist as a point. In: a `TuningResult`. Out: a `Figure`."""

from loadtune.records import Finalist, Score, TuningResult
from loadtune.report.page.figure import BLUE, GREEN, GREY, ORANGE, Figure, Panel, Trace, bar, points, score_axis
from loadtune.report.page.measured import hover, short_names
from loadtune.report.wording import interval_text


def finalists(result: TuningResult) -> Figure:
    objective = result.config.objective
    known = sorted((f for f in result.finalists if f.runs), key=lambda finalist: -finalist.score(objective))
    return Figure(
        key="finalists",
        title="Confirmation, run by run",
        reading="A point is one run, a bar the mean with its 95% interval. Where intervals "
        "overlap, the order may be chance. Of those within 2% of the best, the one with fewest workers is chosen.",
        source="The best configurations and the baseline in turn; the interval comes from the spread between runs.",
        panels=(_panel(result, known),) if known else (),
        missing=() if known else ("Nothing was confirmed.",),
    )


def _panel(result: TuningResult, known: list[Finalist]) -> Panel:
    """Lying bars, as five names side by side are wider than a phone."""
    names = short_names(result, [finalist.config for finalist in known])
    colours = [_colour(result, finalist) for finalist in known]
    objective = result.config.objective
    means = [finalist.scored(objective) for finalist in known]
    traces = [_mean(known, means, names, colours), _runs(result, known, names, colours)]
    layout = {
        "xaxis": score_axis(objective),
        "yaxis": {"type": "category", "autorange": "reversed"},
        "showlegend": False,
    }
    return Panel(data=tuple(traces), layout=layout, height_px=100 + 50 * len(names))


def _colour(result: TuningResult, finalist: Finalist) -> str:
    if result.best is not None and finalist.config == result.best.config:
        return GREEN
    return ORANGE if finalist.config == result.yours else BLUE


def _mean(known: list[Finalist], means: list[Score], names: list[str], colours: list[str]) -> Trace:
    halves = [mean.half_width for mean in means]
    words = [f"mean of {len(one.runs)}: {interval_text(mean)}" for one, mean in zip(known, means, strict=True)]
    interval = {"type": "data", "array": halves, "thickness": 1.5, "width": 8, "color": GREY}
    marker = {"color": colours, "opacity": 0.35}
    values = [mean.value for mean in means]
    return bar("mean", values, names, words, marker=marker, error_x=interval, orientation="h")


def _runs(result: TuningResult, known: list[Finalist], names: list[str], colours: list[str]) -> Trace:
    every = [
        (name, colour, run, finalist)
        for name, colour, finalist in zip(names, colours, known, strict=True)
        for run in finalist.runs
    ]
    words = [hover(result, finalist.config, run) for _, _, run, finalist in every]
    marker = {"color": [colour for _, colour, _, _ in every], "size": 9, "line": {"width": 1, "color": GREY}}
    where = [name for name, _, _, _ in every]
    values = [run.scored(result.config.objective).value for _, _, run, _ in every]
    return points("run", values, where, words, marker=marker)
