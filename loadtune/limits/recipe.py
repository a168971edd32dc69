"""Decides, per precision, what only concerns compute: memory format, fused optimizer, and whether it is compiled.

In: a training and what it says of the workload. Out: one `RecipeChoice` per precision that is worth going on with, and
a sentence for each one that is not. Recipes are settled before memory is probed, so that the study keeps to the
loader's dimensions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.records.config import MemoryFormat, OptimizerName, Precision, Recipe
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import ComputePoint, RecipeChoice, TrialFailure, raise_for_the_user
from loadtune.records.memory import BatchTry
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

EMULATED = 4.0
"""The same of one step of a small batch, which tells less."""

AGAIN_S = 2.0
"""A step that took longer is not run again: no kernel loads that long."""

BREAKS_FUSED: tuple[tuple[Precision, OptimizerName], ...] = (("fp16", "sgd"),)
"""Fused SGD leaves its momentum unset, or infinite, where a GradScaler skips a step, as it does in the first ones. From
then on every step is skipped and nothing trains (H200, torch 2.11; CPU, torch 2.15). Fused AdamW honours the skip."""


@dataclass(frozen=True, slots=True)
class Recipes:
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
) -> Recipes:
    """Time the candidates on one resident batch each and keep the fastest.

    `largest` bounds the batch (dataset length, ``--max-batch-size``); None: nothing does. `memory_format` is taken
    whatever it gains; None: the faster one is. `optimizer` None: a function of the user's own makes it. Raises
    WorkloadError where no precision trains.
    """
    point_s = point_seconds(time_budget_s)
    batch_size, moderate = _moderate_batch(training, facts, largest, point_s)
    known = {} if moderate is None else {moderate.recipe.precision: moderate}
    choices: list[RecipeChoice] = []
    notes: list[str] = []
    failures: list[TrialFailure] = []
    for precision in precisions:
        first = choices[0].points[0] if choices else None
        if first is not None and (slower := _step_slower(training, facts, precision, first)) > EMULATED:
            notes.append(_too_slow(precision, first, slower))
            continue
        plain = known.get(precision) or _time_plain(training, precision, batch_size, facts.smallest_batch, point_s)
        if isinstance(plain, TrialFailure):
            notes.append(f"{precision} was left out: {plain.message}")
            failures.append(plain)
            continue
        if first is not None and first.quickest_per_s > HOPELESS * plain.quickest_per_s:
            # A reading of a busy machine may be 50 times too low: the quicker of two counts.
            again = training.time_compute(plain.recipe, plain.batch_size, point_s)
            if isinstance(again, ComputePoint) and again.quickest_per_s > plain.quickest_per_s:
                plain = again
            if (slower := first.quickest_per_s / plain.quickest_per_s) > HOPELESS:
                notes.append(_too_slow(precision, first, slower))
                continue
        choice, left_out = _best_recipe(training, facts, plain, point_s, optimizer, memory_format)
        choices.append(choice)
        notes += left_out
    if not choices:
        for failure in failures:
            raise_for_the_user(failure)
        raise WorkloadError(f"No precision trains on this device. Found: {' '.join(notes)}")
    return Recipes(tuple(choices), tuple(notes))


def _too_slow(precision: Precision, first: ComputePoint, slower: float) -> str:
    return f"{precision} was left out: here a step takes {slower:.1f} times as long as in {first.recipe.precision}."


def _step_slower(training: Training, facts: WorkloadFacts, precision: Precision, first: ComputePoint) -> float:
    """Times as long as in the first one's precision a step of a small batch takes; 0: one of them failed.

    An emulated precision takes minutes at the moderate batch: 28 s a step where fp32 took 3 s (bf16, two CPU cores).
    In the first step a GPU loads the precision's kernels (H200: 6 and 7 times as long as in fp32), a step may be
    disturbed, and the first ones of fp16 are skipped. So what looks too slow is looked at again, where that is short.
    """
    size, slower = min(first.batch_size, max(2, facts.smallest_batch)), 0.0
    recipes = (Recipe(precision=precision), Recipe(precision=first.recipe.precision))
    for num_steps in (2, 5):
        tries = [BatchTry(recipe=recipe, batch_size=size, num_steps=num_steps) for recipe in recipes]
        plain, usual = (training.try_batch(each).step_s for each in tries)
        slower = plain / usual if plain and usual else 0.0
        if slower <= EMULATED or (plain or 0.0) > AGAIN_S:
            break
    return slower


def _time_plain(
    training: Training, precision: Precision, batch_size: int, smallest: int, point_s: float
) -> ComputePoint | TrialFailure:
    """Time the plain recipe at this size, or at half of it, and so on, where this precision does not fit."""
    plain = training.time_compute(Recipe(precision=precision), batch_size, point_s)
    while isinstance(plain, TrialFailure) and plain.kind == "oom" and batch_size // 2 >= smallest:
        batch_size //= 2
        plain = training.time_compute(Recipe(precision=precision), batch_size, point_s)
    return plain


def point_seconds(time_budget_s: float) -> float:
    """For timing one recipe."""
    return min(1.0, 0.002 * time_budget_s)


def _moderate_batch(
    training: Training, facts: WorkloadFacts, largest: int | None, point_s: float
) -> tuple[int, ComputePoint | None]:
    """The largest power of two up to `MODERATE_BATCH` whose step takes at most `STEP_S`, and its timing. None: it was
    not timed long enough, or failed."""
    largest = min(largest or MODERATE_BATCH, MODERATE_BATCH)
    point = scout = _scout(training, facts, min(1 << (max(2, facts.smallest_batch) - 1).bit_length(), largest))
    while (size := min(power_of_two_to(point.batch_size * STEP_S / point.quickest_step_s), largest)) > point.batch_size:
        larger = _time_plain(training, point.recipe.precision, size, point.batch_size, point_s)
        if isinstance(larger, TrialFailure):
            return size, None  # not for lack of memory: another precision may well train it
        point = larger
        if point.batch_size < size:
            break
    return point.batch_size, None if point is scout else point


def power_of_two_to(size: float) -> int:
    """The largest that is not above `size`; 1 at the least."""
    return 1 << (int(max(1.0, size)).bit_length() - 1)


def _scout(training: Training, facts: WorkloadFacts, smallest: int) -> ComputePoint:
    scout = training.time_compute(Recipe(precision=facts.precisions[0]), smallest, 0.0)
    if isinstance(scout, ComputePoint):
        return scout
    if scout.kind == "oom":
        raise NothingFitsError(
            f"Even the smallest batch does not fit in the free memory: {scout.message.rstrip('.')}. "
            "Free memory, choose another device with --device, or use a smaller model or --image-size."
        )
    raise_for_the_user(scout)
    raise WorkloadError(
        f"Batch size {smallest} does not train: {scout.message.rstrip('.')}. Check samples, model and loss.",
        scout.log_tail or None,
    )


def _best_recipe(
    training: Training,
    facts: WorkloadFacts,
    plain: ComputePoint,
    point_s: float,
    optimizer: OptimizerName | None,
    memory_format: MemoryFormat | None,
) -> tuple[RecipeChoice, list[str]]:
    """Climb from the plain recipe: each change is tried on the best so far and kept if it pays."""
    best, points, notes = plain, [plain], []
    for name, change in _changes(facts, plain.recipe.precision, optimizer, memory_format).items():
        point = training.time_compute(change(best.recipe), plain.batch_size, point_s)
        if isinstance(point, TrialFailure):
            notes.append(f"{name} was left out in {plain.recipe.precision}: {point.message}")
            continue
        points.append(point)
        asked_for = memory_format is not None and point.recipe.memory_format != best.recipe.memory_format
        # As fast is enough where it spares a wait for the device in each step, which shows beside a loader.
        spares = best.recipe.waits_each_step and not point.recipe.waits_each_step
        pays = point.quickest_per_s > best.quickest_per_s * (1 / MIN_GAIN if spares else MIN_GAIN)
        best = point if asked_for or pays else best
    return RecipeChoice(chosen=best.recipe, points=tuple(points)), notes


def _changes(
    facts: WorkloadFacts, precision: Precision, optimizer: OptimizerName | None, memory_format: MemoryFormat | None
) -> dict[str, Callable[[Recipe], Recipe]]:
    """None where the user's own step decides. An optimizer of the user's own is fused or not as it was made."""
    changes: dict[str, Callable[[Recipe], Recipe]] = {}
    if precision == "own":
        return changes
    if facts.takes_channels_last and memory_format != "contiguous":
        changes["channels_last"] = lambda recipe: replace(recipe, memory_format="channels_last")
    if optimizer is not None and (precision, optimizer) not in BREAKS_FUSED:
        changes["the fused optimizer"] = lambda recipe: replace(recipe, fused_optimizer=True)
    return changes


NUM_SIZES = 10
"""Batch sizes that a run compiles in a precision, each for itself: up to half of them in the memory probe, then curve
and trials."""

COMPILE_SHARE = 0.5
"""Of the time that is left, at most, for compiling all of them: what is not measured is not found."""


def compile_recipes(
    training: Training, chosen: Recipes, *, time_budget_s: float, asked_for: bool, left_s: Callable[[], float]
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
        point = training.time_compute(replace(best.recipe, compile=True), best.batch_size, point_seconds(time_budget_s))
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
                gain = ratio_text(point.quickest_per_s / best.quickest_per_s)
                notes.append(
                    f"torch.compile is not used: in {best.recipe.precision} it gives {gain} the rate, but compiling "
                    f"about {NUM_SIZES} batch sizes in {counted(num_compiled, 'precision')} would take "
                    f"{seconds_text(needed_s)} of the {seconds_text(left)} left. Raise --time-budget, or use one "
                    "precision (--precision)."
                )
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
