"""Recipes are changed where it pays, and precisions that do not run are left out aloud."""

from dataclasses import replace

import pytest
from fakes import GIB, FakeTraining, Surface, fake_facts

from loadtune.decide.recipe import Recipes
from loadtune.records.config import Precision, Recipe, TuneConfig, WorkloadSpec
from loadtune.records.measurement import ComputePoint, TrialFailure
from loadtune.seams import drive


def choose(training: FakeTraining, precisions=("fp32", "bf16"), optimizer="sgd"):
    config = TuneConfig(workload=WorkloadSpec(optimizer=optimizer), precisions=precisions, time_budget_s=300.0)
    recipes = Recipes(facts=fake_facts(training.surface), config=config)
    drive(recipes.choose(), lambda asked: training.time_compute(*asked))
    return recipes


def by_precision(recipes: Recipes) -> dict[Precision, Recipe]:
    return {choice.chosen.precision: choice.chosen for choice in recipes.choices}


PLAIN, LAST, FUSED = Recipe(), Recipe(memory_format="channels_last"), Recipe(fused_optimizer=True)
BOTH = replace(LAST, fused_optimizer=True)
CLIMB = [(PLAIN, 2), (PLAIN, 128), (PLAIN, 256), (PLAIN, 256)]
"""To the moderate batch, by two steps each; there the plain recipe is timed for longer."""

TABLE = {
    "both pay": (Surface(), 1e9, [*CLIMB, (LAST, 256), (BOTH, 256)], BOTH),
    "fused does not pay": (Surface(fused_gain=1.0), 1e9, [*CLIMB, (LAST, 256), (BOTH, 256)], LAST),
    "channels_last does not": (Surface(channels_last_gain=1.0), 1e9, [*CLIMB, (LAST, 256), (FUSED, 256)], FUSED),
    "no time for changes": (Surface(), -1.0, CLIMB, PLAIN),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_is_timed_and_what_is_chosen(name: str) -> None:
    surface, left_s, expected, chosen = TABLE[name]
    training, asked = FakeTraining(surface, noise=0.0), []
    config = TuneConfig(workload=WorkloadSpec(optimizer="sgd"), precisions=("fp32",), time_budget_s=300.0)
    recipes = Recipes(facts=fake_facts(surface), config=config, spare_s=lambda: left_s)
    drive(recipes.choose(), lambda each: asked.append(each[:2]) or training.time_compute(*each))
    assert asked == expected
    assert [choice.chosen for choice in recipes.choices] == [chosen]


@pytest.mark.parametrize(("gain", "fused"), [(1.0, {"fp16"}), (0.98, set()), (1.02, {"fp16", "bf16"})])
def test_what_spares_the_scaler_a_wait_is_taken_where_it_costs_nothing(gain: float, fused: set[Precision]) -> None:
    training = FakeTraining(Surface(fused_gain=gain), noise=0.0)
    recipes = by_precision(choose(training, precisions=("fp16", "bf16"), optimizer="adamw"))
    assert {precision for precision, recipe in recipes.items() if recipe.fused_optimizer} == fused


def test_an_emulated_precision_is_dropped_with_its_figure() -> None:
    surface = Surface(compute_per_s={"fp32": 1000.0, "bf16": 100.0}, half_batch=0.0)
    training = FakeTraining(surface, noise=0.0)
    chosen = choose(training)
    assert set(by_precision(chosen)) == {"fp32"}
    assert "bf16 was left out: here a sample takes 10.0 times" in chosen.notes[0]
    # At 128 a step would take 1.28 s.
    assert training.requests[-1] == ("compute", 64)


def test_a_precision_is_compared_with_one_that_ran() -> None:
    class NoSingle(FakeTraining):
        def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
            if recipe.precision == "fp32" and batch_size > 2:
                return TrialFailure(kind="unsupported", phase="compute", message="too large an index")
            return FakeTraining.time_compute(self, recipe, batch_size, seconds)

    surface = Surface(compute_per_s={"fp32": 1000.0, "fp16": 1000.0, "bf16": 100.0})
    chosen = choose(NoSingle(surface), precisions=("fp32", "fp16", "bf16"))
    assert set(by_precision(chosen)) == {"fp16"}
    assert chosen.notes[1].endswith("as long as in fp16.")


@pytest.mark.parametrize(("tight", "sizes"), [("fp32", [8, 8]), ("bf16", [256, 8])])
def test_a_precision_that_does_not_fit_at_the_moderate_batch_is_timed_at_a_smaller_one(
    tight: Precision, sizes: list[int]
) -> None:
    """The first one sets the size for all; a later one steps back alone."""
    surface = Surface(bytes_per_sample={"fp32": 1e6, "fp16": 1e6, "bf16": 1e6, tight: 2e9}, budget_bytes=20 * GIB)
    chosen = choose(FakeTraining(replace(surface, compute_per_s={"fp32": 2000.0, "bf16": 20_000.0})))
    assert [choice.points[0].batch_size for choice in chosen.choices] == sizes
    assert chosen.notes == []


def test_one_slow_second_does_not_hide_a_gain() -> None:
    """Company on the machine while a recipe is timed slows windows down; its fastest one still tells."""

    class Company(FakeTraining):
        def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
            point = FakeTraining.time_compute(self, recipe, batch_size, seconds)
            slowed = [replace(window, seconds=3 * window.seconds) for window in point.windows[1:]]
            changed = recipe.memory_format == "channels_last"
            return replace(point, windows=(point.windows[0], *slowed)) if changed else point

    chosen = choose(Company(noise=0.0))
    assert by_precision(chosen)["fp32"].memory_format == "channels_last"


@pytest.mark.parametrize(("optimizer", "fused"), [("sgd", False), ("adamw", True)])
def test_what_pays_is_taken_but_sgd_is_never_fused_under_a_grad_scaler(optimizer: str, fused: bool) -> None:
    """It would be faster, and train nothing."""
    recipes = by_precision(choose(FakeTraining(), precisions=("fp32", "fp16"), optimizer=optimizer))
    assert recipes["fp32"] == Recipe(precision="fp32", memory_format="channels_last", fused_optimizer=True)
    assert recipes["fp16"].fused_optimizer is fused


class Hiccups(FakeTraining):
    """The first reading of bf16 on a moderate batch is 50 times too low."""

    is_first = True

    def time_compute(self, recipe: Recipe, batch_size: int, seconds: float) -> ComputePoint | TrialFailure:
        point = FakeTraining.time_compute(self, recipe, batch_size, seconds)
        if recipe.precision != "bf16" or batch_size < 64 or not self.is_first or not isinstance(point, ComputePoint):
            return point
        self.is_first = False
        return replace(point, windows=tuple(replace(window, seconds=50 * window.seconds) for window in point.windows))


def test_a_precision_is_not_dropped_for_one_slow_reading() -> None:
    training = Hiccups()
    assert set(by_precision(choose(training))) == {"fp32", "bf16"}
    assert not training.is_first
