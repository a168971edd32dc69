"""The search space: one axis a dimension, each a tuple of values. Spanned from what the probes found, then frozen.

Memory, cores (or workers that wait), RAM and a tenth of an epoch bound it, and what the options say. A precision's
lower ceiling is a constraint on the space, never another range.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from loadtune.decide.recipe import SMALL
from loadtune.errors import UsageError
from loadtune.model.workers import most_by_cores
from loadtune.records.config import Dimension, LoaderConfig, Precision, Recipe, Setting, TrialConfig, TuneConfig
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import RecipeChoice
from loadtune.records.memory import MemoryCeiling

FINE_WORKERS = 8
"""Up to here every worker count is in the grid; above it, steps of about a fifth: finer ones drown in the noise."""

COARSE_STEP = 1.2

EPOCH_STEPS = 10
"""Fewest steps of an epoch: with fewer, a batch size is a choice of how to train rather than of how to load."""

UNCHANGED = "none"
"""The value of the dimension *code* without any change."""

USUAL = LoaderConfig(batch_size=1)
"""PyTorch's defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What the study chooses from."""

    batch_sizes: tuple[int, ...]
    num_workers: tuple[int, ...]
    pin_memory: tuple[bool, ...]
    recipes: Mapping[Precision, Recipe]
    ceilings: Mapping[Precision, int]
    """Largest batch per precision."""
    others: LoaderConfig = USUAL
    """The loader's other settings, which all configurations share: prefetch_factor, in_order, persistent_workers."""
    codes: Mapping[str, Callable[[TrialConfig], TrialConfig | None]] = field(default_factory=dict)
    """Beside the code as it is: combinations of changes by their names, joined by ``+`` in the order in which they are
    applied. Each makes a configuration of one without changes. None: it is nothing at these settings."""

    @property
    def axes(self) -> dict[str, Sequence[Any]]:
        """Values by dimension; the numbers among them in ascending order."""
        axes: dict[str, Sequence[Any]] = {
            "batch_size": self.batch_sizes,
            "num_workers": self.num_workers,
            "pin_memory": self.pin_memory,
            "precision": tuple(self.recipes),
        }
        return axes | ({"code": (UNCHANGED, *self.codes)} if self.codes else {})

    def at(self, point: Mapping[str, Any]) -> TrialConfig:
        """The configuration at a point that names a value of every axis; without a code that is nothing there."""
        loader = {name: point[name] for name in ("batch_size", "num_workers", "pin_memory")}
        # Without workers nothing is prefetched, and configurations that differ in it are the same.
        config = TrialConfig(
            loader=replace(self.others if point["num_workers"] else USUAL, **loader),
            recipe=self.recipes[point["precision"]],
        )
        apply = self.codes.get(point.get("code", UNCHANGED))
        return (None if apply is None else apply(config)) or config

    def point(self, config: TrialConfig) -> dict[str, Setting]:
        """Where the configuration lies, or the nearest place to it: sizes give way downwards, the rest to the first."""
        settings = {"precision": config.precision, "code": "+".join(config.remedies) or UNCHANGED}
        return {
            name: _nearest(axis, settings.get(name) or getattr(config.loader, name)) for name, axis in self.axes.items()
        }

    def modelled(self) -> Iterator[TrialConfig]:
        """Every configuration that fits, once."""
        axes = self.axes
        every = (self.at(dict(zip(axes, values, strict=True))) for values in product(*axes.values()))
        return (config for config in dict.fromkeys(every) if config.batch_size <= self.ceilings[config.precision])

    def nearest(self, config: TrialConfig) -> TrialConfig:
        """The configuration itself, or the nearest to it that the space has."""
        return self.at(self.point(config))

    def has(self, config: TrialConfig) -> bool:
        """Whether it is a point; whether workers outlive an epoch changes no rate and does not count."""
        near = self.nearest(config)
        loader = replace(config.loader, persistent_workers=near.loader.persistent_workers)
        return near == replace(config, loader=loader)


def worker_grid(most: int, extra: tuple[int, ...] = ()) -> tuple[int, ...]:
    """0 to 8 one by one, then in steps of a fifth up to `most`. `most` itself and `extra` are among them."""
    values = set(range(min(FINE_WORKERS, most) + 1)) | {most, *extra}
    value = float(FINE_WORKERS)
    while (value := value * COARSE_STEP) < most:
        values.add(round(value))
    return tuple(sorted(values))


def _nearest(axis: Sequence[Any], value: Any) -> Any:
    """The value itself; or the largest number that is not above it; or the first of the axis."""
    return max((each for each in axis if each == value or (type(each) is int and each < value)), default=axis[0])


# What an axis has


def largest_batches(config: TuneConfig, ceilings: Sequence[MemoryCeiling]) -> dict[Precision, int]:
    """Per precision the safe size, or one that the user named where that is above it and was seen to fit."""
    named = config.named_batch_sizes
    return {
        ceiling.precision: max([ceiling.safe_batch_size, *(size for size in named if size <= ceiling.batch_size)])
        for ceiling in ceilings
    }


def batch_sizes(
    config: TuneConfig,
    facts: WorkloadFacts,
    own: int,
    recipes: Sequence[RecipeChoice],
    ceilings: Sequence[MemoryCeiling],
) -> tuple[int, ...]:
    """Powers of two and their 1.5s, up to the largest that fits and leaves an epoch `EPOCH_STEPS` steps; one that was
    named is never too large. Ends of precisions and the user's ``own`` size are values as well."""
    largest = max(largest_batches(config, ceilings).values())
    fixed = facts.fixed_batch_size or config.fixed("batch_size")
    if fixed is not None:
        if int(fixed) > largest:
            raise UsageError(
                f"--fix batch_size={fixed} does not fit: the largest batch size that trains here is "
                f"{largest}. Use that or a smaller one, or leave --fix batch_size out."
            )
        return (int(fixed),)
    top = largest
    if facts.dataset_length is not None:
        top = min(largest, max(*config.named_batch_sizes, facts.smallest_batch, facts.dataset_length // EPOCH_STEPS))
    moderate = max(point.batch_size for choice in recipes for point in choice.points)
    ends = [ceiling.safe_batch_size for ceiling in ceilings if ceiling.safe_batch_size <= top]
    least = max(facts.smallest_batch, min(moderate, top) // SMALL)
    powers = (2**exponent for exponent in range(top.bit_length()))
    values = {size for power in powers for size in (power, power + power // 2) if least <= size <= top}
    return tuple(sorted({*values, *ends, *([own] if own <= largest else [])} or {top}))


def worker_counts(config: TuneConfig, facts: WorkloadFacts, own: int, cores: int) -> tuple[int, ...]:
    """Up to the usable cores; more where workers wait rather than compute. How many keep the cores busy is
    the model's to learn: 4.3 ms of a single sleeping sample held 0.19 ms of CPU, in large batches 0.06. The user's
    ``own`` number is among them."""
    if config.max_workers is None:
        busy = most_by_cores(cores, facts.sample_s, facts.sample_cpu_s or facts.sample_s)
        grid = worker_grid(max(cores, busy), (cores, own))
    else:
        grid = worker_grid(config.max_workers)
    allowed = tuple(count for count in grid if facts.max_workers is None or count <= facts.max_workers)
    return fixed_or(config, "num_workers", allowed)


def fixed_or(config: TuneConfig, name: Dimension, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """What ``--fix`` says of a setting, or else these values."""
    fixed = config.fixed(name)
    return values if fixed is None else (fixed,)
