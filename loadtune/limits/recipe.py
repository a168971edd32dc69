"""Decides, per precision, what only concerns compute: memory format, fused optimizer, and whether it is compiled.

In: a training and what it says of the workload. Out: one `RecipeChoice` per precision that is worth going on with, and
a sentence for each one that is not. Recipes are settled before memory is probed, so that the study keeps to the
loader's dimensions.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.records.config import MemoryFormat, OptimizerName, Precision, Recipe
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import ComputePoint, RecipeChoice, TrialFailure, raise_for_the_user
from loadtune.seams import Training
from loadtune.units import counted, ratio_text, seconds_text

MODERATE_BATCH = 256
"""Large enough for a GPU to be the slower side. At 64 images a ResNet-50 step is about as long as the host takes to
launch it, and once no recipe showed a gain there. At 256 channels_last gains 1.4 to 1.9 (H200)."""

STEP_S = 1.0
"""Of one step that nobody asked for, at the most. On two CPU cores that is a moderate batch of 2 for ResNet-50, where a
recipe gains what it gains at 256."""

SMALL, LARGE = 16, 4
"""A batch this many times smaller than the moderate one trains at a fraction of its rate; the compute curve ends at one
this many times larger, where memory and `STEP_S` allow it."""

MIN_GAIN = 1.01
"""A recipe is changed for more than 1% only: below that, one second of timing on a GPU cannot tell."""

HOPELESS = 2.0
"""A precision whose step takes twice as long as fp32's is emulated, not accelerated; it is not looked at further."""

BREAKS_FUSED = ("fp16", "sgd")
"""Fused SGD leaves its momentum unset, or infinite, where a GradScaler skips a step, as it does in the first ones. From
then on every step is skipped and nothing trains (H200, torch 2.11; CPU, torch 2.15). Fused AdamW honours the skip."""


class Recipes(NamedTuple):
    """What `choose_recipes` decided."""

    choices: tuple[RecipeChoice, ...]
    notes: tuple[str, ...]


def choose_recipes(
    training: Training,
    facts: WorkloadFacts,
    precisions: tuple[Precision, ...],
    *,
    optimizer: OptimizerName | None,
    largest: int | None,
    time_budget_s: float,
    memory_format: MemoryFormat | None = None,
    spare_s: Callable[[], float] = lambda: 1e9,
) -> Recipes:
    """Time the candidates on one resident batch each and keep the fastest.

    `largest` bounds the batch (dataset length, ``--max-batch-size``); None: nothing does. `memory_format` is taken
    whatever it gains; None: the faster one is. `optimizer` None: a function of the user's own makes it. `spare_s`:
    seconds that calibrating may still take. Once the first precision is timed, what would take longer is left out.
    Raises WorkloadError where no precision trains.
    """
    point_s = point_seconds(time_budget_s)
    largest = min(largest or MODERATE_BATCH, MODERATE_BATCH)
    smallest = min(1 << (max(2, facts.smallest_batch) - 1).bit_length(), largest)
    choices: list[RecipeChoice] = []
    notes: list[str] = []
    failures: list[TrialFailure] = []
    took_s = 0.0
    for precision in precisions:
        begun_s = spare_s()
        if choices and begun_s < 3 * took_s:  # for this one, and as long for each memory line
            notes.append(
                f"{precision} was left out: timing {choices[0].chosen.precision} took {seconds_text(took_s)}, and "
                f"{seconds_text(max(0.0, begun_s))} were left. Raise --time-budget, or name it alone in --precision."
            )
            continue
        first = choices[0].points[0] if choices else None
        plain = _time_plain(training, precision, smallest, first.batch_size if first else largest, point_s)
        if first is not None:
            plain = _as_quick(training, plain, first, point_s)
        if isinstance(plain, TrialFailure):
            notes.append(f"{precision} was left out: {plain.message}")
            failures.append(plain)
            continue
        plain_s = begun_s - spare_s()
        choice, left_out = _best_recipe(training, facts, plain, point_s, optimizer, memory_format, spare_s, plain_s)
        choices.append(choice)
        took_s = took_s or begun_s - spare_s()
        notes += left_out
    if not choices:
        if failures[0].kind == "oom":
            raise nothing_fits("does not fit in the free memory", failures[0])
        raise_for_the_user(failures[0])
        found = f"No precision trains on this device. Found: {' '.join(notes)}"
        raise WorkloadError(found, failures[0].log_tail or None)
    return Recipes(tuple(choices), tuple(notes))


