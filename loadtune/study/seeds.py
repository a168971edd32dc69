"""The first configurations of a study: the user's own, and what the measurements so far predict. Pure."""

import math

from loadtune.records import ComputePoint, TrialConfig, TrialOrigin
from loadtune.study.space import SearchSpace

HEADROOM = 1.2
"""More workers than the arithmetic asks for: a loader alone was seen up to a fifth slower under training."""


def seed_configs(
    space: SearchSpace, yours: TrialConfig | None, knee: ComputePoint, sample_s: float
) -> list[tuple[TrialOrigin, TrialConfig]]:
    """The user's own configuration, the corner the bounds predict, the same with every core, and a conservative one.

    `knee` is the fastest precision's compute point at the smallest saturating batch; `sample_s` what one sample costs
    one worker.
    """
    precision, pin = knee.recipe.precision, space.pin_memory[-1]
    batch_size = _nearest(space.batch_sizes, min(knee.batch_size, space.ceilings[precision]))
    needed = math.ceil(HEADROOM * knee.samples_per_s * sample_s)
    workers = next((w for w in space.num_workers if w >= needed), space.num_workers[-1])
    most, half = space.num_workers[-1], space.num_workers[len(space.num_workers) // 2]
    guesses = [
        space.config(batch_size, workers, pin, precision),
        space.config(batch_size, most, pin, precision),
        space.config(_nearest(space.batch_sizes, batch_size // 2), half, pin, precision),
    ]
    seeds: list[tuple[TrialOrigin, TrialConfig]] = [] if yours is None else [("yours", yours)]
    for guess in guesses:
        if all(guess != config for _, config in seeds):
            seeds.append(("seed", guess))
    return seeds


def _nearest(ladder: tuple[int, ...], value: int) -> int:
    """The largest rung not above `value`, or the lowest."""
    return max((rung for rung in ladder if rung <= value), default=ladder[0])
