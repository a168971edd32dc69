"""What was measured and is never called confirmed: crashes, losses that are not finite, intervals wider than the value,
rates above the compute-only rate; over a fake bench."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_rig import tune_fake

import loadtune
from loadtune.ending import exit_code
from loadtune.errors import ResultError
from loadtune.options import fixed_of
from loadtune.records.config import Recipe, TrialConfig, TuneConfig
from loadtune.records.measurement import ComputePoint, TrialFailure
from loadtune.records.result import TuningResult
from loadtune.records.telemetry import Progress
from loadtune.report.forms import FORMS
from loadtune.report.page.view import page_view
from loadtune.report.store import RESULT_FILE, load_result
from loadtune.testing import FakeBench

pytestmark = pytest.mark.usefixtures("study_in_memory")

CRASH = "DataLoader worker (pid 812) was killed by SIGSEGV while it read samples 17, 204 and 5"


class Stage:
    """Which stage the run is in, for faults that only come with the confirmation."""

    def __init__(self) -> None:
        self.name = ""

    def listen(self, progress: Progress) -> None:
        self.name = progress.stage


def nothing_is_handed_out(result: TuningResult, folder: Path) -> None:
    assert result.best is None
    assert result.best_at_your_batch is None
    assert exit_code(result) == 1
    assert page_view(result).figures is None
    assert "onfirmed" in page_view(result).headline
    assert load_result(folder / RESULT_FILE) == result
    for hand_out in (
        loadtune.best_loader_kwargs,
        loadtune.best_recipe,
        lambda path: loadtune.check_baseline(load_result(path)),
        *(lambda path, form=form: loadtune.export(load_result(path), form) for form in FORMS),
    ):
        with pytest.raises(ResultError, match="no confirmed winner"):
            hand_out(folder / RESULT_FILE)


def crashing_in(when: Callable[[str, int], bool], stage: Stage) -> Callable[[TrialConfig], TrialFailure | None]:
    """`when` is told the stage and which run of the configuration in it this is."""
    runs: Counter[tuple[str, TrialConfig]] = Counter()

    def fail(config: TrialConfig) -> TrialFailure | None:
        runs[stage.name, config] += 1
        crashes = when(stage.name, runs[stage.name, config])
        return TrialFailure(kind="crash", phase="training", message=CRASH) if crashes else None

    return fail


def test_where_every_finalist_crashed_twice_nothing_is_the_answer_and_the_crash_is_quoted(tmp_path: Path) -> None:
    stage = Stage()
    fail = crashing_in(lambda name, number: name == "confirm" and number in (2, 3), stage)
    result = tune_fake(FakeBench(fail=fail), tmp_path, listener=stage.listen)
    assert all((len(f.runs), len(f.failures)) == (1, 2) for f in result.finalists)
    assert {f.unconfirmed.reason for f in result.finalists if f.unconfirmed} == {"failed"}
    assert any("2 of its 3 runs failed" in note and CRASH in note for note in result.notes)
    nothing_is_handed_out(result, tmp_path)


def test_who_crashed_once_is_tried_again_after_the_others_and_may_be_the_answer(tmp_path: Path) -> None:
    order, stage = list[TrialConfig](), Stage()

    def fail(config: TrialConfig) -> TrialFailure | None:
        order.extend([config] if stage.name == "confirm" else [])
        return TrialFailure(kind="crash", phase="training", message=CRASH) if len(order) == 1 else None

    fixed = TuneConfig(fix=fixed_of(["batch_size=256", "num_workers=16", "pin_memory=true", "precision=fp16"]))
    result = tune_fake(FakeBench(fail=fail), tmp_path, fixed, listener=stage.listen)
    unlucky = next(finalist for finalist in result.finalists if finalist.failures)
    assert unlucky.config == order[0] == order[len(result.finalists)]
    assert len(unlucky.runs) == max(len(finalist.runs) for finalist in result.finalists) > 1
    assert result.best is not None
    assert result.best.config == unlucky.config
    assert any("1 of its " in note and CRASH in note for note in result.notes)


def test_a_precision_whose_loss_is_not_finite_is_not_the_answer(tmp_path: Path) -> None:
    """It would be the fastest by far."""
    result = tune_fake(FakeBench(finite=lambda config: config.precision != "fp16"), tmp_path)
    assert result.best is not None
    assert result.best.config.precision != "fp16"
    failed = [trial for trial in result.trials if trial.failure]
    assert {(t.config.precision, t.failure.kind) for t in failed if t.failure} == {("fp16", "non_finite_loss")}
    assert len(failed) == 1  # the others of that precision are not run
    (note,) = (note for note in result.notes if "NaN or infinite" in note)
    assert note.startswith("fp16 is not recommended")
    assert "the first" in note


def test_a_loss_that_turns_up_in_one_configuration_rules_out_its_precision(tmp_path: Path) -> None:
    stage, bad = Stage(), list[TrialConfig]()

    def finite(config: TrialConfig) -> bool:
        if stage.name == "confirm" and config.precision == "fp16" and not bad:
            bad.append(config)
        return config not in bad

    result = tune_fake(FakeBench(finite=finite), tmp_path, TuneConfig(precisions=("fp16",)), listener=stage.listen)
    assert bad
    assert result.best is None or result.best.config.precision != "fp16"
    reasons = {f.config.precision: f.unconfirmed and f.unconfirmed.reason for f in result.finalists}
    assert reasons.get("fp16", "non_finite_loss") == "non_finite_loss"
    assert reasons["fp32"] is None


def test_a_loss_that_is_not_finite_in_fp32_leaves_no_answer_and_is_said_to_be_the_datas(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(finite=lambda config: False), tmp_path)
    assert any("the dataset, the model or the loss" in note for note in result.notes)
    assert len(result.trials) <= 3
    nothing_is_handed_out(result, tmp_path)


def test_where_every_interval_is_wider_than_its_value_your_settings_stay(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(between_runs=1.5, seed=3), tmp_path)
    assert {f.unconfirmed.reason for f in result.finalists if f.unconfirmed} == {"wide_interval"}
    assert any("includes 0" in note and "--time-budget" in note and " runs" in note for note in result.notes)
    assert result.best is not None
    assert result.best.config == result.yours


class Misread(FakeBench):
    """Other load while the compute-only rate is timed: it reads a fifth of what it is."""

    num_misread = 10**6

    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        point = FakeBench.time_compute(self, recipe, batch_size, seconds)
        self.num_misread -= 1
        if self.num_misread < 0 or isinstance(point, TrialFailure):
            return point
        return replace(point, windows=tuple(replace(w, seconds=5 * w.seconds) for w in point.windows))


def test_a_rate_above_the_compute_only_rate_is_not_the_answer(tmp_path: Path) -> None:
    result = tune_fake(Misread(), tmp_path)
    assert "above_compute_only" in {f.unconfirmed.reason for f in result.finalists if f.unconfirmed}
    assert any("one of the two rates is wrong" in note for note in result.notes)
    for winner in (result.best, result.best_at_your_batch):
        assert winner is None or winner.compute_fraction is None or winner.compute_fraction <= 1.1
    assert result.best is None or result.best.config == result.yours


def test_a_compute_only_rate_that_was_misread_is_timed_again(tmp_path: Path) -> None:
    stage = Stage()
    bench = Misread()

    def listen(progress: Progress) -> None:
        stage.listen(progress)
        if progress.stage == "confirm":
            bench.num_misread = 0

    result = tune_fake(bench, tmp_path, listener=listen)
    assert result.best is not None
    assert result.best.compute_fraction is not None
    assert result.best.compute_fraction <= 1.05
    assert not any(finalist.unconfirmed for finalist in result.finalists)
    keys = [(point.recipe, point.batch_size) for point in result.compute_points]
    assert len(keys) == len(set(keys))
