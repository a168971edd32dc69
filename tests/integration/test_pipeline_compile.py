"""torch.compile as a part of the recipe, over a fake bench: who is compiled, what it costs, what is said."""

from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune.errors import BenchError, WorkloadError
from loadtune.final.rounds import LOOKS
from loadtune.probe.recipe import Recipes, choose_recipes, compile_recipes
from loadtune.records.config import Fixed, Precision, Recipe, TuneConfig, WorkloadSpec
from loadtune.records.measurement import ComputePoint, TrialFailure
from loadtune.records.telemetry import Progress
from loadtune.report.export import recipe_code
from loadtune.run_file import read_run
from loadtune.testing import FakeBench, Surface, fake_facts

pytestmark = pytest.mark.usefixtures("study_in_memory")

BF16 = (Fixed(name="precision", value="bf16"),)
ON = Fixed(name="compile", value=True)


class CannotCompile(FakeBench):
    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        if recipe.compile:
            return TrialFailure(kind="unsupported", phase="warm-up", message="torch.compile failed: no C++ compiler.")
        return FakeBench.time_compute(self, recipe, batch_size, seconds)


def compiled(
    bench: FakeBench,
    *precisions: Precision,
    left_s: float = 3000.0,
    asked_for: bool = False,
) -> Recipes:
    facts = fake_facts(bench.surface)
    plain = choose_recipes(bench, facts, precisions or ("bf16",), optimizer="sgd", largest=10**6, time_budget_s=left_s)
    until_s = bench.clock.now() + left_s
    return compile_recipes(
        bench, plain, time_budget_s=left_s, asked_for=asked_for, left_s=lambda: until_s - bench.clock.now()
    )


@pytest.mark.parametrize(
    ("gain", "asked_for", "expected"),
    [(1.2, False, True), (1.0, False, False), (0.8, True, True)],
    ids=["pays", "does not pay", "asked for"],
)
def test_it_is_taken_where_it_pays_or_is_asked_for(gain: float, asked_for: bool, expected: bool) -> None:
    recipe = compiled(FakeBench(Surface(compile_gain=gain), noise=0.0), asked_for=asked_for).choices[0].chosen
    assert recipe.compile is expected
    assert recipe.fused_optimizer
    assert recipe.memory_format == "channels_last"


@pytest.mark.parametrize(
    ("left_s", "asked_for", "num_compiled"), [(2000.0, False, 0), (2600.0, False, 3), (2000.0, True, 3)]
)
def test_there_has_to_be_time_for_every_size_of_every_precision(
    left_s: float, asked_for: bool, num_compiled: int
) -> None:
    """Three times ten sizes of 40 s take 1200 s; of what is left half may go into it."""
    bench = FakeBench(noise=0.0)
    recipes = compiled(bench, "fp32", "fp16", "bf16", left_s=left_s, asked_for=asked_for)
    assert sum(choice.chosen.compile for choice in recipes.choices) == num_compiled
    tried = [point.recipe.precision for choice in recipes.choices for point in choice.points if point.recipe.compile]
    assert tried == (["fp32", "fp16", "bf16"] if num_compiled else ["fp32"])
    assert [note.split(":")[0] for note in recipes.notes] == ([] if num_compiled else ["torch.compile is not used"])


def test_what_does_not_pay_is_not_counted_into_the_time_it_would_take() -> None:
    surface = Surface(compile_gain=0.9)
    recipes = compiled(FakeBench(surface, noise=0.0), left_s=60.0)
    assert not recipes.choices[0].chosen.compile
    assert recipes.notes == ()


def test_everything_but_yours_is_measured_under_it(tmp_path: Path) -> None:
    bench = FakeBench()
    result = tune_fake(bench, tmp_path, TuneConfig(tune=("compile",), fix=BF16, time_budget_s=3000.0, num_trials=3))
    assert result.trials
    assert all(trial.config.recipe.compile for trial in result.trials)
    assert {point.recipe.compile for point in result.compute_points if point.batch_size > 256} == {True}
    assert result.yours is not None
    assert result.yours.recipe == Recipe()
    assert any(finalist.config == result.yours for finalist in result.finalists)
    assert result.best is not None
    assert result.best.config.recipe.compile
    assert not any("torch.compile runs" in note for note in result.notes)
    assert "torch.compile(model, dynamic=False)" in recipe_code(result.best.config, WorkloadSpec())


