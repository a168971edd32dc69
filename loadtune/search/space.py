"""The search space: one axis a dimension, each a tuple of values. Spanned from what the probes found, then frozen.

A precision's lower ceiling is a constraint on the space, never another range.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from loadtune.records.config import Dimension, LoaderConfig, MemoryFormat, Precision, Recipe, Setting, TrialConfig

FINE_WORKERS = 8
"""Up to here every worker count is a rung; above it, steps of about a fifth: finer ones drown in the noise."""

COARSE_STEP = 1.2

PREFETCH_FACTORS = (1, 2, 4, 8)
"""PyTorch's default is 2; what 8 batches a worker do not hide, more do not either, at twice the memory."""

EPOCH_STEPS = 10
"""Fewest steps of an epoch: with fewer, a batch size is a choice of how to train rather than of how to load."""

MODELLED: tuple[Dimension, ...] = ("batch_size", "num_workers", "pin_memory", "precision", "code")
"""What the throughput model knows, in the order of `SearchSpace.config`."""

_LOADER_AXES: tuple[Dimension, ...] = (
    "batch_size",
    "num_workers",
    "pin_memory",
    "prefetch_factor",
    "in_order",
    "persistent_workers",
)

UNCHANGED = "none"
"""The value of the dimension *code* without any change."""


@dataclass(frozen=True, slots=True)
class Code:
    """A combination of changes of the code."""

    changes: tuple[str, ...]
    """Their names, in the order in which they are applied."""
    apply: Callable[[TrialConfig], TrialConfig | None]
    """To a configuration without changes. None: it is nothing at these settings."""

    @property
    def name(self) -> str:
        return "+".join(self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What the study chooses from."""

    batch_sizes: tuple[int, ...]
    num_workers: tuple[int, ...]
    pin_memory: tuple[bool, ...]
    recipes: Mapping[Precision, Recipe]
    ceilings: Mapping[Precision, int]
    """Largest batch per precision."""
    prefetch_factors: tuple[int, ...] = (2,)
    memory_formats: tuple[MemoryFormat, ...] = ()
    """Empty: each precision's recipe has its own."""
    in_order: tuple[bool, ...] = (True,)
    persistent_workers: tuple[bool, ...] = (True,)
    codes: tuple[Code, ...] = ()
    """Beside the code as it is."""

    @property
    def axes(self) -> dict[Dimension, Sequence[Any]]:
        """Values by dimension; the numbers among them in ascending order."""
        axes: dict[Dimension, Sequence[Any]] = {
            "batch_size": self.batch_sizes,
            "num_workers": self.num_workers,
            "pin_memory": self.pin_memory,
            "precision": tuple(self.recipes),
            "prefetch_factor": self.prefetch_factors,
            "in_order": self.in_order,
            "persistent_workers": self.persistent_workers,
        }
        axes |= {"memory_format": self.memory_formats} if self.memory_formats else {}
        return axes | ({"code": (UNCHANGED, *(code.name for code in self.codes))} if self.codes else {})

    def config(
        self, batch_size: int, num_workers: int, pin_memory: bool, precision: Precision, code: str = UNCHANGED
    ) -> TrialConfig:
        """These, and of the other dimensions what PyTorch and the recipe have by default, where that is searched."""
        loader = LoaderConfig(batch_size=batch_size, num_workers=num_workers, pin_memory=pin_memory)
        point = self.point(TrialConfig(loader=loader, recipe=self.recipes[precision]))
        return self.at({**point, "code": code})

    def at(self, point: Mapping[Dimension, Any]) -> TrialConfig:
        """The configuration at a point that names a value of every axis; without a code that is nothing there."""
        loader = LoaderConfig(**{str(name): point[name] for name in _LOADER_AXES})
        if loader.num_workers == 0:  # then nothing is prefetched, and configurations that differ in it are the same
            loader = LoaderConfig(batch_size=loader.batch_size, pin_memory=loader.pin_memory)
        recipe = self.recipes[point["precision"]]
        if self.memory_formats:
            recipe = replace(recipe, memory_format=point["memory_format"])
        config = TrialConfig(loader=loader, recipe=recipe)
        code = next((code for code in self.codes if code.name == point.get("code")), None)
        return (None if code is None else code.apply(config)) or config

    def point(self, config: TrialConfig) -> dict[Dimension, Setting]:
        """Where the configuration lies, or the nearest place to it: sizes give way downwards, the rest to the first."""
        return {name: _nearest(axis, _setting(config, name)) for name, axis in self.axes.items()}

    def clip(self, config: TrialConfig) -> TrialConfig:
        """The configuration itself, or the one nearest to it that this space has and that fits."""
        near = self.at(self.point(config))
        if self.excess(near) <= 0:
            return near
        return self.at(self.point(replace(near, loader=replace(near.loader, batch_size=self.ceilings[near.precision]))))

    def modelled(self) -> Iterator[TrialConfig]:
        """Every configuration that fits, once, with the defaults of what the throughput model does not know."""
        values = [self.axes.get(name, (UNCHANGED,)) for name in MODELLED]
        every = (self.config(*each) for each in product(*values))
        return (config for config in dict.fromkeys(every) if self.excess(config) <= 0)

    def as_modelled(self, config: TrialConfig) -> TrialConfig:
        """The same with the defaults of what the throughput model does not know."""
        loader = config.loader
        code = "+".join(config.remedies) or UNCHANGED
        return self.config(loader.batch_size, loader.num_workers, loader.pin_memory, config.precision, code)

    def excess(self, config: TrialConfig) -> int:
        """Samples by which a batch is above its precision's ceiling; 0 or less: it fits."""
        return config.batch_size - self.ceilings[config.precision]


def size(config: TrialConfig) -> tuple[int, int, int]:
    """What a configuration costs a user: workers first, then batch, then batches kept ahead."""
    return config.loader.num_workers, config.batch_size, config.loader.num_prefetched


def is_alike(one: TrialConfig, other: TrialConfig) -> bool:
    """Whether they differ at most in whether workers outlive an epoch, which changes no rate."""
    return replace(one, loader=replace(one.loader, persistent_workers=other.loader.persistent_workers)) == other


def batch_ladder(smallest: int, largest: int, extra: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Powers of two and their 1.5s within [smallest, largest], and `extra` sizes; `largest` itself where none are."""
    rungs = set(extra)
    power = 1
    while power <= largest:
        rungs |= {size for size in (power, power + power // 2) if smallest <= size <= largest}
        power *= 2
    return tuple(sorted(rungs or {largest}))


def worker_ladder(most: int, extra: tuple[int, ...] = ()) -> tuple[int, ...]:
    """0 to 8 one by one, then in steps of a fifth up to `most`. `most` itself and `extra` are among them."""
    rungs = set(range(min(FINE_WORKERS, most) + 1)) | {most, *extra}
    rung = float(FINE_WORKERS)
    while (rung := rung * COARSE_STEP) < most:
        rungs.add(round(rung))
    return tuple(sorted(rungs))


def _setting(config: TrialConfig, name: Dimension) -> Any:
    if name == "code":
        return "+".join(config.remedies) or UNCHANGED
    return getattr(config.loader if name in _LOADER_AXES else config.recipe, name)


def _nearest(axis: Sequence[Any], value: Any) -> Any:
    """The value itself; or the largest number that is not above it; or the first of the axis."""
    if value in axis:
        return value
    return max((each for each in axis if type(each) is int and each <= value), default=axis[0])
