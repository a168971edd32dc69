"""The best configuration of another run, given by ``--warm-start``."""

from pathlib import Path

from loadtune.errors import ResultError
from loadtune.records import TrialConfig
from loadtune.report.store import load_result


def warm_start(path: str | None) -> TrialConfig | None:
    """The best configuration of the run at `path`. Raises ResultError where there is none."""
    if path is None:
        return None
    result = load_result(Path(path))
    if result.best is None:
        raise ResultError(
            f"--warm-start is {path}, a run that confirmed no configuration. Give the result of another run, or leave "
            "--warm-start out."
        )
    return result.best.config