def test_what_compiling_took_is_told_and_kept(tmp_path: Path) -> None:
    told: list[str] = []
    bench = FakeBench(Surface(compile_s=38.0), noise=0.0)
    config = TuneConfig(tune=("compile",), fix=BF16, num_trials=1)
    result = tune_fake(bench, tmp_path, config, lambda progress: told.append(progress.message or ""))
    batch_size = result.recipes[0].points[0].batch_size
    assert any(f"compiling a batch of {batch_size} took 38 s; 1.17×" in message for message in told)
    assert [point.compile_s for point in result.recipes[0].points][-1] == 38.0
    assert result.stage_seconds["calibrate"] > 38.0


def test_the_default_time_budget_is_not_spent_on_compiling(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(Surface(compile_s=38.0), noise=0.0), tmp_path, TuneConfig(tune=("compile",), fix=BF16))
    assert result.best is not None
    assert result.best.half_width_fraction is not None
    assert len(result.trials) > 4
    assert not any(trial.config.recipe.compile for trial in result.trials)
    told = next(note for note in result.notes if note.startswith("torch.compile is not used"))
    assert all(part in told for part in ("bf16", "1.17×", "6 min 20 s", "--time-budget")), told


def test_what_is_asked_for_is_taken_though_little_time_is_left_and_said(tmp_path: Path) -> None:
    config = TuneConfig(fix=(*BF16, ON), time_budget_s=600.0, num_trials=3)
    result = tune_fake(FakeBench(Surface(compile_s=38.0), noise=0.0), tmp_path, config)
    assert result.best is not None
    assert any("torch.compile runs" in note and "6 min 20 s" in note for note in result.notes)


def test_without_being_asked_nothing_is_compiled(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(), tmp_path)
    assert not any(point.recipe.compile for choice in result.recipes for point in choice.points)


def test_a_failure_leaves_the_plain_recipe_and_is_told(tmp_path: Path) -> None:
    result = tune_fake(CannotCompile(), tmp_path, TuneConfig(tune=("compile",), fix=BF16, num_trials=3))
    assert result.best is not None
    assert not result.best.config.recipe.compile
    assert "torch.compile is not used in bf16: torch.compile failed: no C++ compiler." in result.notes


def test_a_failure_of_what_was_asked_for_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"--fix compile=on: .*no C\+\+ compiler"):
        tune_fake(CannotCompile(), tmp_path, TuneConfig(fix=(*BF16, ON)))


class Killed(BaseException):
    """As SIGKILL: nothing in the tuner handles it."""


def cut_in_the_confirmation(folder: Path, config: TuneConfig) -> None:
    """A run whose trials are all there, and of its confirmation nothing."""

    def listen(progress: Progress) -> None:
        if progress.stage == "confirm" and progress.current_samples_per_s:
            raise Killed

    with pytest.raises(Killed):
        tune_fake(FakeBench(), folder, config, listen)


def test_a_resumed_confirmation_compiles_first_and_has_its_rounds(tmp_path: Path) -> None:
    """A fresh bench has compiled nothing: within the runs that would leave one each, and no interval."""
    config = TuneConfig(fix=(*BF16, ON), time_budget_s=600.0, num_trials=4)
    cut_in_the_confirmation(tmp_path, config)
    known = read_run(tmp_path)
    assert not known.confirmed
    result = tune_fake(FakeBench(seed=1), tmp_path, config, resume=True)
    compiled = [finalist for finalist in result.finalists if finalist.config.recipe.compile]
    assert len({finalist.config.batch_size for finalist in compiled}) > 1
    assert all(len(finalist.runs) >= 2 for finalist in result.finalists)
    assert max(run.seconds for finalist in compiled for run in finalist.runs) < 40.0
    assert result.best is not None
    assert result.best.half_width_fraction is not None


def test_a_confirmation_that_was_told_compiles_nothing_anew(tmp_path: Path) -> None:
    config = TuneConfig(fix=(*BF16, ON), time_budget_s=600.0, num_trials=4)
    finished = tune_fake(FakeBench(noise=0.001, between_runs=0.001), tmp_path, config)
    assert max(len(finalist.runs) for finalist in finished.finalists) == LOOKS[0]  # the answer was sure
    bench = FakeBench(seed=1)
    again = tune_fake(bench, tmp_path, config, resume=True)
    assert bench.requests == []
    assert again.best == finished.best


def test_what_cannot_be_compiled_ahead_is_told_where_it_is_timed(tmp_path: Path) -> None:
    class Dies(FakeBench):
        def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
            raise BenchError("does not start any more")

    config = TuneConfig(fix=(*BF16, ON), time_budget_s=600.0, num_trials=2)
    cut_in_the_confirmation(tmp_path, config)
    result = tune_fake(Dies(seed=1), tmp_path, config, resume=True)
    assert result.best is not None
