"""The first configurations of a study: the user's own, and what the measurements so far predict. Pure."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from loadtune.records import ComputePoint, Dimension, Measurement, Precision, Setting, TrialConfig, TrialOrigin
from loadtune.study.evidence import batches_stand_unpinned
from loadtune.study.space import SearchSpace, nearest_rung

HEADROOM = 1.2
"""More workers than the arithmetic asks for: a loader alone was seen up to a fifth slower under training."""

NEARLY_FREE = 1.5
"""Times what a step takes for a sample that making it may take: one process that does both then trains at two fifths of
the step's rate or more, and what workers make is handed over at a cost that is in no figure yet. An MLP on vectors in
memory, 2 µs beside 1.6 µs, trained 133,000/s without workers on two cores, 92,000/s by two."""

KEPT_UP = 0.05
"""A data wait below this says that the workers kept up with the step."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A configuration to try before the sampler is asked."""

    origin: TrialOrigin
    config: TrialConfig
    follows: tuple[TrialConfig, TrialConfig] | None = None
    """The corners of its own precision and of another, in which it is tried where that corner was clearly faster."""
    where_short: tuple[TrialConfig, float] | None = None
    """Tried only where this one, followed likewise, scored less than so much."""


def seed_configs(
    space: SearchSpace,
    yours: TrialConfig | None,
    fastest: ComputePoint,
    sample_s: float,
    *,
    knee_batch_size: int | None = None,
    kept_batch_size: int | None = None,
    warm: TrialConfig | None = None,
    other_precisions: Sequence[ComputePoint] = (),
    as_fast: Collection[Precision] = (),
    unhindered: Precision | None = None,
    enough_per_s: float | None = None,
    tuned: Sequence[Dimension] = (),
) -> list[Seed]:
    """The user's own configuration, another machine's winner, the corner the bounds predict, and what lies around it.

    `fastest` is the fastest precision's compute point at the smallest batch that nearly saturates it, where the search
    starts; `knee_batch_size` where its curve is flat, or may be where it was cut short. `sample_s` is what one
    sample costs one worker.
    `kept_batch_size` is the user's own where a winner is wanted at it: the search, which looks for the fastest of all,
    seldom comes by it. `other_precisions` are likewise, where the fastest one need not be the best; those
    in `as_fast` computed as fast where both were timed, and are tried at the larger batch. `unhindered` may train
    faster than the fastest one, whose steps wait for the device, and is tried in its corner; what follows is tried in
    whichever did. Where all workers train fewer than `enough_per_s` in the corner, the largest batch is tried by all of
    them: what a batch costs beside its samples is then left to spare. None: it is not. Each dimension of `tuned`, which
    the user asked for, is tried at another value in the corner.
    """
    precision, pin, most = fastest.recipe.precision, space.pin_memory[-1], space.num_workers[-1]
    batch_size = _at_most(space, fastest.batch_size, precision)
    larger = _at_most(space, max(knee_batch_size or 0, 2 * batch_size), precision)
    enough = enough_workers(space, fastest.samples_per_s, sample_s)
    largest = _at_most(space, space.batch_sizes[-1], precision)
    between = nearest_rung(space.num_workers, round(math.sqrt(max(1, enough) * most)))
    corner = space.config(batch_size, enough, pin, precision)
    other = space.in_precision(corner, unhindered) if unhindered else None
    follows = None if other is None else (corner, other)
    corners = [
        corner,
        *([] if other is None else [other]),
        *(_corner(space, point, sample_s) for point in other_precisions),
    ]
    around = [
        *([space.config(kept_batch_size, most, pin, precision)] if kept_batch_size in space.batch_sizes else []),
        space.config(batch_size, most, pin, precision),
        space.config(larger, between, pin, precision),
    ]
    short = None if enough_per_s is None or not most else (space.config(batch_size, most, pin, precision), enough_per_s)
    return _that_fit(
        space,
        [
            *_known(space, yours, warm, fastest),
            *(Seed("seed", config) for config in corners),
            *(Seed("seed", config, follows) for config in around),
            *([Seed("seed", space.config(largest, most, pin, precision), follows, short)] if short else []),
            *(Seed("seed", space.config(_at_most(space, larger, each), between, pin, each)) for each in as_fast),
            *_tuned(space, corner, follows, tuned),
            Seed("seed", _conservative(space, batch_size, fastest, sample_s), follows),
        ],
    )


