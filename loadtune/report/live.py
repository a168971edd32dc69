"""What is shown during a run: a display that redraws itself on a terminal, plain lines elsewhere.

In: `Progress` records, which carry the newest sensor reading. Out: lines on a stream. `LiveDisplay` is a listener.
"""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TextIO

from loadtune.records.config import TrialConfig
from loadtune.records.telemetry import Progress
from loadtune.report.tables import banner_text
from loadtune.report.wording import STAGE_TEXT, settings_text
from loadtune.units import MISSING, percent_text, plain, rate_text, seconds_text

if TYPE_CHECKING:
    from rich.console import RenderableType


def progress_rows(progress: Progress) -> tuple[tuple[str, str], ...]:
    """The redrawn part as plain data, always the same number of rows."""
    stage, reading = STAGE_TEXT.get(progress.stage, progress.stage), progress.reading
    if progress.stage == "study" and progress.trial_number is not None:
        total = "" if progress.num_trials is None else f"/{progress.num_trials}"
        stage = f"{stage}, {progress.trial_number}{total} trials"
    gpu = percent_text(reading.gpu_utilization_fraction if reading else None)
    cpu = percent_text(reading.cpu_utilization_fraction if reading else None)
    return (
        ("stage", f"{stage}, at most {seconds_text(max(0.0, progress.left_s))} left"),
        ("now", _measured(progress.current_samples_per_s, progress.config)),
        ("best so far", _measured(progress.best_samples_per_s, progress.best_config)),
        ("utilization", f"GPU {gpu}, CPU {cpu}" if progress.has_gpu else f"CPU {cpu}"),
    )


def _measured(rate: float | None, config: TrialConfig | None) -> str:
    if config is None:
        return MISSING if rate is None else rate_text(rate)
    return f"{rate_text(rate)}  {settings_text(config, with_recipe=False)}"


class LiveDisplay:
    """A listener: ``with LiveDisplay(sys.stderr) as display: tune(loader, model=model, listener=display)``."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        """``quiet`` shows warnings only."""
        from rich.console import Console
        from rich.live import Live

        self._console, self._quiet = Console(file=stream, highlight=False), quiet
        self._newest: Progress | None = None
        self._newest_s = 0.0
        redrawn = self._console.is_terminal and not self._console.is_dumb_terminal and not quiet
        self._live: AbstractContextManager[object] = nullcontext()
        if redrawn:
            self._live = Live(get_renderable=self._redrawn, console=self._console, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def __call__(self, progress: Progress) -> None:
        """A message is printed and stays; figures alone go to the redrawn part."""
        if progress.message is not None and (progress.warning or not self._quiet):
            head = "warning:" if progress.warning else f"[{STAGE_TEXT.get(progress.stage, progress.stage)}]"
            style = "yellow" if progress.warning else None
            # Markup off: a message may quote brackets. Soft wrap: a line stays one line in a log file.
            soft_wrap = not self._console.is_terminal
            self._console.print(f"{head} {plain(progress.message)}", style=style, markup=False, soft_wrap=soft_wrap)
        self._newest, self._newest_s = progress, time.monotonic()
        if lost := getattr(self._console.file, "lost", None):  # the error of a `LastingStream`
            raise lost

    def _redrawn(self) -> "RenderableType":
        """Called by rich's thread several times a second; only the time left changes between two records."""
        if self._newest is None:
            return ""
        left_s = max(0.0, self._newest.left_s - (time.monotonic() - self._newest_s))
        return banner_text(progress_rows(replace(self._newest, left_s=left_s)))
