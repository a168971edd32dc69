"""Two results side by side: what differs is said, what cannot be compared is refused. The interval of a ratio is as
wide as both sides' noise makes it, and right as often as it says."""

import dataclasses
import math
import random
from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune.errors import ResultError
from loadtune.records.config import TuneConfig, WorkloadSpec, YourSettings
from loadtune.records.measurement import Measurement, Window
from loadtune.records.result import TuningResult
from loadtune.report.compare import Comparison, Mean, compare, mean_of, ratio_of
from loadtune.testing import FakeTraining, Surface, fake_facts, fake_host

KEPT_BATCH = TuneConfig(yours=YourSettings(batch_size=32), num_trials=4)


def tuned(folder: Path, name: str, surface: Surface, config: TuneConfig = KEPT_BATCH, cores: int = 16) -> TuningResult:
    (folder / name).mkdir()
    return tune_fake(FakeTraining(surface), folder / name, config, host=fake_host(num_usable_cores=cores))


FAST, SLOW = Surface(), Surface(pinned_per_s=1950.0, pageable_per_s=1200.0)


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> TuningResult:
    return tuned(tmp_path_factory.mktemp("fast"), "run", FAST)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> TuningResult:
    """The same job where a pinned copy, the wall of the other, is half as fast, on fewer cores."""
    return tuned(tmp_path_factory.mktemp("slow"), "run", SLOW, cores=12)


@pytest.fixture(scope="module")
def found(fast: TuningResult, slow: TuningResult) -> Comparison:
    return compare(fast, slow)


def test_the_ratio_is_the_machines_with_an_interval_around_it(found: Comparison) -> None:
    assert found.ratio is not None
    assert found.ratio.low is not None
    assert found.ratio.high is not None
    assert found.ratio.low <= found.ratio.value <= found.ratio.high < 0.7
    assert found.ratio.value == pytest.approx(0.5, abs=0.06)


def test_only_what_changed_around_it_is_named(found: Comparison) -> None:
    assert [(change.name, change.before, change.after) for change in found.changes] == [("num_usable_cores", 16, 12)]


def test_a_result_beside_itself_is_not_told_apart(fast: TuningResult) -> None:
    found = compare(fast, fast)
    assert found.ratio is not None
    assert (found.ratio.value, found.ratio.holds(1.0)) == (1.0, True)
    assert (found.changes, found.notes) == ((), ())
    assert found.before.figures == found.after.figures


def test_the_winners_at_the_kept_batch_can_be_compared(fast: TuningResult, slow: TuningResult) -> None:
    found = compare(fast, slow, keep_batch_size=True)
    assert found.before.winner is not None
    assert found.after.winner is not None
    assert found.before.winner.config.batch_size == found.after.winner.config.batch_size == 32
    assert "limited by" not in found.before.figures  # the bottleneck is of the best at any batch size


def test_another_step_is_refused_and_so_is_a_model_that_changed_under_its_name(fast: TuningResult) -> None:
    for spec in (WorkloadSpec(model="vit_b_16"), WorkloadSpec(optimizer="adamw"), WorkloadSpec(image_size=96)):
        other = dataclasses.replace(fast, config=dataclasses.replace(fast.config, workload=spec))
        with pytest.raises(ResultError, match="not of one workload"):
            compare(fast, other)
    facts = dataclasses.replace(fake_facts(Surface()), num_parameters=11)
    with pytest.raises(ResultError, match="num_parameters: 25557032 and 11"):
        compare(fast, dataclasses.replace(fast, facts=facts))


def test_a_seed_a_folder_or_a_length_is_a_change_and_no_refusal(fast: TuningResult) -> None:
    spec = dataclasses.replace(fast.config.workload, seed=3, data_root="/data")
    facts = dataclasses.replace(fake_facts(Surface()), dataset_length=10)
    config = dataclasses.replace(fast.config, workload=spec)
    found = compare(fast, dataclasses.replace(fast, config=config, facts=facts))
    assert [change.name for change in found.changes] == ["data_root", "seed", "dataset_length"]


def test_a_run_without_a_winner_is_said(fast: TuningResult) -> None:
    cut = dataclasses.replace(fast, best=None, finalists=(), cut_short="interrupted by Ctrl-C")
    found = compare(fast, cut)
    assert (found.ratio, found.after.winner, found.after.figures) == (None, None, {})
    assert found.notes == (
        "The second run was cut short: interrupted by Ctrl-C. It has no confirmed winner, so no throughput of it is"
        " compared.",
    )
    early = dataclasses.replace(fast, cut_short="interrupted by Ctrl-C", confirmed_whole=False)
    assert compare(fast, early).notes[0].endswith("Fewer runs stand behind its figures than planned.")
    unasked = dataclasses.replace(fast, best_at_your_batch=None)
    assert "no batch size to keep" in compare(unasked, fast, keep_batch_size=True).notes[0]


def run_at(rate: float) -> Measurement:
    window = Window(start_s=0.0, seconds=100.0, num_steps=100, num_samples=round(100 * rate))
    return Measurement(windows=(window,), first_batch_s=1.0, seconds=102.0)


def noisy(random_: random.Random, mean: float, spread: float) -> Mean:
    return mean_of([run_at(mean * math.exp(random_.gauss(0, spread))) for _ in range(4)])


def test_one_run_on_a_side_gives_no_interval_and_identical_runs_leave_no_doubt() -> None:
    ratio = ratio_of(mean_of([run_at(1000.0), run_at(1010.0)]), mean_of([run_at(500.0)]))
    assert (round(ratio.value, 3), ratio.low, ratio.high) == (0.498, None, None)
    ratio = ratio_of(mean_of([run_at(100.0)] * 2), mean_of([run_at(50.0)] * 2))
    assert (ratio.low, ratio.value, ratio.high) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(("before", "after"), [(0.02, 0.02), (0.02, 0.06), (0.06, 0.02)])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(before: float, after: float) -> None:
    random_, held = random.Random(3), 0
    for _ in range(400):
        ratio = ratio_of(noisy(random_, 1000.0, before), noisy(random_, 800.0, after))
        assert ratio.low is not None
        assert ratio.high is not None
        held += ratio.low <= 0.8 <= ratio.high
    assert 0.92 <= held / 400 <= 0.99
