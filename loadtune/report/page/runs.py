"""What was gained and measured: gains, the contestants run by run, utilization over time, every trial in order.

In: a `TuningResult`. Out: a `Figure` each.
"""

from itertools import accumulate

from loadtune.records.config import SCORE_UNITS
from loadtune.records.result import TuningResult
from loadtune.records.telemetry import Timeline
from loadtune.report.gains import changes, steps
from loadtune.report.page import figure as draw
from loadtune.report.page.figure import BLUE, GREEN, GREY, ORANGE, RED, Figure, Panel
from loadtune.report.wording import gain_text, interval_text, settings_text
from loadtune.units import ratio_text


def gains(result: TuningResult) -> Figure:
    winner = result.best_at_your_batch or result.best
    found = [] if winner is None else [*steps(result, winner), *changes(result)]
    panels = tuple[Panel, ...]()
    if found:
        ratios, traces = [each.ratio for each in found], list[draw.Trace]()
        for name, is_measured, symbol in (("measured", True, "circle"), ("predicted", False, "circle-open")):
            here = [place for place, each in enumerate(found) if each.is_measured == is_measured]
            shown = [ratios[place] for place in here]
            marker, words = {"color": GREEN, "symbol": symbol, "size": 11}, [gain_text(each) for each in shown]
            bars = draw.error_bars(shown)
            traces += [draw.points(name, [each.value for each in shown], here, words, marker=marker, error_x=bars)]
        names = [f"{each.name}: {ratio_text(each.ratio.value)}" for each in found]
        unit = SCORE_UNITS[result.config.objective]
        scale = draw.axis(f"{unit} after ÷ before", range=[0, 1.1 * max(each.high or each.value for each in ratios)])
        panels = (draw.lying(names, traces, scale, shapes=[draw.straight(GREY, "", x=1.0)]),)
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
    objective, best = result.config.objective, None if result.best is None else result.best.config
    known = sorted((one for one in result.finalists if one.runs), key=lambda one: -one.score(objective))
    panels = tuple[Panel, ...]()
    if known:
        whose = {result.yours: (ORANGE, "baseline: "), best: (GREEN, "best: ")}
        if best == result.yours:
            whose = {best: (GREEN, "best and baseline: ")}
        marks = [whose.get(one.config, (BLUE, "")) for one in known]
        means = [one.scored(objective) for one in known]
        words = [
            f"mean of {len(one.runs)}: {interval_text(mean, objective)}" for one, mean in zip(known, means, strict=True)
        ]
        faint = {"color": [colour for colour, _ in marks], "opacity": 0.35}
        lengths, bars = [mean.value for mean in means], draw.error_bars(means)
        bar = draw.points("mean", lengths, range(len(known)), words, marker=faint, error_x=bars, orientation="h")
        every = [(place, run) for place, one in enumerate(known) for run in one.runs]
        dots = draw.points(
            "run",
            [run.scored(objective).value for _, run in every],
            [place for place, _ in every],
            [draw.hover(result, known[place].config, run) for place, run in every],
            marker={"color": [marks[place][0] for place, _ in every], "size": 9, "line": {"width": 1, "color": GREY}},
        )
        names = [f"{name}{settings_text(one.config)}" for one, (_, name) in zip(known, marks, strict=True)]
        traces = [bar | {"type": "bar", "mode": None, "textposition": "none"}, dots]
        panels = (draw.lying(names, traces, draw.score_axis(objective), showlegend=False),)
    return Figure(
        key="finalists",
        title="The contestants, run by run",
        reading="A point is one run, a bar the mean with its 95% interval: where intervals overlap, the order may be "
        "chance.",
        panels=panels,
        missing="" if known else "Nothing was confirmed.",
    )