def _time_plain(
    training: Training, precision: Precision, smallest: int, largest: int, point_s: float
) -> ComputePoint | TrialFailure:
    """Time the plain recipe on the largest power of two up to `largest` whose step takes at most `STEP_S`, and that
    fits. A step that grows with its batch is found from small ones: an emulated precision took 28 s for a step of the
    batch that fp32 trains in 3 s (bf16, two CPU cores)."""
    recipe = Recipe(precision=precision)
    point = scout = training.time_compute(recipe, smallest, 0.0)
    if isinstance(point, TrialFailure):
        return point
    while (size := min(power_of_two_to(point.batch_size * STEP_S / point.quickest_step_s), largest)) > point.batch_size:
        larger = training.time_compute(recipe, size, point_s)
        if isinstance(larger, ComputePoint):
            point = larger
        elif larger.kind == "oom":
            largest = size // 2
        else:
            return larger
    return training.time_compute(recipe, point.batch_size, point_s) if point is scout else point


def _as_quick(
    training: Training, plain: ComputePoint | TrialFailure, first: ComputePoint, point_s: float
) -> ComputePoint | TrialFailure:
    """A failure where samples take hopelessly longer than in the first precision."""
    if isinstance(plain, ComputePoint) and first.quickest_per_s > HOPELESS * plain.quickest_per_s:
        # A reading of a busy machine may be 50 times too low: the quicker of two counts.
        again = training.time_compute(plain.recipe, plain.batch_size, point_s)
        if isinstance(again, ComputePoint) and again.quickest_per_s > plain.quickest_per_s:
            plain = again
        if (slower := first.quickest_per_s / plain.quickest_per_s) > HOPELESS:
            message = f"here a sample takes {slower:.1f} times as long as in {first.recipe.precision}."
            return TrialFailure(kind="unsupported", phase="compute", message=message)
    return plain


def point_seconds(time_budget_s: float) -> float:
    """For timing one recipe."""
    return min(1.0, 0.002 * time_budget_s)


def power_of_two_to(size: float) -> int:
    """The largest that is not above `size`; 1 at the least."""
    return 1 << (int(max(1.0, size)).bit_length() - 1)


def nothing_fits(problem: str, failure: TrialFailure) -> NothingFitsError:
    """With what to do about that."""
    return NothingFitsError(
        f"Even the smallest batch {problem}: {failure.message.rstrip('.')}. "
        "Free memory, choose another device with --device, or use a smaller model or --image-size."
    )


