"""Decides, per precision, what only concerns compute: memory format and fused optimizer. They are settled before memory
is probed, so that the study keeps to the loader's dimensions.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from loadtune.errors import WorkloadError
from loadtune.records.config import Precision, Recipe, TuneConfig
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import (
    SAME,
    ComputePoint,
    RecipeChoice,
    TrialFailure,
    nothing_fits,
    raise_for_the_user,
)
from loadtune.units import seconds_text

MODERATE_BATCH = 256
"""Large enough for a GPU to be the slower side: a ResNet-50 step on 64 images takes about as long as its launches."""

STEP_S = 1.0
"""Of one step that nobody asked for, at the most. On two CPU cores that is a batch of 2 for ResNet-50."""

SMALL, LARGE = 16, 4
"""A batch this many times smaller than the moderate one trains at a fraction of its rate; the compute curve ends at one
this many times larger, where memory and `STEP_S` allow it."""

HOPELESS = 2.0
"""A precision whose step takes twice as long as fp32's is emulated, not accelerated; it is not looked at further."""

BREAKS_FUSED = ("fp16", "sgd")
"""Fused SGD leaves its momentum unset, or infinite, where a GradScaler skips a step: from then on nothing trains (torch
2.11, 2.15). Fused AdamW honours the skip."""


class Timing(NamedTuple):
    """Steps of this recipe on one resident batch, to be timed for about so many seconds; 0: two steps."""

    recipe: Recipe
    batch_size: int
    seconds: float


R = TypeVar("R")

Timed = ComputePoint | TrialFailure

Timings = Generator[Timing, Timed, R]
"""Asks for timings, is sent the outcome of each, and returns what they say."""


