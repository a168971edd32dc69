"""What the device could do alone, and what training reached under it. In: a `TuningResult`. Out: a `Figure`."""

from loadtune.records import ComputePoint, Recipe, TuningResult
from loadtune.report.page.figure import (
    PRECISION_COLOUR,
    PRECISION_SYMBOL,
    Figure,
    Panel,
    Trace,
    line,
    points,
    score_axis,
    sizes_axis,
)
from loadtune.report.page.measured import hover, timed_trials
from loadtune.report.wording import recipe_text
from loadtune.units import rate_text

_DASHES = ("solid", "dash", "dashdot")


def compute_curve(result: TuningResult) -> Figure:
    found = result.compute_points
    return Figure(
        key="compute",
        title="Compute-only rate over batch size",
        reading="A line is the rate of the training step on a batch that is already on the device: no loader can be "
        "faster. A mark is a trial. Close under its line, no loader setting helps; far below, data limits it.",
        source="Lines: training steps on one batch, without a loader. Marks: trials, coloured by precision.",
        panels=(_panel(result),) if found else (),
        missing=() if found else ("The compute-only rate was not measured before the run ended.",),
    )


def _panel(result: TuningResult) -> Panel:
    recipes = list(dict.fromkeys(point.recipe for point in result.compute_points))
    traces = [_curve(recipe, recipes, result.compute_points) for recipe in recipes]
    timed = timed_trials(result)
    for precision, colour in PRECISION_COLOUR.items():
        here = [one for one in timed if one.config.precision == precision]
        if here:
            words = [hover(result, one.config, one.measurement, f"trial {one.number}") for one in here]
            marker = {"color": colour, "symbol": PRECISION_SYMBOL[precision], "size": 9, "opacity": 0.85}
            sizes, rates = [one.config.batch_size for one in here], [one.rate for one in here]
            traces.append(points(f"{precision} trained", sizes, rates, words, marker=marker))
    sizes = [*(point.batch_size for point in result.compute_points), *(one.config.batch_size for one in timed)]
    return Panel(data=tuple(traces), layout={"xaxis": sizes_axis("batch size", sizes), "yaxis": score_axis()})


def _look(recipe: Recipe, recipes: list[Recipe]) -> tuple[str, str]:
    """A name and a dash that no other curve of its precision has: its own words where there are several not plain."""
    plain = Recipe(precision=recipe.precision)
    if recipe == plain:
        return f"{recipe.precision} plain alone", "dot"
    alike = [one for one in recipes if one.precision == recipe.precision and one != plain]
    words = f" {recipe_text(recipe)}" if len(alike) > 1 else ""
    return f"{recipe.precision}{words} alone", _DASHES[alike.index(recipe) % len(_DASHES)]


def _curve(recipe: Recipe, recipes: list[Recipe], every: tuple[ComputePoint, ...]) -> Trace:
    here = sorted((point for point in every if point.recipe == recipe), key=lambda point: point.batch_size)
    name, dash = _look(recipe, recipes)
    curve = line(
        name,
        [point.batch_size for point in here],
        [point.samples_per_s for point in here],
        PRECISION_COLOUR[recipe.precision],
        dash,
        mode="lines+markers",
    )
    words = [
        f"compute only, batch {point.batch_size:,}<br>{recipe.precision}, {recipe_text(recipe)}"
        f"<br>{rate_text(point.samples_per_s)}"
        for point in here
    ]
    return curve | {
        "text": words,
        "hovertemplate": "%{text}<extra></extra>",
        "hoverinfo": "text",
        "marker": {"size": 5},
    }
