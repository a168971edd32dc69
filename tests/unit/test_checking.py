"""Held, fell or not to be told: by the whole interval, and in words that say what to do."""

import dataclasses
import math
import random
from collections.abc import Iterable

import pytest
from forms_rig import KEPT

from loadtune.checking import MIN_RUNS, Baseline, baseline_of, conclude
from loadtune.errors import ResultError
from loadtune.records.config import Recipe
from loadtune.records.interval import Interval
from loadtune.records.measurement import Measurement, Window
from loadtune.records.result import Finalist, TuningResult
from loadtune.records.telemetry import Telemetry
from loadtune.report.comparison import view
from loadtune.report.store import load_result


def run_at(rate: float) -> Measurement:
    window = Window(start_s=0.0, seconds=10.0, num_steps=100, num_samples=round(10 * rate))
    return Measurement(windows=(window,), first_batch_s=0.1, seconds=12.0)


def stored(*rates: float) -> TuningResult:
    """The kept result with these runs of its winner as its whole confirmation."""
    result = load_result(KEPT)
    assert result.best is not None
    finalist = Finalist(config=result.best.config, runs=tuple(map(run_at, rates)))
    best = dataclasses.replace(result.best, samples_per_s=finalist.samples_per_s)
    return dataclasses.replace(result, finalists=(finalist,), best=best)


def baseline(tolerance: float = 0.05, rates: tuple[float, ...] = (1000.0, 1010.0, 990.0)) -> Baseline:
    return baseline_of(stored(*rates), tolerance)


def around(mean: float, num: int = 4) -> list[Measurement]:
    return [run_at(mean * factor) for factor in (1.0, 1.01, 0.99, 1.0, 1.01, 0.99)[:num]]


@pytest.mark.parametrize(
    ("rate", "outcome"), [(1000.0, "held"), (1500.0, "held"), (980.0, "held"), (800.0, "fell"), (950.0, "unclear")]
)
def test_the_whole_interval_decides(rate: float, outcome: str) -> None:
    assert baseline().outcome(around(rate)) == outcome


def test_a_wider_tolerance_lets_more_pass() -> None:
    assert [baseline(tolerance).outcome(around(800.0)) for tolerance in (0.05, 0.3)] == ["fell", "held"]


def test_nothing_is_said_of_too_few_runs() -> None:
    assert baseline().outcome(around(500.0, MIN_RUNS - 1)) == "unclear"
    assert baseline().outcome(around(500.0, MIN_RUNS)) == "fell"
    assert "Raise --time-budget" in conclude(baseline(), around(500.0, 2), 60.0).reason


def test_a_loss_says_by_how_much_with_its_interval() -> None:
    check = conclude(baseline(), around(800.0), 20.0)
    assert check.outcome == "fell"
    assert check.reason.startswith("It lost 20.0% of its samples/s (")
    assert check.ratio is not None
    assert check.ratio.low is not None
    assert check.ratio.high is not None
    assert check.ratio.low < 0.8 < check.ratio.high < 0.95
    assert check.throughput is not None
    assert check.throughput.value == pytest.approx(800.0)


def test_a_baseline_that_is_itself_uncertain_is_told() -> None:
    check = conclude(baseline(0.02, (1000.0, 1200.0, 800.0)), around(1000.0), 60.0)
    assert check.outcome == "unclear"
    assert "The baseline itself is known to ±" in check.reason


def test_a_baseline_without_repeats_is_refused_and_told_what_to_do() -> None:
    with pytest.raises(ResultError, match=r"by one run, and no other finalist by more.*--time-budget above"):
        baseline(rates=(1000.0,))


def test_a_repeated_rival_gives_a_winner_of_one_run_its_interval() -> None:
    once = stored(1000.0)
    other = dataclasses.replace(once.finalists[0].config, recipe=Recipe(precision="bf16"))
    rival = Finalist(config=other, runs=tuple(map(run_at, (900.0, 910.0))))
    known = baseline_of(dataclasses.replace(once, finalists=(*once.finalists, rival)), 0.05)
    assert known.outcome(around(500.0)) == "fell"