@dataclass(slots=True, kw_only=True)
class Recipes:
    """Candidates are timed on one resident batch each, and the fastest is kept."""

    facts: WorkloadFacts
    config: TuneConfig
    spare_s: Callable[[], float] = lambda: 1e9
    """Seconds that calibrating may still take. Once the first precision is timed, what would take longer is left out.
    """
    choices: list[RecipeChoice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def choose(self) -> Timings[None]:
        """One choice for each precision that trains. Raises WorkloadError where none does."""
        bounds = (MODERATE_BATCH, self.facts.largest_batch, self.config.max_batch_size)
        largest = min(size for size in bounds if size is not None)
        smallest = min(1 << (max(2, self.facts.smallest_batch) - 1).bit_length(), largest)
        failures: list[TrialFailure] = []
        took_s = 0.0
        for precision in self.config.considered or self.facts.precisions:
            begun_s = self.spare_s()
            if self.choices and begun_s < 3 * took_s:  # for this one, and as long for each memory line
                self.notes.append(
                    f"{precision} was left out: timing {self.choices[0].chosen.precision} took {seconds_text(took_s)}, "
                    f"and {seconds_text(max(0.0, begun_s))} were left. Raise --time-budget, or name it alone in "
                    "--precision."
                )
                continue
            first = self.choices[0].points[0] if self.choices else None
            plain = yield from self._time_plain(precision, smallest, first.batch_size if first else largest)
            if first is not None:
                plain = yield from self._as_quick(plain, first)
            if isinstance(plain, TrialFailure):
                self.notes.append(f"{precision} was left out: {plain.message}")
                failures.append(plain)
                continue
            choice = yield from self._best_recipe(plain, line_s=begun_s - self.spare_s())
            took_s = took_s or begun_s - self.spare_s()
            self.choices.append(choice)  # last: what is kept for the final depends on it
        if not self.choices:
            if failures[0].kind == "oom":
                raise nothing_fits("does not fit in the free memory", failures[0])
            raise_for_the_user(failures[0])
            found = f"No precision trains on this device. Found: {' '.join(self.notes)}"
            raise WorkloadError(found, failures[0].log_tail or None)

    @property
    def _timing_s(self) -> float:
        return min(1.0, 0.002 * self.config.time_budget_s)

    def _timed(self, recipe: Recipe, batch_size: int) -> Timing:
        return Timing(recipe, batch_size, self._timing_s)

    def _time_plain(self, precision: Precision, smallest: int, largest: int) -> Timings[Timed]:
        """Time the plain recipe on the largest power of two up to `largest` whose step takes at most `STEP_S`, and that
        fits. It is found from small ones, by a line through the last two: an emulated precision took 28 s for a step
        that fp32 does in 3 s. The first line goes through the origin."""
        point = yield Timing(Recipe(precision=precision), smallest, 0.0)
        if isinstance(point, TrialFailure):
            return point
        slope = point.quickest_step_s / smallest
        while True:
            # Two steps of a busy machine may be equal: then the line is taken to rise by a sixteenth of its mean.
            slope = max(slope, point.quickest_step_s / point.batch_size / 16)
            further = (STEP_S - point.quickest_step_s) / slope
            size = min(power_of_two_to(min(largest, point.batch_size + further)), largest)
            if size <= point.batch_size:
                is_timed = 2 * point.quickest_step_s >= self._timing_s
                return point if is_timed else (yield self._timed(point.recipe, point.batch_size))
            larger = yield Timing(point.recipe, size, 0.0)
            if isinstance(larger, ComputePoint):
                slope = (larger.quickest_step_s - point.quickest_step_s) / (size - point.batch_size)
                point = larger
            elif larger.kind == "oom":
                largest = size // 2
            else:
                return larger

    def _as_quick(self, plain: Timed, first: ComputePoint) -> Timings[Timed]:
        """A failure where samples take hopelessly longer than in the first precision."""
        if isinstance(plain, ComputePoint) and first.quickest_per_s > HOPELESS * plain.quickest_per_s:
            # A reading of a busy machine may be 50 times too low: the quicker of two counts.
            again = yield self._timed(plain.recipe, plain.batch_size)
            if isinstance(again, ComputePoint) and again.quickest_per_s > plain.quickest_per_s:
                plain = again
            if (slower := first.quickest_per_s / plain.quickest_per_s) > HOPELESS:
                message = f"here a sample takes {slower:.1f} times as long as in {first.recipe.precision}."
                return TrialFailure(kind="unsupported", phase="compute", message=message)
        return plain

    def _best_recipe(self, plain: ComputePoint, line_s: float) -> Timings[RecipeChoice]:
        """Climb from the plain recipe: a change is kept if it pays on the best so far. ``line_s``: of a memory line."""
        best, points, precision = plain, [plain], plain.recipe.precision
        optimizer, asked_for = self.config.workload.named_optimizer, self.config.fixed("memory_format")
        changes: dict[str, Callable[[Recipe], Recipe]] = {}
        if self.facts.takes_channels_last and asked_for != "contiguous":
            changes["channels_last"] = lambda recipe: replace(recipe, memory_format="channels_last")
        # An optimizer of the user's own is fused or not as made.
        if optimizer is not None and (precision, optimizer) != BREAKS_FUSED:
            changes["the fused optimizer"] = lambda recipe: replace(recipe, fused_optimizer=True)
        for name, change in changes.items():
            if self.spare_s() < line_s:
                self.notes.append(
                    f"{name} was not tried in {precision}, for want of time. Raise --time-budget to try it."
                )
                continue
            point = yield self._timed(change(best.recipe), plain.batch_size)
            if isinstance(point, TrialFailure):
                self.notes.append(f"{name} was left out in {precision}: {point.message}")
                continue
            points.append(point)
            # As fast is enough where it spares a wait for the device in each step, which shows beside a loader.
            spares = best.recipe.waits_each_step and not point.recipe.waits_each_step
            pays = point.quickest_per_s > best.quickest_per_s * (1 / (1 + SAME) if spares else 1 + SAME)
            best = point if name == asked_for or pays else best
        return RecipeChoice(chosen=best.recipe, points=tuple(points))


def power_of_two_to(size: float) -> int:
    """The largest that is not above `size`; 1 at the least."""
    return 1 << (int(max(1.0, size)).bit_length() - 1)
