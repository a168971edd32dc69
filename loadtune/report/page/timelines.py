"""GPU and CPU utilization over time, of the baseline and the best. In: a `TuningResult`. Out: a `Figure`."""

from loadtune.records import Measurement, TrialConfig, TuningResult
from loadtune.report.page.figure import GREEN, ORANGE, Figure, Panel, Trace, axis
from loadtune.report.page.measured import baseline, leader, whose_runs
from loadtune.report.wording import settings_text

_TRACKS = (
    ("gpu_utilization_fraction", "GPU utilization", GREEN),
    ("cpu_utilization_fraction", "CPU utilization", ORANGE),
)
Track = tuple[str, str, float, tuple[float | None, ...]]
"""Name, colour, seconds of a slice, and the mean of each slice."""

_GPU_READING = (
    "A GPU that swings between 0% and 100% computes a batch and then waits for the next. A level line near 100% "
    "does not wait. If the CPU is at 100% meanwhile, more workers will not help."
)
_CPU_READING = (
    "Training and workers share these cores. At 100% the cores are the limit; in a dip both wait, mostly for the disk."
)
_PERCENTS = [0, 25, 50, 75, 100]


def timelines(result: TuningResult) -> Figure:
    shown = [(whose, run) for whose, run in _runs(result) if _tracks(run)]
    on_gpu = result.device.kind != "cpu"
    return Figure(
        key="timelines",
        title="GPU and CPU, baseline and best" if on_gpu else "CPU, baseline and best",
        reading=_GPU_READING if on_gpu else _CPU_READING,
        source="One run of each. GPU utilization is the share of time in which any kernel ran; 100% does not mean that "
        "the GPU is full. CPU utilization is the share of the usable cores.",
        panels=tuple(_panel(whose, run, _longest(shown)) for whose, run in shown),
        missing=_missing(result) if shown else ("This result has no timelines.",),
    )


def _runs(result: TuningResult) -> list[tuple[str, Measurement]]:
    """The baseline first; the last run of each, when the machine was warm."""
    chosen: list[tuple[str, TrialConfig]] = []
    best = leader(result)
    if (own := baseline(result)) is not None and own != best:
        chosen.append(("baseline", own))
    if best is not None:
        chosen.append(("best", best))
    return [(f"{whose}: {settings_text(config)}", whose_runs(result, config)[-1]) for whose, config in chosen]


def _missing(result: TuningResult) -> tuple[str, ...]:
    reasons = [
        f"{name}: {why}."
        for _, run in _runs(result)
        for figure, name, _ in _TRACKS
        if run.telemetry is not None and (why := run.telemetry.missing.get(figure)) is not None
    ]
    return tuple(dict.fromkeys(reasons))


def _tracks(run: Measurement) -> list[Track]:
    timeline = None if run.telemetry is None else run.telemetry.timeline
    if timeline is None:
        return []
    gpu, cpu = timeline.gpu_utilization_fraction, timeline.cpu_utilization_fraction
    series = zip(_TRACKS, (gpu, cpu), strict=True)
    return [(name, colour, timeline.slice_s, values) for (_, name, colour), values in series if values]


def _longest(shown: list[tuple[str, Measurement]]) -> float:
    """Seconds: one scale for all panels."""
    tracks = [track for _, run in shown for track in _tracks(run)]
    return max((slice_s * len(values) for _, _, slice_s, values in tracks), default=0.0)


def _panel(whose: str, run: Measurement, seconds: float) -> Panel:
    layout = {
        "showlegend": True,
        "xaxis": axis("seconds", range=[0, seconds]),
        "yaxis": axis("utilization", range=[-3, 103], tickvals=_PERCENTS, ticktext=[f"{one}%" for one in _PERCENTS]),
    }
    return Panel(title=whose, data=tuple(_steps(*each) for each in _tracks(run)), layout=layout, height_px=240)


def _steps(name: str, colour: str, slice_s: float, values: tuple[float | None, ...]) -> Trace:
    """A value holds for its slice; the last is drawn to its end."""
    percents = [None if value is None else 100 * value for value in values]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [round(place * slice_s, 4) for place in range(len(percents) + 1)],
        "y": [*percents, percents[-1]],
        "line": {"color": colour, "width": 1.8, "shape": "hv"},
        "hovertemplate": name + " %{y:.0f}% at %{x:.2f} s<extra></extra>",
    }