def timelines(result: TuningResult) -> Figure:
    """Of the baseline and the best, the last run of each, when the machine was warm."""
    configs = {"baseline": result.yours, "best": None if result.best is None else result.best.config}
    if configs["baseline"] == configs["best"]:
        del configs["baseline"]
    runs = {name: draw.whose_runs(result, config) for name, config in configs.items() if config is not None}
    seen = {f"{name}: {settings_text(configs[name])}": own[-1].telemetry for name, own in runs.items() if own}  # type: ignore[arg-type]
    shown = {title: each.timeline for title, each in seen.items() if each is not None and each.timeline is not None}
    reasons = [reason for each in seen.values() if each is not None for reason in each.missing.values()]
    longest = max((each.slice_s * len(values) for each in shown.values() for _, values, _ in _tracks(each)), default=0)
    return Figure(
        key="timelines",
        title="Utilization over time",
        reading="A GPU that swings between 0% and 100% waits for batches; where the CPU is at 100% meanwhile, more "
        "workers will not help."
        if result.device.kind != "cpu"
        else "Training and workers share these cores: at 100% the cores are the limit, in a dip both wait, mostly for "
        "the disk.",
        panels=tuple(_timeline(title, each, longest) for title, each in shown.items()),
        missing="" if shown else f"This result has no timelines{f': {reasons[0]}' if reasons else ''}.",
    )


def _tracks(timeline: Timeline) -> list[tuple[str, tuple[float | None, ...], str]]:
    """Name, the mean of each slice, colour."""
    tracks = [
        ("GPU utilization", timeline.gpu_utilization_fraction, GREEN),
        ("CPU utilization", timeline.cpu_utilization_fraction, ORANGE),
    ]
    return [track for track in tracks if track[1]]


def _timeline(title: str, timeline: Timeline, seconds: float) -> Panel:
    """All panels have one scale. A value holds for its slice; the last is drawn to its end."""
    traces = list[draw.Trace]()
    for name, values, colour in _tracks(timeline):
        times = [round(place * timeline.slice_s, 4) for place in range(len(values) + 1)]
        words = {"hoverinfo": "all", "hovertemplate": name + " %{y:.0%} at %{x:.2f} s<extra></extra>"}
        traces.append(draw.line(name, times, [*values, values[-1]], colour, shape="hv", **words))
    layout = {
        "showlegend": True,
        "xaxis": draw.axis("seconds", range=[0, seconds]),
        "yaxis": draw.axis("utilization", range=[-0.03, 1.03], tickformat=".0%"),
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
    objective, timed = result.config.objective, draw.timed_trials(result)
    values = [run.scored(objective).value for _, run in timed]
    so_far = list(accumulate(values, max))
    traces = [draw.line("best so far", [trial.number for trial, _ in timed], so_far, GREY, "dot", shape="hv")]
    for name, colour in (("baseline", ORANGE), ("measured", BLUE)):
        here = [(trial, run) for trial, run in timed if (trial.origin == "yours") == (name == "baseline")]
        words = [draw.hover(result, trial.config, run, f"trial {trial.number}, {trial.origin}") for trial, run in here]
        numbers, scores = [trial.number for trial, _ in here], [run.scored(objective) for _, run in here]
        marker, bars = {"color": colour, "size": 9}, draw.error_bars(scores)
        traces.append(draw.points(name, numbers, [one.value for one in scores], words, marker=marker, error_y=bars))
    if failed := [(trial, trial.failure.message) for trial in result.trials if trial.failure is not None]:
        words = [
            f"trial {trial.number}, failed<br>{settings_text(trial.config)}<br>{draw.text(why)}"
            for trial, why in failed
        ]
        marker, numbers = {"color": RED, "symbol": "x", "size": 9}, [trial.number for trial, _ in failed]
        traces.append(draw.points("failed", numbers, [0] * len(failed), words, marker=marker))
    last, top = max(trial.number for trial in result.trials), max(values, default=1.0)
    layout = {
        "xaxis": draw.counting_axis("trial", last, range=[-0.6, last + 0.6]),
        "yaxis": draw.score_axis(objective) | {"range": [-0.03 * top, 1.08 * top]},
    }
    return Panel(data=tuple(traces), layout=layout)