def _best_recipe(
    training: Training,
    facts: WorkloadFacts,
    plain: ComputePoint,
    point_s: float,
    optimizer: OptimizerName | None,
    memory_format: MemoryFormat | None,
    spare_s: Callable[[], float],
    line_s: float,
) -> tuple[RecipeChoice, list[str]]:
    """Climb from the plain recipe: a change is kept if it pays on the best so far. ``line_s``: for the memory line."""
    best, points, notes, precision = plain, [plain], list[str](), plain.recipe.precision
    changes: dict[str, Callable[[Recipe], Recipe]] = {}
    # In the user's own step both are decided. An optimizer of the user's own is fused or not as it was made.
    if precision != "own" and facts.takes_channels_last and memory_format != "contiguous":
        changes["channels_last"] = lambda recipe: replace(recipe, memory_format="channels_last")
    if precision != "own" and optimizer is not None and (precision, optimizer) != BREAKS_FUSED:
        changes["the fused optimizer"] = lambda recipe: replace(recipe, fused_optimizer=True)
    for name, change in changes.items():
        if spare_s() < line_s:
            notes.append(f"{name} was not tried in {precision}, for want of time. Raise --time-budget to try it.")
            continue
        point = training.time_compute(change(best.recipe), plain.batch_size, point_s)
        if isinstance(point, TrialFailure):
            notes.append(f"{name} was left out in {precision}: {point.message}")
            continue
        points.append(point)
        asked_for = memory_format is not None and name == memory_format
        # As fast is enough where it spares a wait for the device in each step, which shows beside a loader.
        spares = best.recipe.waits_each_step and not point.recipe.waits_each_step
        pays = point.quickest_per_s > best.quickest_per_s * (1 / MIN_GAIN if spares else MIN_GAIN)
        best = point if asked_for or pays else best
    return RecipeChoice(chosen=best.recipe, points=tuple(points)), notes


NUM_SIZES = 10
"""Batch sizes that a run compiles in a precision, each for itself: up to half of them in the memory probe, then curve
and trials."""

COMPILE_SHARE = 0.5
"""Of the time that is left, at most, for compiling all of them: what is not measured is not found."""


def compile_recipes(
    training: Training, chosen: Recipes, *, time_budget_s: float, asked_for: bool, left_s: Callable[[], float]
) -> Recipes:
    """Time each recipe once more, compiled; kept if it was asked for, or if it pays and the time allows it.

    The time is looked at when the first one pays, and then decides for all: precisions of which one is compiled and one
    is not for want of time could not be compared. `left_s` tells what is left of the time budget; it may be below 0.
    Raises WorkloadError where one that was asked for does not train.
    """
    choices: list[RecipeChoice] = []
    notes: list[str] = []
    for number, choice in enumerate(chosen.choices):
        best, precision = choice.point, choice.chosen.precision
        point = training.time_compute(replace(best.recipe, compile=True), best.batch_size, point_seconds(time_budget_s))
        if isinstance(point, TrialFailure):
            if asked_for:
                raise WorkloadError(
                    f"--fix compile=on: batch {best.batch_size} does not train with torch.compile in {precision} "
                    f"({point.message.rstrip('.')}). Correct that, or leave compile out of --fix.",
                    point.log_tail or None,
                )
            choices.append(choice)
            notes.append(f"torch.compile is not used in {precision}: {point.message}")
            continue
        gain, left, later = point.quickest_per_s / best.quickest_per_s, max(0.0, left_s()), chosen.choices[number:]
        needed_s = NUM_SIZES * len(later) * (point.compile_s or 0.0)
        pays, is_first = gain > MIN_GAIN, not any(each.chosen.compile for each in choices)
        if pays and is_first and not asked_for and needed_s > COMPILE_SHARE * left:
            choices += [replace(choice, points=(*choice.points, point)), *later[1:]]
            notes.append(
                f"torch.compile is not used: in {precision} it gives {ratio_text(gain)} the rate, but compiling about "
                f"{NUM_SIZES} batch sizes in {counted(len(later), 'precision')} would take {seconds_text(needed_s)} of "
                f"the {seconds_text(left)} left. Raise --time-budget, or use one precision (--precision)."
            )
            break
        kept = point.recipe if asked_for or pays else choice.chosen
        choices.append(RecipeChoice(chosen=kept, points=(*choice.points, point)))
    return Recipes(tuple(choices), (*chosen.notes, *notes))


def compiling_seconds(choices: Sequence[RecipeChoice]) -> float:
    """Predicted for compiling every batch size of a run; 0: none of these recipes is compiled."""
    return NUM_SIZES * sum(choice.point.compile_s or 0.0 for choice in choices)
