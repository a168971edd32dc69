"""Decides whether the chosen recipes are trained compiled by torch.compile: where it pays, and where there is time.

In: a bench and recipes that were chosen without it. Out: the same, compiled or not, with a sentence for what was left
out. A module of its own because no other part of a recipe takes time again at each batch size that comes later.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from loadtune.errors import WorkloadError
from loadtune.probe.recipe import MIN_GAIN, Recipes, point_seconds
from loadtune.records import ComputePoint, RecipeChoice, TrialFailure
from loadtune.seams import Bench
from loadtune.units import ratio_text, seconds_text

NUM_SIZES = 10
"""Batch sizes that a run compiles in a precision, each for itself: up to half of them in the memory probe, then curve
and trials."""

COMPILE_SHARE = 0.5
"""Of the time that is left, at most, for compiling all of them: what is not measured is not found."""


def compile_recipes(
    bench: Bench, chosen: Recipes, *, time_budget_s: float, asked_for: bool, left_s: Callable[[], float]
) -> Recipes:
    """Time each recipe once more, compiled; kept if it was asked for, or if it pays and the time allows it.

    The time is looked at before the first that is kept, and then decides for all: precisions of which one is compiled
    and one is not for want of time could not be compared. `left_s` tells what is left of the time budget; it may be
    below 0. Raises WorkloadError where one that was asked for does not train.
    """
    choices: list[RecipeChoice] = []
    notes: list[str] = []
    for number, choice in enumerate(chosen.choices, start=1):
        best, later = choice.point, chosen.choices[number:]
        point = bench.time_compute(replace(best.recipe, compile=True), best.batch_size, point_seconds(time_budget_s))
        if isinstance(point, TrialFailure):
            choices.append(choice)
            notes.append(_failed(best, point, asked_for=asked_for))
            continue
        pays = point.quickest_per_s > MIN_GAIN * best.quickest_per_s
        tried = RecipeChoice(
            chosen=point.recipe if asked_for or pays else choice.chosen, points=(*choice.points, point)
        )
        if not (asked_for or any(each.chosen.compile for each in choices)):
            num_compiled, left = pays + len(later), max(0.0, left_s())
            needed_s = NUM_SIZES * num_compiled * (point.compile_s or 0.0)
            if needed_s > COMPILE_SHARE * left:
                choices += [replace(tried, chosen=choice.chosen), *later]
                notes.append(_too_long(best, point, num_compiled, needed_s, left))
                break
        choices.append(tried)
    return Recipes(tuple(choices), (*chosen.notes, *notes))


def compiling_seconds(choices: Sequence[RecipeChoice]) -> float:
    """Predicted for compiling every batch size of a run; 0: none of these recipes is compiled."""
    return NUM_SIZES * sum(choice.point.compile_s or 0.0 for choice in choices)


def _failed(best: ComputePoint, failure: TrialFailure, *, asked_for: bool) -> str:
    if asked_for:
        raise WorkloadError(
            f"--fix compile=on: batch {best.batch_size} does not train with torch.compile in {best.recipe.precision} "
            f"({failure.message.rstrip('.')}). Correct that, or leave compile out of --fix.",
            failure.log_tail or None,
        )
    return f"torch.compile is not used in {best.recipe.precision}: {failure.message}"


def _too_long(best: ComputePoint, point: ComputePoint, num_compiled: int, needed_s: float, left_s: float) -> str:
    gain = ratio_text(point.quickest_per_s / best.quickest_per_s)
    each, fewer = ("", "")
    if num_compiled > 1:
        each, fewer = f" in each of {num_compiled} precisions", ", or use a single precision (--precision),"
    return (
        f"torch.compile is not used: in {best.recipe.precision} it gives {gain} the rate, but compiling about "
        f"{NUM_SIZES} batch sizes{each} would take {seconds_text(needed_s)} of the {seconds_text(left_s)} left. Raise "
        f"--time-budget{fewer} to make room for it."
    )
