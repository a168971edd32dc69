"""torch.compile as a part of the recipe, over a fake training: who is compiled, what it costs, what is said."""

from pathlib import Path

import pytest
from fakes import FakeTraining, Surface
from pipeline_rig import killed, runs_in, tune_fake

from loadtune.errors import TrainingError, WorkloadError
from loadtune.records.config import Fixed, Recipe, TuneConfig
from loadtune.records.measurement import ComputePoint, TrialFailure
from loadtune.report.forms import step_code
from loadtune.run.state import read_run

BF16 = (Fixed(name="precision", value="bf16"),)
ON = Fixed(name="compile", value=True)


class CannotCompile(FakeTraining):
    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        if recipe.compile:
            return TrialFailure(kind="unsupported", phase="warm-up", message="torch.compile failed: no C++ compiler.")
        return FakeTraining.time_compute(self, recipe, batch_size, seconds)


def test_everything_but_yours_is_measured_under_it(tmp_path: Path) -> None:
    training = FakeTraining()
    result = tune_fake(training, tmp_path, TuneConfig(tune=("compile",), fix=BF16, time_budget_s=3000.0, num_trials=3))
    assert result.trials
    assert all(trial.config.recipe.compile for trial in result.trials)
    assert {point.recipe.compile for point in result.compute_points if point.batch_size > 256} == {True}
    assert result.yours.recipe == Recipe()
    assert any(finalist.config == result.yours for finalist in result.finalists)
    assert result.best.config.recipe.compile
    assert not any("torch.compile runs" in note for note in result.notes)
    assert "torch.compile(model, dynamic=False)" in step_code(result, result.best.config)


def test_the_default_time_budget_is_not_spent_on_compiling(tmp_path: Path) -> None:
    result = tune_fake(
        FakeTraining(Surface(compile_s=38.0), noise=0.0), tmp_path, TuneConfig(tune=("compile",), fix=BF16)
    )
    assert result.best.half_width_fraction is not None
    assert len(result.trials) > 4
    assert not any(trial.config.recipe.compile for trial in result.trials)
    told = next(note for note in result.notes if note.startswith("torch.compile is not used"))
    assert all(part in told for part in ("bf16", "1.17×", "6 min 20 s", "--time-budget")), told


def test_a_failure_leaves_the_plain_recipe_and_is_told(tmp_path: Path) -> None:
    result = tune_fake(CannotCompile(), tmp_path, TuneConfig(tune=("compile",), fix=BF16, num_trials=3))
    assert not result.best.config.recipe.compile
    assert "torch.compile is not used in bf16: torch.compile failed: no C++ compiler." in result.notes


def test_a_failure_of_what_was_asked_for_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"--fix compile=on: .*no C\+\+ compiler"):
        tune_fake(CannotCompile(), tmp_path, TuneConfig(fix=(*BF16, ON)))


class Dies(FakeTraining):
    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        raise TrainingError("does not start any more")


@pytest.mark.parametrize("kind", [FakeTraining, Dies])
def test_a_resumed_confirmation_compiles_first_as_far_as_it_can_and_has_its_rounds(
    tmp_path: Path, kind: type[FakeTraining]
) -> None:
    """A fresh training has compiled nothing: within the runs that would leave one each, and no interval."""
    config = TuneConfig(fix=(*BF16, ON), time_budget_s=600.0, num_trials=4)
    killed(tmp_path, runs_in("confirm"), config)
    assert not read_run(tmp_path).confirmed
    result = tune_fake(kind(seed=1), tmp_path, config, resume=True)
    assert any("torch.compile runs" in note and "6 min 40 s" in note for note in result.notes)
    if kind is Dies:
        return
    compiled = [finalist for finalist in result.finalists if finalist.config.recipe.compile]
    assert len({finalist.config.batch_size for finalist in compiled}) > 1
    assert all(len(finalist.runs) >= 2 for finalist in result.finalists)
    assert max(run.seconds for finalist in compiled for run in finalist.runs) < 40.0
    assert result.best.half_width_fraction is not None
