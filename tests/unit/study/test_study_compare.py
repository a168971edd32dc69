"""Two results side by side: what differs is said, what cannot be compared is refused."""

import dataclasses
from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune.errors import ResultError
from loadtune.records import Comparison, TuneConfig, TuningResult, WorkloadSpec, YourSettings
from loadtune.study.compare import compare
from loadtune.testing import FakeBench, Surface, fake_facts, fake_host

KEPT_BATCH = TuneConfig(yours=YourSettings(batch_size=32))


def tuned(folder: Path, name: str, surface: Surface, config: TuneConfig = KEPT_BATCH, cores: int = 16) -> TuningResult:
    (folder / name).mkdir()
    return tune_fake(FakeBench(surface), folder / name, config, host=fake_host(num_usable_cores=cores))


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
    assert found.ratio.low <= found.ratio.ratio <= found.ratio.high < 0.7
    assert found.ratio.ratio == pytest.approx(0.5, abs=0.06)


def test_only_what_changed_around_it_is_named(found: Comparison) -> None:
    assert [(change.name, change.before, change.after) for change in found.changes] == [("num_usable_cores", 16, 12)]


def test_the_same_settings_are_compared_where_both_confirmed_them(found: Comparison, slow: TuningResult) -> None:
    assert slow.yours in [same.config for same in found.same_configs]  # the user's own is always among them
    yours = next(same for same in found.same_configs if same.config == slow.yours)
    # One process without pinning is slower than either wall: the slower copies add a little to each sample.
    assert yours.ratio.ratio == pytest.approx(SLOW.training_rate(slow.yours) / FAST.training_rate(slow.yours), abs=0.06)


def test_ceilings_are_beside_each_other(found: Comparison, fast: TuningResult) -> None:
    assert {change.precision for change in found.precisions} == {"fp32", "fp16", "bf16"}
    for change in found.precisions:
        assert change.safe_batch_before == change.safe_batch_after
        assert change.compute_ratio is not None
        assert change.compute_ratio.ratio == pytest.approx(1.0, abs=0.05)


def test_ceilings_are_of_the_recipe_that_was_trained(fast: TuningResult) -> None:
    """Another recipe's point, however fast, is no ceiling of what was trained."""
    point = next(point for point in fast.compute_points if point.recipe.precision == "bf16")
    other = dataclasses.replace(point.recipe, compile=True)
    quicker = tuple(dataclasses.replace(window, seconds=window.seconds / 3) for window in point.windows)
    turned_down = dataclasses.replace(point, recipe=other, windows=quicker)
    found = compare(fast, dataclasses.replace(fast, compute_points=(*fast.compute_points, turned_down)))
    assert {change.precision: change.compute_ratio.ratio for change in found.precisions if change.compute_ratio} == {
        "fp32": 1.0,
        "fp16": 1.0,
        "bf16": 1.0,
    }


def test_a_result_beside_itself_is_not_told_apart(fast: TuningResult) -> None:
    found = compare(fast, fast)
    assert found.ratio is not None
    assert (found.ratio.ratio, found.ratio.different) == (1.0, False)
    assert (found.changes, found.settings, found.notes) == ((), (), ())


def test_the_winners_at_the_kept_batch_can_be_compared(fast: TuningResult, slow: TuningResult) -> None:
    found = compare(fast, slow, keep_batch_size=True)
    assert found.before.config is not None
    assert found.after.config is not None
    assert found.before.config.batch_size == found.after.config.batch_size == 32
    assert found.before.bottleneck is None  # it is of the best at any batch size


def test_another_step_is_refused(fast: TuningResult) -> None:
    for spec in (WorkloadSpec(model="vit_b_16"), WorkloadSpec(optimizer="adamw"), WorkloadSpec(image_size=96)):
        other = dataclasses.replace(fast, config=dataclasses.replace(fast.config, workload=spec))
        with pytest.raises(ResultError, match="not of one workload"):
            compare(fast, other)


def test_a_model_that_changed_under_its_name_is_refused(fast: TuningResult) -> None:
    facts = dataclasses.replace(fake_facts(Surface()), num_parameters=11)
    with pytest.raises(ResultError, match="num_parameters: 25557032 and 11"):
        compare(fast, dataclasses.replace(fast, facts=facts))


def test_a_seed_or_a_folder_is_a_change_and_no_refusal(fast: TuningResult) -> None:
    spec = dataclasses.replace(fast.config.workload, seed=3, data_root="/data")
    found = compare(fast, dataclasses.replace(fast, config=dataclasses.replace(fast.config, workload=spec)))
    assert [change.name for change in found.changes] == ["data_root", "seed"]


def test_another_length_of_the_dataset_is_warned_of(fast: TuningResult) -> None:
    facts = dataclasses.replace(fake_facts(Surface()), dataset_length=10)
    found = compare(fast, dataclasses.replace(fast, facts=facts))
    assert any("stands for other data" in note for note in found.notes)


def test_a_run_without_a_winner_is_said(fast: TuningResult) -> None:
    cut = dataclasses.replace(fast, best=None, finalists=(), cut_short="interrupted by Ctrl-C")
    found = compare(fast, cut)
    assert (found.ratio, found.after.samples_per_s, found.after.bottleneck) == (None, None, None)
    assert found.notes == (
        "The second run was cut short: interrupted by Ctrl-C. It has no confirmed winner, so no throughput of it is"
        " compared.",
    )
    early = dataclasses.replace(fast, cut_short="interrupted by Ctrl-C", confirmed_whole=False)
    assert compare(fast, early).notes == (
        "The second run was cut short: interrupted by Ctrl-C. Fewer runs stand behind its figures than planned.",
    )
    late = dataclasses.replace(early, confirmed_whole=True)
    assert compare(fast, late).notes == ()  # what is compared was measured to its end
    unasked = dataclasses.replace(fast, best_at_your_batch=None)
    assert "no batch size to keep" in compare(unasked, fast, keep_batch_size=True).notes[0]


def test_winners_of_two_objectives_are_told_apart(fast: TuningResult) -> None:
    sparing = dataclasses.replace(fast, config=dataclasses.replace(fast.config, objective="samples-per-joule"))
    notes = compare(fast, sparing).notes
    assert any("looked for samples-per-s, the second for samples-per-joule" in note for note in notes)
