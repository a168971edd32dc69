"""Held, fell or not to be told: by the whole interval of the ratio, and only where the baseline has one."""

import dataclasses
import math
import random

import pytest
from page_rig import golden
from study_rig import measured

from loadtune.checking import MIN_RUNS, answer_of, judged
from loadtune.errors import ResultError
from loadtune.records.measurement import Measurement
from loadtune.records.result import Finalist, Unconfirmed
from loadtune.statistics.interval import mean_of, ratio_of


def around(mean: float, num: int = 4) -> list[Measurement]:
    return [measured(mean * factor) for factor in (1.0, 1.01, 0.99, 1.0, 1.01, 0.99)[:num]]


def outcome(runs: list[Measurement], tolerance: float = 0.05, then: list[Measurement] | None = None) -> str:
    before, now = (mean_of([run.samples_per_s for run in own]) for own in (then or around(1000.0, 3), runs))
    return judged(ratio_of(before, now), len(runs), tolerance)[0]


@pytest.mark.parametrize(
    ("rate", "num", "found"),
    [(1000.0, 4, "held"), (1500.0, 4, "held"), (980.0, 4, "held"), (800.0, 4, "fell"), (950.0, 4, "unclear"),
     (500.0, MIN_RUNS - 1, "unclear"), (500.0, MIN_RUNS, "fell")],
)  # fmt: skip
def test_the_whole_interval_decides_of_enough_runs(rate: float, num: int, found: str) -> None:
    assert outcome(around(rate, num)) == found


MISREAD = Unconfirmed(reason="above_compute_only", explanation="It reads above compute-only.")


def test_a_baseline_that_is_not_confirmed_is_refused() -> None:
    result = golden()
    assert result.best is not None
    doubted = Finalist(config=result.best.config, runs=tuple(around(1000.0, 4)), unconfirmed=MISREAD)
    with pytest.raises(ResultError, match=r"is not confirmed, so no check could tell\. It reads above compute-only"):
        answer_of(dataclasses.replace(result, finalists=(doubted,)))


def test_looking_after_every_run_calls_the_truth_wrong_as_seldom_as_it_says() -> None:
    """Six runs then, up to eight runs now; 4% between runs, tolerance 10%."""
    random_, wrong = random.Random(1), {"held": 0, "fell": 0}
    for _ in range(150):
        then = [measured(1000.0 * math.exp(random_.gauss(0, 0.04))) for _ in range(6)]
        for truth, mistaken in ((1.0, "fell"), (0.80, "held")):
            runs: list[Measurement] = []
            while not runs or (len(runs) < 8 and outcome(runs, 0.10, then) == "unclear"):
                runs.append(measured(truth * 1000.0 * math.exp(random_.gauss(0, 0.04))))
            wrong[mistaken] += outcome(runs, 0.10, then) == mistaken
    assert max(wrong.values()) <= 0.04 * 150
