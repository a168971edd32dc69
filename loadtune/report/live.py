"""What is shown during a run: one line that redraws itself on a terminal, plain lines elsewhere."""

import math
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Self, TextIO

from loadtune.options import in_python
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


class NotebookDisplay(LiveDisplay):
    """A listener in a notebook; warnings are printed. The bar is the share of the time budget that has passed, and full
    at the end."""

    def __init__(self) -> None:
        from IPython.display import display

        with warnings.catch_warnings(action="ignore"):
            import tqdm.auto  # noqa: F401  # optuna does, and here tqdm warns of widgets that nobody asks for
        super().__init__(sys.stderr, quiet=True, words=in_python)
        self._began_s = time.monotonic()
        self._handle = display(self._bar(0.0), display_id=True)

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self._newest = None
            self._handle.update(self._bar(1.0))

    def __call__(self, progress: Progress) -> None:
        super().__call__(progress)
        passed_s = time.monotonic() - self._began_s
        self._handle.update(self._bar(passed_s / (passed_s + progress.left_s)))

    def _bar(self, fraction: float) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        bar = Table.grid(padding=(0, 2))
        bar.add_row(ProgressBar(1.0, fraction, width=30), self._redrawn())
        return bar
