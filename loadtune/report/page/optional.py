"""Figures that not every result holds: of an older loadtune, of a machine that could not be read, of a CPU.

In: records. Out: what they hold, None for what they do not. The one place that knows which of their fields may be
missing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtune.records import Measurement, Telemetry, Window


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One figure over time, in slices of equal length."""

    slice_s: float
    values: tuple[float | None, ...]


def step_parts(runs: Sequence[Measurement]) -> StepParts:
    """Over all windows of these runs, of which there is at least one."""
    windows = [window for run in runs for window in run.windows]
    return StepParts(
        step_ms=_per_step(windows, lambda window: window.seconds) or 0.0,
        wait_ms=_per_step(windows, lambda window: window.wait_s) or 0.0,
        copy_ms=_per_step(windows, lambda window: getattr(window, "copy_s", None)),
        compute_ms=_per_step(windows, lambda window: getattr(window, "compute_s", None)),
        idle_ms=_per_step(windows, lambda window: getattr(window, "idle_s", None)),
    )


def _per_step(windows: Sequence[Window], part: Callable[[Window], float | None]) -> float | None:
    known = [(seconds, window.num_steps) for window in windows if (seconds := part(window)) is not None]
    steps = sum(num_steps for _, num_steps in known)
    return 1000 * sum(seconds for seconds, _ in known) / steps if steps else None


def track(telemetry: Telemetry | None, figure: str) -> Track | None:
    """``figure`` as a field of the telemetry's timeline is named. None: there is no timeline, or not of this."""
    timeline = getattr(telemetry, "timeline", None)
    values = getattr(timeline, figure, ())
    return Track(slice_s=timeline.slice_s, values=tuple(values)) if timeline is not None and values else None


def why_missing(telemetry: Telemetry | None, figure: str) -> str | None:
    """As the sensor said it. None: nothing is known to be missing."""
    reasons: dict[str, str] = getattr(telemetry, "missing", {})
    return reasons.get(figure)
