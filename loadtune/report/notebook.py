"""What `tune` shows in a notebook: one bar that is drawn again in its place. Warnings are printed."""

import sys
import time
import warnings
from typing import Any

from loadtune.options import in_python
from loadtune.records.telemetry import Progress
from loadtune.report.live import LiveDisplay


class NotebookDisplay(LiveDisplay):
    """A listener. The bar is the share of the time budget that has passed, and full at the end."""

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
