"""What was measured: every trial in order, the confirmation run by run, the parts of a step, utilization over time.

In: a `TuningResult`. Out: a `Figure` each.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

from loadtune.records.config import TrialConfig
from loadtune.records.measurement import Measurement, Window
from loadtune.records.result import Finalist, TrialOrigin, TuningResult
from loadtune.records.telemetry import Timeline
from loadtune.report.page import figure as draw
from loadtune.report.page.figure import BLUE, GREEN, GREY, ORANGE, PINK, RED, Figure, Panel, Trace
from loadtune.report.wording import interval_text, settings_text

_ORIGINS: dict[TrialOrigin, tuple[str, str, str]] = {
    "yours": ("baseline's loader settings", ORANGE, "diamond"),
    "warm start": ("best of another run", PINK, "triangle-up"),
    "search": ("proposed by the throughput model", BLUE, "circle"),
}
_EACH_TRIAL_NAMED = 15
"""Fewer have room for a number each, on a phone too."""

_MOST = 10
"""Configurations whose steps are shown: those that were confirmed, then the fastest trials."""

_WHOLE = "a step"
_DEVICE_PARTS = {
    "compute": GREEN,
    "copy to the device": PINK,
    "idle, waiting for data": RED,
    "idle otherwise": GREY,
}
_HOST_PARTS = {"waiting for data": RED, "everything else": GREEN}


def history(result: TuningResult) -> Figure:
    how = ". Bars: 95% interval from one run's own windows; runs of one configuration differ by more."
    if result.config.objective == "samples-per-joule":
        how = ", ÷ the mean power of the GPU's board. No bars: one run gives no interval of it."
    return Figure(
        key="trials",
        title="Every trial, in order",
        reading="The line is the best so far. Where it has been level for long, more trials would hardly have helped. "
        "Crosses failed.",
        source=f"Each trial: real training steps, samples ÷ wall time over whole windows after the warm-up{how}",
        panels=(_history_panel(result),) if result.trials else (),
        missing=() if result.trials else ("No trial was run.",),
    )


def _history_panel(result: TuningResult) -> Panel:
    """Marks at the ends are drawn whole, and no interval opens the axis far below zero."""
    objective, timed = result.config.objective, draw.timed_trials(result)
    scores = {trial.number: run.scored(objective) for trial, run in timed}
    values = [score.value for score in scores.values()]
    traces = [draw.line("best so far", list(scores), list(accumulate(values, max)), GREY, "dot", shape="hv")]
    for origin, (name, colour, symbol) in _ORIGINS.items():
        if here := [(trial, run) for trial, run in timed if trial.origin == origin]:
            words = [draw.hover(result, trial.config, run, f"trial {trial.number}") for trial, run in here]
            found = [scores[trial.number] for trial, _ in here]
            numbers, heights = [trial.number for trial, _ in here], [score.value for score in found]
            marker, bars = {"color": colour, "symbol": symbol, "size": 9}, draw.error_bars(found)
            traces.append(draw.points(name, numbers, heights, words, marker=marker, error_y=bars))
    if failed := [(trial, trial.failure.message) for trial in result.trials if trial.failure is not None]:
        words = [
            f"trial {trial.number}, failed<br>{settings_text(trial.config)}<br>{draw.text(why)}"
            for trial, why in failed
        ]
        marker, numbers = {"color": RED, "symbol": "x", "size": 9}, [trial.number for trial, _ in failed]
        traces.append(draw.points("failed", numbers, [0] * len(failed), words, marker=marker))
    last, top = max(trial.number for trial in result.trials), max(values, default=1.0)
    ticks = {"dtick": 1} if last < _EACH_TRIAL_NAMED else {}
    layout = {
        "xaxis": draw.axis("trial", range=[-0.6, last + 0.6], tickformat="d", **ticks),
        "yaxis": draw.score_axis(objective) | {"range": [-0.03 * top, 1.08 * top]},
    }
    return Panel(data=tuple(traces), layout=layout)


def finalists(result: TuningResult) -> Figure:
    objective = result.config.objective
    known = sorted((one for one in result.finalists if one.runs), key=lambda one: -one.score(objective))
    return Figure(
        key="finalists",
        title="Confirmation, run by run",
        reading="A point is one run, a bar the mean with its 95% interval. Where intervals "
        "overlap, the order may be chance. Of those within 2% of the best, the one with fewest workers is chosen.",
        source="The best configurations and the baseline in turn; the interval comes from the spread between runs.",
        panels=(_finalists_panel(result, known),) if known else (),
        missing=() if known else ("Nothing was confirmed.",),
    )


def _finalists_panel(result: TuningResult, known: Sequence[Finalist]) -> Panel:
    objective, best = result.config.objective, None if result.best is None else result.best.config
    colour = {result.yours: ORANGE} | {best: GREEN}
    colours = [colour.get(one.config, BLUE) for one in known]
    means = [one.scored(objective) for one in known]
    words = [
        f"mean of {len(one.runs)}: {interval_text(mean, objective)}" for one, mean in zip(known, means, strict=True)
    ]
    faint, bars = {"color": colours, "opacity": 0.35}, draw.error_bars(means)
    every = [(place, run) for place, one in enumerate(known) for run in one.runs]
    runs = draw.points(
        "run",
        [run.scored(objective).value for _, run in every],
        [place for place, _ in every],
        [draw.hover(result, known[place].config, run) for place, run in every],
        marker={"color": [colours[place] for place, _ in every], "size": 9, "line": {"width": 1, "color": GREY}},
    )
    traces = [draw.bar("mean", [mean.value for mean in means], words, marker=faint, error_x=bars), runs]
    names = [draw.name_of(result, one.config) for one in known]
    return draw.lying_bars(names, traces, draw.score_axis(objective), showlegend=False)


def step_parts(runs: Sequence[Measurement]) -> dict[str, float]:
    """Milliseconds of a mean step, whole and by part: the host's, and the device's where they were measured.

    Of the time that the device idles, at most what the host waits counts as waiting for data: either may happen without
    the other.
    """
    windows = [window for run in runs for window in run.windows]
    step, wait = (_per_step(windows, of) or 0.0 for of in (lambda each: each.seconds, lambda each: each.wait_s))
    parts = {_WHOLE: step, "waiting for data": wait, "everything else": step - wait}
    idle = _per_step(windows, lambda window: window.idle_s)
    if idle is None:
        return parts
    return parts | {
        "compute": _per_step(windows, lambda window: window.compute_s) or 0.0,
        "copy to the device": _per_step(windows, lambda window: window.copy_s) or 0.0,
        "idle, waiting for data": min(idle, wait),
        "idle otherwise": max(0.0, idle - wait),
    }


def _per_step(windows: Sequence[Window], part: Callable[[Window], float | None]) -> float | None:
    known = [(seconds, window.num_steps) for window in windows if (seconds := part(window)) is not None]
    steps = sum(num_steps for _, num_steps in known)
    return 1000 * sum(seconds for seconds, _ in known) / steps if steps else None


def step_time(result: TuningResult) -> Figure:
    fastest = sorted(draw.timed_trials(result), key=lambda pair: -pair[1].samples_per_s)
    confirmed = [one.config for one in result.finalists if one.runs]
    configs = list(dict.fromkeys([*confirmed, *(trial.config for trial, _ in fastest)]))[:_MOST]
    steps = {config: step_parts(draw.whose_runs(result, config)) for config in configs}
    is_apart = all(parts.keys() >= _DEVICE_PARTS.keys() for parts in steps.values())
    why = "Copy, compute and idle time were not measured separately in this run, only the time blocked in next(loader)."
    source = (
        " Copy and compute are measured by CUDA events. Idle time counts as waiting while the training loop is "
        "blocked in next(loader)."
    )
    return Figure(
        key="step",
        title="Where the time of a training step goes",
        reading="Milliseconds for 1,000 samples, so that batch sizes can be compared. Waiting for data: more or faster "
        "workers help. Copy: pin memory, or send fewer bytes. Compute: no loader setting helps.",
        source="Mean over the confirmed runs; over the trial for a configuration that was not confirmed."
        + (source * is_apart),
        panels=(_steps_panel(result, steps, _DEVICE_PARTS if is_apart else _HOST_PARTS),) if steps else (),
        missing=("Nothing was measured.",) if not steps else () if is_apart else (why,),
    )


def _steps_panel(result: TuningResult, steps: dict[TrialConfig, dict[str, float]], colours: dict[str, str]) -> Panel:
    """Fastest first."""
    shown = sorted(steps.items(), key=lambda pair: pair[1][_WHOLE] / pair[0].batch_size)
    traces = [
        draw.bar(
            part,
            [1000 * parts[part] / config.batch_size for config, parts in shown],
            [
                f"{settings_text(config)}<br>{part}: {parts[part]:.3g} ms of {parts[_WHOLE]:.3g} ms a step"
                f"<br>blocked in next(loader) for {parts['waiting for data']:.3g} ms"
                for config, parts in shown
            ],
            marker={"color": colour},
        )
        for part, colour in colours.items()
    ]
    names, scale = (
        [draw.name_of(result, config) for config, _ in shown],
        draw.axis("ms for 1,000 samples", tickformat=",~r"),
    )
    return draw.lying_bars(names, traces, scale, barmode="stack", legend={"traceorder": "normal"})


def timelines(result: TuningResult) -> Figure:
    """Of the baseline and the best, the last run of each, when the machine was warm."""
    own, best = draw.baseline(result), None if result.best is None else result.best.config
    if result.best is None and (timed := draw.timed_trials(result)):
        best = max(timed, key=lambda pair: pair[1].scored(result.config.objective).value)[0].config
    named = ([("baseline", own)] if own != best else []) + [("best", best)]
    runs = [(whose, config, draw.whose_runs(result, config)[-1]) for whose, config in named if config is not None]
    seen = [(f"{whose}: {settings_text(config)}", run.telemetry) for whose, config, run in runs if run.telemetry]
    shown = [(title, each.timeline) for title, each in seen if each.timeline is not None and _tracks(each.timeline)]
    longest = max((each.slice_s * len(values) for _, each in shown for _, values, _ in _tracks(each)), default=0.0)
    sampled = {"gpu_utilization_fraction": "GPU utilization", "cpu_utilization_fraction": "CPU utilization"}
    reasons = [
        f"{name}: {each.missing[key]}." for _, each in seen for key, name in sampled.items() if key in each.missing
    ]
    on_gpu = result.device.kind != "cpu"
    return Figure(
        key="timelines",
        title="GPU and CPU, baseline and best" if on_gpu else "CPU, baseline and best",
        reading="A GPU that swings between 0% and 100% computes a batch and then waits for the next. A level line near "
        "100% does not wait. If the CPU is at 100% meanwhile, more workers will not help."
        if on_gpu
        else "Training and workers share these cores. At 100% the cores are the limit; in a dip both wait, mostly for "
        "the disk.",
        source="One run of each. GPU utilization is the share of time in which any kernel ran; 100% does not mean that "
        "the GPU is full. CPU utilization is the share of the usable cores.",
        panels=tuple(_timeline_panel(title, each, longest) for title, each in shown),
        missing=tuple(dict.fromkeys(reasons)) if shown else ("This result has no timelines.",),
    )


def _tracks(timeline: Timeline) -> list[tuple[str, tuple[float | None, ...], str]]:
    """Name, the mean of each slice, colour."""
    tracks = [
        ("GPU utilization", timeline.gpu_utilization_fraction, GREEN),
        ("CPU utilization", timeline.cpu_utilization_fraction, ORANGE),
    ]
    return [track for track in tracks if track[1]]


def _timeline_panel(title: str, timeline: Timeline, seconds: float) -> Panel:
    """All panels have one scale. A value holds for its slice; the last is drawn to its end."""
    percents = [0, 25, 50, 75, 100]
    layout = {
        "showlegend": True,
        "xaxis": draw.axis("seconds", range=[0, seconds]),
        "yaxis": draw.axis("utilization", range=[-3, 103], tickvals=percents, ticktext=[f"{one}%" for one in percents]),
    }
    traces = list[Trace]()
    for name, values, colour in _tracks(timeline):
        heights = [None if value is None else 100 * value for value in values]
        times = [round(place * timeline.slice_s, 4) for place in range(len(heights) + 1)]
        words = {"hoverinfo": "all", "hovertemplate": name + " %{y:.0f}% at %{x:.2f} s<extra></extra>"}
        traces.append(draw.line(name, times, [*heights, heights[-1]], colour, shape="hv", **words))
    return Panel(title=title, data=tuple(traces), layout=layout, height_px=240)
