"""What is shown during a run: one line that redraws itself on a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Self, TextIO

from loadtune.records.config import TrialConfig
from loadtune.records.telemetry import Progress
from loadtune.report.wording import STAGE_TEXT, settings_text
from loadtune.units import plain, rate_text, seconds_text

if TYPE_CHECKING:
    from rich.text import Text

_DOES = {
    "start": "starting: torch, dataset and model are loaded",
    "calibrate": "timing each precision without a loader, predicting the largest batch",
    "study": "searching",
    "changes": "trying changes of your code",
    "verify": "running the largest batch",
    "confirm": "confirming: the best and your settings, measured alternately",
}


def progress_line(progress: Progress, width: int | None = None) -> str:
    """What the run does, the best so far, and the time left. What is measured now is in it where ``width`` allows."""
    does = _DOES.get(progress.stage, progress.stage)
    if progress.stage == "study":
        does += f" {progress.number}" + (f" of ≤{progress.num_trials}" if progress.num_trials else "")
    best = now = ""
    if progress.best_config is not None:
        best = f" · best so far {_measured(progress.best_samples_per_s, progress.best_config)}"
    if progress.config is not None:
        now = f" · now {_measured(progress.current_samples_per_s, progress.config)}"
    left = f" · at most {seconds_text(progress.left_s)} left"
    if progress.expected_s is not None and (about_s := 10 * math.ceil(progress.expected_s / 10)) < progress.left_s:
        left = f" · about {seconds_text(about_s)} left"
    whole = f"{does}{now}{best}{left}"
    return whole if width is not None and len(whole) <= width else f"{does}{best}{left}"


def _raised() -> NoReturn:
    raise


def _measured(rate: float | None, config: TrialConfig) -> str:
    what = settings_text(config, with_recipe=False)
    return what if rate is None else f"{rate_text(rate)} ({what})"


class LiveDisplay:
    """A listener: ``with LiveDisplay(sys.stderr) as display: tune(loader, model=model, listener=display)``."""

    def __init__(
        self, stream: TextIO, *, quiet: bool = False, name: str = "", words: Callable[[str], str] = str
    ) -> None:
        """``quiet`` shows warnings only. ``name`` begins each message; ``words`` makes others of its words."""
        from rich.console import Console
        from rich.live import Live

        self._console, self._quiet = Console(file=stream, highlight=False, force_jupyter=False), quiet
        self._console.on_broken_pipe = _raised  # type: ignore[method-assign]  # rich would end the process
        self._name, self._words = name, words
        self._newest: Progress | None = None
        self._newest_s = 0.0
        self._is_redrawn = self._console.is_terminal and not self._console.is_dumb_terminal and not quiet
        self._live: AbstractContextManager[object] = nullcontext()
        if self._is_redrawn:
            self._live = Live(get_renderable=self._redrawn, console=self._console, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        with suppress(OSError):  # the terminal is gone
            self._live.__exit__(*error)

    def __call__(self, progress: Progress) -> None:
        """A message is printed and stays. Where nothing is redrawn, so is the line of each stage that begins."""
        newest, self._newest, self._newest_s = self._newest, progress, time.monotonic()
        if not (self._is_redrawn or self._quiet) and (newest is None or newest.stage != progress.stage):
            self._print(progress, progress_line(progress))
        if progress.message is not None and (progress.warning or not self._quiet):
            self._print(progress, self._words(progress.message), warning=progress.warning)
        if lost := getattr(getattr(self._console.file, "buffer", None), "lost", None):  # the error of a `LastingFile`
            raise lost

    def _print(self, progress: Progress, text: str, *, warning: bool = False) -> None:
        head = "warning:" if warning else f"[{STAGE_TEXT.get(progress.stage, progress.stage)}]"
        # Markup off: a message may quote brackets. Soft wrap: a line stays one line in a log file.
        look: dict[str, Any] = {"style": "yellow" if warning else None, "markup": False}
        self._console.print(f"{self._name}{head} {plain(text)}", **look, soft_wrap=not self._console.is_terminal)

    def _redrawn(self) -> "Text":
        """Called by rich's thread several times a second; only the time left changes between two records."""
        from rich.text import Text

        if self._newest is None:
            return Text()
        since_s, newest = time.monotonic() - self._newest_s, self._newest
        expected_s = None if newest.expected_s is None else max(0.0, newest.expected_s - since_s)
        shown = replace(newest, left_s=max(0.0, newest.left_s - since_s), expected_s=expected_s)
        return Text(progress_line(shown, self._console.width))
