"""The compute curve: samples/s with the batch already on the device, over batch size, per precision.

In: a bench, recipes and their ceilings. Out: `ComputePoint`s up to saturation.
"""

from collections.abc import Mapping, Sequence

from loadtune.records import ComputePoint, Precision, Recipe
from loadtune.seams import Bench, Clock

SMALL = 16
"""How many times smaller than the first batch one more is: there a step takes as long as it takes to launch it, which
no larger batch shows."""

SATURATED = 1.03
"""Doubling the batch gained under 3%: larger ones gain 2 to 8% more in all (H200, ResNet-50), at twice the memory."""


def compute_curve(
    bench: Bench,
    known: Sequence[ComputePoint],
    largest: Mapping[Precision, int],
    *,
    smallest: int,
    clock: Clock,
    until_s: float,
    point_s: float,
) -> tuple[ComputePoint, ...]:
    """Double the batch from each known point until the rate no longer grows, the ceiling is reached or time is up.
    Then one small batch each.

    `known` holds one point per precision, under its chosen recipe. The fastest precision goes first, so that it is
    complete when time is short.
    """
    points: list[ComputePoint] = []
    for start in sorted(known, key=lambda p: -p.samples_per_s):
        points.append(start)
        points += _climb(bench, start, largest[start.recipe.precision], clock, until_s, point_s)
    for start in known:
        size = max(smallest, start.batch_size // SMALL)
        if size < start.batch_size and start.compile_s is None and clock.now() < until_s:
            point = bench.time_compute(start.recipe, size, point_s / 2)
            points += [point] if isinstance(point, ComputePoint) else []
    return tuple(points)


def _climb(
    bench: Bench, start: ComputePoint, largest: int, clock: Clock, until_s: float, point_s: float
) -> list[ComputePoint]:
    found: list[ComputePoint] = []
    last = start
    while last.batch_size < largest:
        size = min(largest, last.batch_size * 2)
        steps_s = 4 * last.step_s * size / last.batch_size  # two steps to warm, two to time
        if clock.now() + (start.compile_s or 0.0) + steps_s > until_s:  # a new size is compiled anew
            break
        point = bench.time_compute(start.recipe, size, point_s)
        if not isinstance(point, ComputePoint):
            break
        found.append(point)
        if point.samples_per_s < SATURATED * last.samples_per_s:
            break
        last = point
    return found


def knee(points: Sequence[ComputePoint], recipe: Recipe) -> ComputePoint:
    """The smallest batch that nearly reaches the recipe's fastest rate: larger ones mostly cost memory."""
    own = [p for p in points if p.recipe == recipe]
    top = max(p.samples_per_s for p in own)
    return min((p for p in own if p.samples_per_s >= top / SATURATED), key=lambda p: p.batch_size)


def reaches(points: Sequence[ComputePoint], recipe: Recipe, largest: int) -> bool:
    """Whether the recipe's curve goes on to saturation, or to `largest`: if not, its fastest rate is no ceiling."""
    own = _curve(points, recipe)
    return bool(own) and (own[-1].batch_size >= largest or _saturated(own))


def _curve(points: Sequence[ComputePoint], recipe: Recipe) -> list[ComputePoint]:
    return sorted((p for p in points if p.recipe == recipe), key=lambda p: p.batch_size)


def _saturated(own: Sequence[ComputePoint]) -> bool:
    return len(own) > 1 and own[-1].samples_per_s < SATURATED * own[-2].samples_per_s
