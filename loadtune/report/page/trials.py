"""Every trial: in the order in which they were run, and as a table. In: a `TuningResult`. Out: a `Figure`, a table."""

from collections.abc import Callable
from itertools import accumulate

from loadtune.records import Measurement, Trial, TrialOrigin, TuningResult
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
    error_bars,
    line,
    points,
    score_axis,
    text,
)
from loadtune.report.page.measured import hover, peak_bytes, timed_trials
from loadtune.report.page.table import Column, SortedTable, sorted_table
from loadtune.report.wording import FAILURE_TEXT, recipe_text, settings_text
from loadtune.units import bytes_text, efficiency_text, number_text, percent_text, seconds_text, watts_text

_ORIGINS: tuple[tuple[TrialOrigin, str, str, str], ...] = (
    ("yours", "baseline's loader settings", ORANGE, "diamond"),
    ("warm start", "best of another run", PINK, "triangle-up"),
    ("search", "proposed by the throughput model", BLUE, "circle"),
)
_EACH_TRIAL_NAMED = 15
"""Fewer have room for a number each, on a phone too."""


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
        panels=(_panel(result),) if result.trials else (),
        missing=() if result.trials else ("No trial was run.",),
    )


def _panel(result: TuningResult) -> Panel:
    """Marks at the ends are drawn whole, and no interval opens the axis far below zero."""
    objective = result.config.objective
    scores = {trial.number: run.scored(objective).value for trial, run in timed_trials(result)}
    last, top = max(trial.number for trial in result.trials), max(scores.values(), default=1.0)
    best = line("best so far", list(scores), list(accumulate(scores.values(), max)), GREY, "dot", shape="hv")
    ticks = {"dtick": 1} if last < _EACH_TRIAL_NAMED else {}
    layout = {
        "xaxis": axis("trial", range=[-0.6, last + 0.6], tickformat="d", **ticks),
        "yaxis": score_axis(objective) | {"range": [-0.03 * top, 1.08 * top]},
    }
    return Panel(data=(best, *_by_origin(result), *_failed(result)), layout=layout)


def _by_origin(result: TuningResult) -> list[Trace]:
    found = list[Trace]()
    for origin, name, colour, symbol in _ORIGINS:
        here = [(trial, run) for trial, run in timed_trials(result) if trial.origin == origin]
        scores = [run.scored(result.config.objective) for _, run in here]
        words = [hover(result, trial.config, run, f"trial {trial.number}") for trial, run in here]
        look = {"marker": {"color": colour, "symbol": symbol, "size": 9}}
        look |= {"error_y": error_bars([score.half_width for score in scores])}
        numbers = [trial.number for trial, _ in here]
        found += [points(name, numbers, [score.value for score in scores], words, **look)] if here else []
    return found


def _failed(result: TuningResult) -> list[Trace]:
    failed = [(trial, trial.failure.message) for trial in result.trials if trial.failure is not None]
    words = [
        f"trial {trial.number}, failed<br>{settings_text(trial.config)}<br>{text(why[:200])}" for trial, why in failed
    ]
    marker = {"color": RED, "symbol": "x", "size": 9}
    numbers = [trial.number for trial, _ in failed]
    return [points("failed", numbers, [0] * len(failed), words, marker=marker)] if failed else []


def trial_table(result: TuningResult) -> SortedTable:
    best = None if result.best is None else result.best.config
    return sorted_table(
        [*_SETTINGS, *_figures(result), *_BEHIND], result.trials, _outcome, lambda trial: trial.config == best
    )


def _outcome(trial: Trial) -> str:
    return "measured" if trial.measurement is not None else "failed" if trial.failure is not None else "not run"


def _prefetch(trial: Trial) -> int | None:
    return trial.config.loader.prefetch_factor if trial.config.loader.num_workers else None


def _said(trial: Trial) -> str:
    if trial.failure is not None:
        return f"{FAILURE_TEXT[trial.failure.kind]} ({trial.failure.phase}): {trial.failure.message}"
    return "measured, noisy" if trial.measurement is not None and trial.measurement.noisy else "measured"


_SETTINGS = (
    Column[Trial]("trial", lambda trial: trial.number),
    Column[Trial]("from", lambda trial: trial.origin),
    Column[Trial]("batch", lambda trial: trial.config.batch_size, "{:,}".format),
    Column[Trial]("workers", lambda trial: trial.config.loader.num_workers),
    Column[Trial]("pinned", lambda trial: "yes" if trial.config.loader.pin_memory else "no"),
    Column[Trial]("prefetch", _prefetch),
    Column[Trial]("precision", lambda trial: trial.config.precision),
)
_BEHIND = (Column[Trial]("outcome", _said), Column[Trial]("recipe", lambda trial: recipe_text(trial.config.recipe)))


def _figures(result: TuningResult) -> list[Column[Trial]]:
    def measured(
        name: str, value: Callable[[Measurement], float | None], shown: Callable[[float], str]
    ) -> Column[Trial]:
        return Column(name, lambda trial: None if trial.measurement is None else value(trial.measurement), shown)

    def sampled(name: str, figure: str, shown: Callable[[float], str] = percent_text) -> Column[Trial]:
        return measured(name, lambda run: getattr(run.telemetry, figure, None), shown)

    by_energy = result.config.objective == "samples-per-joule"
    return [
        *([measured("samples/J", lambda run: run.samples_per_joule, efficiency_text)] if by_energy else []),
        measured("samples/s", lambda run: run.samples_per_s, number_text),
        measured("±", lambda run: run.half_width_fraction, lambda half: percent_text(half, 1)),
        measured("blocked in next(loader)", lambda run: run.wait_fraction, percent_text),
        sampled("GPU utilization", "gpu_utilization_fraction"),
        sampled("SM activity", "gpu_sm_activity_fraction"),
        sampled("CPU utilization", "cpu_utilization_fraction"),
        sampled("power", "gpu_power_w", watts_text),
        measured("peak memory", lambda run: peak_bytes(run, result.device.kind), bytes_text),
        measured("start of workers", lambda run: run.first_batch_s, seconds_text),
    ]
