"""Time of a training step by part, for each configuration. In: a `TuningResult`. Out: a `Figure`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtune.records import Measurement, TrialConfig, TuningResult, Window
from loadtune.report.page.figure import GREEN, GREY, PINK, RED, Figure, Panel, Trace, axis, bar
from loadtune.report.page.measured import short_names, timed_trials, whose_runs
from loadtune.report.wording import settings_text

_MOST = 10
"""Configurations shown: those that were confirmed, then the fastest trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Milliseconds of a mean step. None: not measured."""

    step_ms: float
    wait_ms: float
    """The host's, in ``next(loader)``."""
    copy_ms: float | None
    compute_ms: float | None
    idle_ms: float | None
    """The device's: with copy and compute it adds up to the step."""


def step_parts(runs: Sequence[Measurement]) -> StepParts:
    """Over all windows of these runs, of which there is at least one."""
    windows = [window for run in runs for window in run.windows]
    return StepParts(
        step_ms=_per_step(windows, lambda window: window.seconds) or 0.0,
        wait_ms=_per_step(windows, lambda window: window.wait_s) or 0.0,
        copy_ms=_per_step(windows, lambda window: window.copy_s),
        compute_ms=_per_step(windows, lambda window: window.compute_s),
        idle_ms=_per_step(windows, lambda window: window.idle_s),
    )


def _per_step(windows: Sequence[Window], part: Callable[[Window], float | None]) -> float | None:
    known = [(seconds, window.num_steps) for window in windows if (seconds := part(window)) is not None]
    steps = sum(num_steps for _, num_steps in known)
    return 1000 * sum(seconds for seconds, _ in known) / steps if steps else None


_Part = tuple[str, str, Callable[[StepParts], float | None]]


def waiting_ms(parts: StepParts) -> float | None:
    """What the device idled while the host waited for the loader, at most: either may happen without the other."""
    return None if parts.idle_ms is None else min(parts.idle_ms, parts.wait_ms)


def other_idle_ms(parts: StepParts) -> float | None:
    return None if parts.idle_ms is None else max(0.0, parts.idle_ms - parts.wait_ms)


_DEVICE_PARTS: tuple[_Part, ...] = (
    ("compute", GREEN, lambda parts: parts.compute_ms),
    ("copy to the device", PINK, lambda parts: parts.copy_ms),
    ("idle, waiting for data", RED, waiting_ms),
    ("idle otherwise", GREY, other_idle_ms),
)
_DEVICE_SOURCE = (
    " Copy and compute are measured by CUDA events. Idle time counts as waiting while the training loop is "
    "blocked in next(loader)."
)
_HOST_PARTS: tuple[_Part, ...] = (
    ("waiting for data", RED, lambda parts: parts.wait_ms),
    ("everything else", GREEN, lambda parts: max(0.0, parts.step_ms - parts.wait_ms)),
)


def step_time(result: TuningResult) -> Figure:
    shown = [(config, step_parts(whose_runs(result, config))) for config in shown_configs(result)]
    is_apart = all(parts.idle_ms is not None for _, parts in shown)
    why = "Copy, compute and idle time were not measured separately in this run, only the time blocked in next(loader)."
    parts = _DEVICE_PARTS if is_apart else _HOST_PARTS
    return Figure(
        key="step",
        title="Where the time of a training step goes",
        reading="Milliseconds for 1,000 samples, so that batch sizes can be compared. Waiting for data: more or faster "
        "workers help. Copy: pin memory, or send fewer bytes. Compute: no loader setting helps.",
        source="Mean over the confirmed runs; over the trial for a configuration that was not confirmed."
        + (_DEVICE_SOURCE * is_apart),
        panels=(_panel(result, shown, parts),) if shown else (),
        missing=("Nothing was measured.",) if not shown else () if is_apart else (why,),
    )


def shown_configs(result: TuningResult) -> list[TrialConfig]:
    """Fastest first."""
    fastest_trials = sorted(timed_trials(result), key=lambda timed: -timed.rate)
    confirmed = [finalist.config for finalist in result.finalists if finalist.runs]
    chosen = list(dict.fromkeys([*confirmed, *(timed.config for timed in fastest_trials)]))[:_MOST]
    return sorted(chosen, key=lambda config: _per_1000(step_parts(whose_runs(result, config)).step_ms, config) or 0.0)


def _panel(result: TuningResult, shown: list[tuple[TrialConfig, StepParts]], parts: tuple[_Part, ...]) -> Panel:
    names = short_names(result, [config for config, _ in shown])
    traces = [_bars(names, shown, part) for part in parts]
    layout = {
        "barmode": "stack",
        "xaxis": axis("ms for 1,000 samples", tickformat=",~r"),
        "yaxis": {"type": "category", "autorange": "reversed"},
        "legend": {"traceorder": "normal"},
    }
    return Panel(data=tuple(traces), layout=layout, height_px=150 + 46 * len(names))


def _bars(names: list[str], shown: list[tuple[TrialConfig, StepParts]], part: _Part) -> Trace:
    title, colour, of = part
    lengths = [_per_1000(of(parts), config) for config, parts in shown]
    words = [_words(title, of(parts), config, parts) for config, parts in shown]
    return bar(title, lengths, names, words, marker={"color": colour}, orientation="h")


def _per_1000(ms: float | None, config: TrialConfig) -> float | None:
    return None if ms is None else 1000 * ms / config.batch_size


def _words(title: str, ms: float | None, config: TrialConfig, parts: StepParts) -> str:
    if ms is None:
        return ""
    share = ms / parts.step_ms if parts.step_ms else 0.0
    return (
        f"{settings_text(config)}<br>{title}: {ms:.3g} ms of {parts.step_ms:.3g} ms a step ({share:.0%})"
        f"<br>blocked in next(loader) for {parts.wait_ms:.3g} ms"
    )
