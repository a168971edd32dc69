"""Throughput against memory."""

from dataclasses import replace
from pathlib import Path

from loadtune.records import Measurement, Trial
from loadtune.report.store import load_result

KEPT = load_result(Path(__file__).parents[1] / "golden" / "result.json")


def trial(number: int, rate: float, reserved: int | None) -> Trial:
    seen = next(trial for trial in KEPT.trials if trial.measurement)
    assert isinstance(seen.measurement, Measurement)
    windows = tuple(replace(window, num_samples=int(rate * window.seconds)) for window in seen.measurement.windows)
    timed = replace(seen.measurement, windows=windows, peak_reserved_bytes=reserved)
    return replace(seen, number=number, measurement=timed)


def test_the_frontier_holds_what_nothing_beats_in_both() -> None:
    trials = (
        trial(0, 100, 5),
        trial(1, 300, 9),
        trial(2, 90, 6),
        trial(3, 300, 12),
        trial(4, 120, 5),
        trial(5, 900, None),
    )
    failed = tuple(trial for trial in KEPT.trials if trial.failure)
    result = replace(KEPT, trials=(*trials, *failed))
    assert [trial.number for trial in result.frontier] == [4, 1]
    assert replace(KEPT, trials=trials[5:]).frontier == ()
