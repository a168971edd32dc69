"""The search space: one ladder of batch sizes, one of workers, pinning, precision. Frozen for the whole study.

Sizes are searched by their index in the ladder: an integer keeps their order for the sampler. A precision's lower
ceiling is a constraint on the space, never another range.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from loadtune.records import LoaderConfig, Precision, Recipe, TrialConfig

FINE_WORKERS = 8
"""Up to here every worker count is a rung; above it, steps of about a fifth: finer ones drown in the noise."""

COARSE_STEP = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What the study chooses from."""

    batch_sizes: tuple[int, ...]
    num_workers: tuple[int, ...]
    pin_memory: tuple[bool, ...]
    recipes: Mapping[Precision, Recipe]
    ceilings: Mapping[Precision, int]
    """Largest batch per precision."""

    @property
    def precisions(self) -> tuple[Precision, ...]:
        return tuple(self.recipes)

    def config(self, batch_size: int, num_workers: int, pin_memory: bool, precision: Precision) -> TrialConfig:
        loader = LoaderConfig(batch_size=batch_size, num_workers=num_workers, pin_memory=pin_memory)
        return TrialConfig(loader=loader, recipe=self.recipes[precision])

    def excess(self, config: TrialConfig) -> int:
        """Samples by which a batch is above its precision's ceiling; 0 or less: it fits."""
        return config.batch_size - self.ceilings[config.precision]


def batch_ladder(smallest: int, largest: int, extra: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Powers of two and their 1.5s within [smallest, largest], and `extra` sizes; `largest` itself where none are."""
    rungs = set(extra)
    power = 1
    while power <= largest:
        rungs |= {size for size in (power, power + power // 2) if smallest <= size <= largest}
        power *= 2
    return tuple(sorted(rungs or {largest}))


def worker_ladder(most: int, extra: tuple[int, ...] = ()) -> tuple[int, ...]:
    """0 to 8 each, then steps of a fifth up to `most`, which is always a rung, and `extra` counts."""
    rungs = set(range(min(FINE_WORKERS, most) + 1)) | {most, *extra}
    rung = float(FINE_WORKERS)
    while (rung := rung * COARSE_STEP) < most:
        rungs.add(round(rung))
    return tuple(sorted(rungs))
