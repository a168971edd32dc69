"""Every trial in the order in which it was run. In: a `TuningResult`. Out: a `Figure`."""

from itertools import accumulate

from loadtune.records import Trial, TrialOrigin, TuningResult
from loadtune.report.page.figure import (
    BLUE,
    GREY,
    ORANGE,
    PINK,
    RED,
    Figure,
    Panel,
    Trace,
    axis,
    line,
    points,
    score_axis,
    text,
)
from loadtune.report.page.measured import Timed, hover, timed_trials
from loadtune.report.wording import settings_text

_ORIGINS: tuple[tuple[TrialOrigin, str, str, str], ...] = (
    ("yours", "baseline's loader settings", ORANGE, "diamond"),
    ("warm start", "best of another run", PINK, "triangle-up"),
    ("search", "proposed by the throughput model", BLUE, "circle"),
)


_EACH_TRIAL_NAMED = 15
"""Fewer have room for a number each, on a phone too."""


def history(result: TuningResult) -> Figure:
    timed = timed_trials(result)
    traces = [_best_so_far(timed), *_by_origin(result, timed), *_without_a_rate(result.trials)]
    return Figure(
        key="trials",
        title="Every trial, in order",
        reading="The line is the best so far. Where it has been level for long, more trials would hardly have helped. "
        "Crosses failed.",
        source="Each trial: real training steps, samples ÷ wall time over whole windows after the "
        "warm-up" + _interval_words(result),
        panels=(Panel(data=tuple(traces), layout=_layout(result)),) if result.trials else (),
        missing=() if result.trials else ("No trial was run.",),
    )


def _interval_words(result: TuningResult) -> str:
    if result.config.objective == "samples-per-joule":
        return ", ÷ the mean power of the GPU's board. No bars: one run gives no interval of it."
    return ". Bars: 95% interval from one run's own windows; runs of one configuration differ by more."


def _layout(result: TuningResult) -> Trace:
    """Marks at the ends are drawn whole, and no interval opens the axis far below zero."""
    last = max((trial.number for trial in result.trials), default=0)
    top = max((one.score.value for one in timed_trials(result)), default=0.0)
    ticks = {"dtick": 1} if last < _EACH_TRIAL_NAMED else {}
    return {
        "xaxis": axis("trial", range=[-0.6, last + 0.6], tickformat="d", **ticks),
        "yaxis": score_axis(result.config.objective) | {"range": [-0.03 * top, 1.08 * top or 1]},
    }


def _best_so_far(timed: tuple[Timed, ...]) -> Trace:
    best = list(accumulate((one.score.value for one in timed), max))
    return line("best so far", [one.number for one in timed], best, GREY, "dot", shape="hv")


def _by_origin(result: TuningResult, timed: tuple[Timed, ...]) -> list[Trace]:
    return [
        _marks(result, name, [one for one in timed if one.trial.origin == origin], colour, symbol)
        for origin, name, colour, symbol in _ORIGINS
        if any(one.trial.origin == origin for one in timed)
    ]


def _marks(result: TuningResult, name: str, timed: list[Timed], colour: str, symbol: str) -> Trace:
    halves = [one.score.half_width for one in timed]
    return points(
        name,
        [one.number for one in timed],
        [one.score.value for one in timed],
        [hover(result, one.config, one.measurement, f"trial {one.number}") for one in timed],
        marker={"color": colour, "symbol": symbol, "size": 9},
        error_y={"type": "data", "array": halves, "thickness": 1.2, "width": 3, "color": colour},
    )


def _without_a_rate(trials: tuple[Trial, ...]) -> list[Trace]:
    failed = [(trial, trial.failure.message) for trial in trials if trial.failure is not None]
    return [_at_zero("failed", failed, RED, "x")] if failed else []


def _at_zero(name: str, trials: list[tuple[Trial, str]], colour: str, symbol: str) -> Trace:
    words = [
        f"trial {trial.number}, {name}<br>{settings_text(trial.config)}<br>{text(why[:200])}" for trial, why in trials
    ]
    marker = {"color": colour, "symbol": symbol, "size": 9}
    return points(name, [trial.number for trial, _ in trials], [0] * len(trials), words, marker=marker)
