"""Two results side by side: what differs is said, what cannot be compared is refused. The interval of a ratio is as
wide as both sides' noise makes it, and right as often as it says."""

from dataclasses import replace

import pytest
from page_rig import golden

from loadtune.errors import ResultError
from loadtune.records.config import WorkloadSpec
from loadtune.records.result import TuningResult
from loadtune.report.compare import compare

FAST = golden()


def slower(result: TuningResult) -> TuningResult:
    """The same job at half the rate, on fewer cores."""
    finalists = []
    for one in result.finalists:
        runs = [replace(run, windows=tuple(replace(w, seconds=2 * w.seconds) for w in run.windows)) for run in one.runs]
        finalists.append(replace(one, runs=tuple(runs)))
    return replace(result, finalists=tuple(finalists), host=replace(result.host, num_usable_cores=12))


def test_the_ratio_has_an_interval_and_only_what_changed_around_it_is_named() -> None:
    found = compare(FAST, slower(FAST))
    assert found.ratio.low < found.ratio.value < found.ratio.high < 0.7
    assert found.ratio.value == pytest.approx(0.5)
    assert [(change.name, change.before, change.after) for change in found.changes] == [("num_usable_cores", 16, 12)]
    same = compare(FAST, FAST)
    assert (same.ratio.value, same.ratio.holds(1.0)) == (1.0, True)
    assert (same.changes, same.notes) == ((), ())
    assert same.before.figures == same.after.figures


def test_the_winners_at_the_kept_batch_can_be_compared() -> None:
    found = compare(FAST, slower(FAST), keep_batch_size=True)
    assert found.before.winner.config.batch_size == found.after.winner.config.batch_size == 64
    assert "limited by" not in found.before.figures  # the bottleneck is of the best at any batch size


@pytest.mark.parametrize("changed", [{"model": "vit_b_16"}, {"image_size": 96}])
def test_another_step_and_a_model_that_changed_under_its_name_are_refused(changed: dict[str, object]) -> None:
    other = replace(FAST, config=replace(FAST.config, workload=WorkloadSpec(**changed)))  # type: ignore[arg-type]
    with pytest.raises(ResultError, match="not of one workload"):
        compare(FAST, other)
    with pytest.raises(ResultError, match="num_parameters: 25557032 and 11"):
        compare(FAST, replace(FAST, facts=replace(FAST.facts, num_parameters=11)))


def test_a_seed_a_folder_or_a_length_is_a_change_and_no_refusal() -> None:
    config = replace(FAST.config, workload=replace(FAST.config.workload, seed=3, data_root="/data"))
    found = compare(FAST, replace(FAST, config=config, facts=replace(FAST.facts, dataset_length=10)))
    assert [change.name for change in found.changes] == ["data_root", "seed", "dataset_length"]


def test_of_a_run_without_a_winner_no_ratio_is_told() -> None:
    found = compare(FAST, replace(FAST, best=None, finalists=(), cut_short="interrupted by Ctrl-C"))
    assert (found.ratio, found.after.winner, found.after.figures) == (None, None, {})
