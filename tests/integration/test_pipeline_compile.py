"""torch.compile as a part of the recipe, over a fake bench: who is compiled, what it costs, what is said."""

from dataclasses import replace
from pathlib import Path

import pytest
from pipeline_rig import tune_fake

from loadtune.errors import WorkloadError
from loadtune.probe.compute import compute_curve
from loadtune.probe.recipe import choose_recipes
from loadtune.records import ComputePoint, Fixed, Recipe, TrialFailure, TuneConfig
from loadtune.report.export import recipe_code
from loadtune.testing import FakeBench, Surface, fake_facts

BF16 = (Fixed(name="precision", value="bf16"),)
ON = Fixed(name="compile", value=True)


class CannotCompile(FakeBench):
    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        if recipe.compile:
            return TrialFailure(kind="unsupported", phase="warm-up", message="torch.compile failed: no C++ compiler")
        return FakeBench.time_compute(self, recipe, batch_size, seconds)


def chosen(bench: FakeBench, compile: bool | None) -> Recipe:
    facts = fake_facts(bench.surface)
    recipes = choose_recipes(
        bench, facts, ("bf16",), optimizer="sgd", largest=10**6, time_budget_s=300.0, compile=compile
    )
    return recipes.by_precision["bf16"]


@pytest.mark.parametrize(
    ("gain", "compile", "expected"),
    [(1.2, None, True), (1.0, None, False), (0.8, True, True), (1.2, False, False)],
    ids=["pays", "does not pay", "asked for", "not asked for"],
)
def test_it_is_taken_where_it_pays_or_is_asked_for(gain: float, compile: bool | None, expected: bool) -> None:
    recipe = chosen(FakeBench(Surface(compile_gain=gain), noise=0.0), compile)
    assert recipe.compile is expected
    assert recipe.fused_optimizer
    assert recipe.memory_format == "channels_last"


def test_everything_but_yours_is_measured_under_it(tmp_path: Path) -> None:
    bench = FakeBench()
    result = tune_fake(bench, tmp_path, TuneConfig(tune=("compile",), fix=BF16, time_budget_s=3000.0))
    assert all(trial.config.recipe.compile for trial in result.trials)
    assert {point.recipe.compile for point in result.compute_points if point.batch_size > 256} == {True}
    assert result.yours is not None
    assert result.yours.recipe == Recipe()
    assert any(finalist.config == result.yours for finalist in result.finalists)
    assert result.best is not None
    assert result.best.config.recipe.compile
    assert not any("compiled for itself" in note for note in result.notes)
    assert "torch.compile(model, dynamic=False)" in recipe_code(result.best.config, "sgd")


def test_what_compiling_took_is_told_and_kept(tmp_path: Path) -> None:
    told: list[str] = []
    bench = FakeBench(Surface(compile_s=38.0), noise=0.0)
    config = TuneConfig(tune=("compile",), fix=BF16)
    result = tune_fake(bench, tmp_path, config, lambda progress: told.append(progress.message or ""))
    assert "bf16: compiling a batch of 256 took 38 s; 1.17× the rate of the same recipe without" in told
    assert [point.compile_s for point in result.recipes[0].points][-1] == 38.0
    assert result.stage_seconds["recipe"] > 38.0
    assert any("compiled for itself, which took 38 s: little" in note for note in result.notes)


def test_without_being_asked_nothing_is_compiled(tmp_path: Path) -> None:
    result = tune_fake(FakeBench(), tmp_path)
    assert not any(point.recipe.compile for choice in result.recipes for point in choice.points)


def test_a_failure_leaves_the_plain_recipe_and_is_told(tmp_path: Path) -> None:
    result = tune_fake(CannotCompile(), tmp_path, TuneConfig(tune=("compile",), fix=BF16))
    assert result.best is not None
    assert not result.best.config.recipe.compile
    assert "torch.compile was left out in bf16: torch.compile failed: no C++ compiler" in result.notes


def test_a_failure_of_what_was_asked_for_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"--fix compile=on asks: .*no C\+\+ compiler\. Mend that, or leave"):
        tune_fake(CannotCompile(), tmp_path, TuneConfig(fix=(*BF16, ON)))


def test_the_curve_counts_what_a_new_size_takes_to_compile() -> None:
    bench = FakeBench(noise=0.0)
    start = bench.time_compute(Recipe(precision="bf16", compile=True), 64, 1.0)
    assert isinstance(start, ComputePoint)
    curves = {
        compile_s: compute_curve(
            bench,
            [replace(start, compile_s=compile_s)],
            {"bf16": 1024},
            clock=bench.clock,
            until_s=bench.clock.now() + 30.0,
            point_s=1.0,
        )
        for compile_s in (40.0, None)
    }
    assert len(curves[40.0]) == 1 < len(curves[None])