def _known(
    space: SearchSpace, yours: TrialConfig | None, warm: TrialConfig | None, fastest: ComputePoint
) -> list[Seed]:
    """What others settled on: the user, and another machine's run, in a precision that there is here."""
    known = [] if yours is None else [Seed("yours", yours)]
    if yours is not None and not yours.loader.keeps_workers:  # the same with workers that outlive an epoch
        known.append(Seed("seed", space.clip(yours)))
    if warm is not None:
        here = warm if warm.precision in space.recipes else replace(warm, recipe=fastest.recipe)
        known.append(Seed("warm start", space.clip(here)))
    return known


def _tuned(
    space: SearchSpace,
    corner: TrialConfig,
    follows: tuple[TrialConfig, TrialConfig] | None,
    tuned: Sequence[Dimension],
) -> list[Seed]:
    """The corner with one of these dimensions at its next value, for each that the space has several values of. The
    memory format follows no other precision: there it would be that recipe's own again."""
    axes, point = space.axes, space.point(corner)
    others = {name: _next(axes[name], point[name]) for name in tuned if len(axes.get(name, ())) > 1}
    return [
        Seed("seed", space.at({**point, name: value}), None if name == "memory_format" else follows)
        for name, value in others.items()
    ]


def _next(axis: Sequence[Setting], value: Setting) -> Setting:
    """The value behind this one; the one before the last."""
    at = axis.index(value)
    return axis[at + 1] if at + 1 < len(axis) else axis[at - 1]


def _that_fit(space: SearchSpace, seeds: Sequence[Seed]) -> list[Seed]:
    """Each configuration once, as it came first."""
    first: dict[TrialConfig, Seed] = {}
    for seed in seeds:
        if space.excess(seed.config) <= 0:
            first.setdefault(seed.config, seed)
    return list(first.values())


def _at_most(space: SearchSpace, batch_size: int, precision: Precision) -> int:
    return nearest_rung(space.batch_sizes, min(batch_size, space.ceilings[precision]))


def _corner(space: SearchSpace, point: ComputePoint, sample_s: float) -> TrialConfig:
    """Where a precision nearly saturates, with as many workers as that takes."""
    precision = point.recipe.precision
    batch_size = _at_most(space, point.batch_size, precision)
    return space.config(
        batch_size, enough_workers(space, point.samples_per_s, sample_s), space.pin_memory[-1], precision
    )


def _conservative(space: SearchSpace, batch_size: int, fastest: ComputePoint, sample_s: float) -> TrialConfig:
    """Half the corner's batch; without workers where samples are nearly free, else with half as many as there are."""
    fewer = 0 if fastest.samples_per_s * sample_s <= NEARLY_FREE else space.num_workers[-1] // 2
    return space.config(
        nearest_rung(space.batch_sizes, batch_size // 2),
        nearest_rung(space.num_workers, fewer),
        space.pin_memory[-1],
        fastest.recipe.precision,
    )


def enough_workers(space: SearchSpace, samples_per_s: float, sample_s: float) -> int:
    """The fewest workers that by their single speed deliver this rate with some headroom; all, where none do."""
    needed = math.ceil(HEADROOM * samples_per_s * sample_s)
    return next((w for w in space.num_workers if w >= needed), space.num_workers[-1])


def leaner(space: SearchSpace, config: TrialConfig, measured: Measurement, sample_s: float) -> TrialConfig | None:
    """The same configuration with only as many workers as its rate asks for. None: they are needed, or the fewest.

    A search for speed does not look for it, and workers that idle cost RAM, start-up and cores.
    """
    fewer = enough_workers(space, measured.samples_per_s, sample_s)
    held_up = measured.wait_fraction > KEPT_UP and not batches_stand_unpinned(measured)
    if held_up or fewer >= config.loader.num_workers:
        return None
    return replace(config, loader=replace(config.loader, num_workers=fewer))
