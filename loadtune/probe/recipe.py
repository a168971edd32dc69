"""Decides, per precision, what only concerns compute: memory format and fused optimizer.

In: a bench and what it says of the workload. Out: one `RecipeChoice` per precision that is worth going on with, and a
sentence for each one that is not. A module of its own because a recipe is settled before memory is probed, in seconds,
so that the study keeps to the loader's dimensions.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.records import ComputePoint, Precision, Recipe, RecipeChoice, TrialFailure, WorkloadFacts
from loadtune.seams import Bench

MODERATE_BATCH = 64
"""Large enough to show what a recipe does to a GPU (FACTS: channels_last gains 1.3 to 1.4 at 64), small enough to be
quick and to fit everywhere."""

STEP_SHARE = 0.002
"""Of the time budget, for one step of the moderate batch: some 20 such steps are timed, 4% of the budget in all."""

MIN_GAIN = 1.01
"""A recipe is changed for more than 1% only: below that, one second of timing on a GPU cannot tell."""

HOPELESS = 2.0
"""A precision whose step takes twice as long as fp32's is emulated, not accelerated; it is not looked at further."""


@dataclass(frozen=True, slots=True)
class Recipes:
    """What `choose_recipes` decided."""

    choices: tuple[RecipeChoice, ...]
    notes: tuple[str, ...]

    @property
    def by_precision(self) -> dict[Precision, Recipe]:
        return {choice.chosen.precision: choice.chosen for choice in self.choices}


def choose_recipes(
    bench: Bench,
    facts: WorkloadFacts,
    precisions: tuple[Precision, ...],
    *,
    largest: int,
    time_budget_s: float,
) -> Recipes:
    """Time the candidates on one resident batch each and keep the fastest.

    `largest` bounds the batch (dataset length, ``--max-batch-size``). Raises WorkloadError where no precision trains.
    """
    batch_size, point_s = _moderate_batch(bench, facts, largest, time_budget_s)
    choices: list[RecipeChoice] = []
    notes: list[str] = []
    reference: ComputePoint | None = None
    for precision in precisions:
        plain = _time_plain(bench, precision, batch_size, facts.min_batch_size, point_s)
        if isinstance(plain, TrialFailure):
            notes.append(f"{precision} was left out: {plain.message}")
            continue
        reference = reference or plain
        slower = reference.samples_per_s / plain.samples_per_s
        if slower > HOPELESS:
            than = reference.recipe.precision
            notes.append(f"{precision} was left out: here a step takes {slower:.1f} times as long as in {than}.")
            continue
        choices.append(_best_recipe(bench, facts, plain, point_s))
    if not choices:
        raise WorkloadError(f"No precision trains on this device. Found: {' '.join(notes)}")
    return Recipes(tuple(choices), tuple(notes))


def _time_plain(
    bench: Bench, precision: Precision, batch_size: int, smallest: int, point_s: float
) -> ComputePoint | TrialFailure:
    """Time the plain recipe at this size, or at half of it, and so on, where this precision does not fit."""
    plain = bench.time_compute(Recipe(precision=precision), batch_size, point_s)
    while isinstance(plain, TrialFailure) and plain.kind == "oom" and batch_size // 2 >= smallest:
        batch_size //= 2
        plain = bench.time_compute(Recipe(precision=precision), batch_size, point_s)
    return plain


def _moderate_batch(bench: Bench, facts: WorkloadFacts, largest: int, time_budget_s: float) -> tuple[int, float]:
    """The batch whose step is affordable, found from one timing of the smallest, and the seconds a point may take."""
    smallest = min(max(2, facts.min_batch_size), largest)
    scout = bench.time_compute(Recipe(precision=facts.precisions[0]), smallest, 0.0)
    if isinstance(scout, TrialFailure):
        if scout.kind == "oom":
            raise NothingFitsError(
                f"Not even a batch of {smallest} trains in the memory that is free: {scout.message} "
                "Free some memory, pick another device with --device, or take a smaller model or --image-size."
            )
        raise WorkloadError(f"A batch of {smallest} cannot be trained: {scout.message}", scout.log_tail or None)
    affordable = STEP_SHARE * time_budget_s / (scout.step_s / smallest)
    batch_size = smallest
    while batch_size * 2 <= min(MODERATE_BATCH, largest, affordable):
        batch_size *= 2
    return batch_size, min(1.0, STEP_SHARE * time_budget_s)


def _best_recipe(bench: Bench, facts: WorkloadFacts, plain: ComputePoint, point_s: float) -> RecipeChoice:
    """Climb from the plain recipe: each change is tried on the best so far and kept if it pays."""
    best, points = plain, [plain]
    for change in _changes(facts):
        point = bench.time_compute(change(best.recipe), plain.batch_size, point_s)
        if isinstance(point, ComputePoint):
            points.append(point)
            best = point if point.samples_per_s > MIN_GAIN * best.samples_per_s else best
    return RecipeChoice(chosen=best.recipe, points=tuple(points))


def _changes(facts: WorkloadFacts) -> list[Callable[[Recipe], Recipe]]:
    changes: list[Callable[[Recipe], Recipe]] = []
    if len(facts.input_shape) == 3:  # batches of (C, H, W) samples are the 4-D tensors that channels_last is for
        changes.append(lambda recipe: replace(recipe, memory_format="channels_last"))
    changes.append(lambda recipe: replace(recipe, fused_optimizer=True))
    return changes
