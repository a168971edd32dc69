"""Another run's winner, brought along by whoever starts this one. Read before anything is measured."""

from pathlib import Path

from loadtune.errors import ResultError
from loadtune.records import TrialConfig
from loadtune.report.store import load_result


def warm_start(path: str | None) -> TrialConfig | None:
    """The winner of another run. Raises ResultError where there is none."""
    if path is None:
        return None
    result = load_result(Path(path))
    if result.best is None:
        raise ResultError(
            f"--warm-start {path}: that run confirmed no winner, so there is nothing to start with. Name another "
            "result, or leave --warm-start out."
        )
    return result.best.config