def test_a_problem_outweighs_the_runs() -> None:
    check = conclude(baseline(), around(500.0), 20.0, problem="Run 5 failed (crash): gone")
    assert (check.outcome, check.reason) == ("unclear", "Run 5 failed (crash): gone")


def test_looking_after_every_run_calls_the_truth_wrong_as_seldom_as_it_says() -> None:
    """Three finalists of three runs, then up to eight runs now; 4% between runs, tolerance 10%."""
    random_, wrong = random.Random(1), {"held": 0, "fell": 0}
    for _ in range(150):
        then = baseline(0.10, tuple(1000.0 * math.exp(random_.gauss(0, 0.04)) for _ in range(6)))
        for truth, mistaken in ((1.0, "fell"), (0.80, "held")):
            runs: list[Measurement] = []
            while len(runs) < 8 and then.outcome(runs) == "unclear":
                runs.append(run_at(truth * 1000.0 * math.exp(random_.gauss(0, 0.04))))
            wrong[mistaken] += then.outcome(runs) == mistaken
    assert max(wrong.values()) <= 0.04 * 150


def with_energy(rates_and_watts: Iterable[tuple[float, float]]) -> list[Measurement]:
    return [
        dataclasses.replace(run_at(rate), telemetry=Telemetry(seconds=10.0, num_readings=20, gpu_energy_j=10.0 * watts))
        for rate, watts in rates_and_watts
    ]


def sparing_baseline() -> Baseline:
    """Picked for its 2 samples/J."""
    result = stored(1.0)
    finalist = dataclasses.replace(
        result.finalists[0], runs=tuple(with_energy([(1000.0, 500.0), (1010.0, 503.0), (990.0, 497.0)]))
    )
    config = dataclasses.replace(result.config, objective="samples-per-joule")
    assert result.best is not None
    best = dataclasses.replace(
        result.best, samples_per_s=1000.0, samples_per_joule=Interval(value=2.0, low=1.98, high=2.02)
    )
    return baseline_of(dataclasses.replace(result, config=config, finalists=(finalist,), best=best), 0.05)


@pytest.mark.parametrize(
    ("rate", "watts", "outcome"), [(800.0, 400.0, "held"), (1000.0, 650.0, "fell"), (1300.0, 1000.0, "fell")]
)
def test_a_winner_by_energy_is_held_to_its_samples_per_joule(rate: float, watts: float, outcome: str) -> None:
    runs = with_energy([(rate * factor, watts) for factor in (1.0, 1.001, 0.999, 1.0)])
    check = conclude(sparing_baseline(), runs, 20.0)
    assert check.outcome == outcome, check.reason
    assert "of its samples/J" in check.reason
    assert check.efficiency is not None
    assert check.throughput is not None
    assert check.ratio is not None
    assert check.efficiency.value == pytest.approx(rate / watts, rel=0.01)
    assert check.throughput.value == pytest.approx(rate)
    assert check.ratio.value == pytest.approx(rate / watts / 2.0, rel=0.01)
    table = view(check).tables[0]
    assert table.columns == ("", "throughput", "samples per joule", "runs")
    assert [row[1] == "" for row in table.rows] == [False, False, True]  # the ratio is not of the throughput


def test_a_winner_by_speed_is_not_asked_for_its_energy() -> None:
    check = conclude(baseline(), around(1000.0), 20.0)
    assert (check.objective, check.efficiency) == ("samples-per-s", None)
    assert view(check).tables[0].columns == ("", "throughput", "runs")


def test_a_result_without_its_winners_runs_is_told() -> None:
    with pytest.raises(ResultError, match="holds no runs of its winner"):
        baseline_of(dataclasses.replace(stored(1.0), finalists=()), 0.05)
    with pytest.raises(ResultError, match="no confirmed winner"):
        baseline_of(dataclasses.replace(stored(1.0), best=None), 0.05)
