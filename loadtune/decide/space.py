"""The search space: one axis a dimension, each a tuple of values. Spanned from what the probes found, then frozen.

Memory, cores (or workers that wait), RAM and a tenth of an epoch bound it, and what the options say. A precision's
lower ceiling is a constraint on the space, never another range. And the baseline, the user's own configuration: what
was given, what is assumed in its place, and what of it this device cannot do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from loadtune.decide.recipe import SMALL, STEP_S, power_of_two_to
from loadtune.errors import UsageError
from loadtune.model.workers import most_by_cores
from loadtune.records.config import (
    Dimension,
    LoaderConfig,
    Precision,
    Recipe,
    Setting,
    TrialConfig,
    TuneConfig,
    YourSettings,
)
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import ComputePoint, RecipeChoice
from loadtune.records.memory import MemoryCeiling
from loadtune.units import counted

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


# The user's own configuration


ASSUMED_BATCH = 64
"""What scripts use that never thought about it."""


def assumed_settings(yours: YourSettings) -> tuple[str, ...]:
    """Names of the settings that were not given and have a meaning."""
    names = ["batch_size", "num_workers", "pin_memory", "precision"]
    names += ["persistent_workers"] if yours.num_workers else []
    return tuple(name for name in names if getattr(yours, name) is None)


def with_facts(yours: YourSettings, facts: WorkloadFacts) -> YourSettings:
    """With the settings of the user's own loader or script, where the options do not say otherwise.

    A loader's workers beyond those that its stream is shared out among are left out.
    """
    own: dict[str, Any] = {
        "batch_size": facts.fixed_batch_size,
        "precision": "own" if "own" in facts.precisions else facts.own_precision,
    }
    if (loader := facts.own_loader) is not None:
        own |= {
            "batch_size": facts.fixed_batch_size or loader.batch_size,
            "num_workers": min(loader.num_workers, facts.max_workers or loader.num_workers),
            "pin_memory": loader.pin_memory,
            "persistent_workers": loader.persistent_workers if loader.num_workers else None,  # without meaning at 0
        }
    return replace(yours, **{name: value for name, value in own.items() if getattr(yours, name) is None})


def baseline(
    yours: YourSettings,
    facts: WorkloadFacts,
    recipes: Sequence[RecipeChoice],
    ceilings: Sequence[MemoryCeiling],
    *,
    can_pin: bool,
) -> TrialConfig:
    """The user's own configuration: given settings, PyTorch's defaults for the rest, and the plain recipe. An assumed
    batch size is one that trains well here. Without `can_pin` nothing is pinned."""
    precision = yours.precision or "fp32"
    ceiling = next((each for each in ceilings if each.precision == precision), None)
    points = [p for choice in recipes for p in choice.points if p.recipe.precision == precision]
    usual = facts.own_loader or USUAL  # no option gives its prefetch_factor and in_order
    loader = LoaderConfig(
        batch_size=yours.batch_size or _assumed_batch(facts, points, ceiling),
        num_workers=yours.num_workers or 0,
        pin_memory=can_pin and bool(yours.pin_memory),
        persistent_workers=bool(yours.persistent_workers) or not yours.num_workers,  # without meaning at 0
        prefetch_factor=usual.prefetch_factor,
        in_order=usual.in_order,
    )
    return TrialConfig(loader=loader, recipe=Recipe(precision=precision))


def _assumed_batch(facts: WorkloadFacts, points: Sequence[ComputePoint], ceiling: MemoryCeiling | None) -> int:
    """The baseline's batch size where none was given: `ASSUMED_BATCH`, or a smaller power of two where its step would
    take longer than `STEP_S`, or its precision does not train it. ``points``, ``ceiling``: of its precision."""
    within_s = max((STEP_S * point.quickest_per_s for point in points), default=ASSUMED_BATCH)
    bounds = (ASSUMED_BATCH, within_s, None if ceiling is None else ceiling.safe_batch_size, facts.largest_batch)
    return max(facts.smallest_batch, power_of_two_to(min(bound for bound in bounds if bound is not None)))


# Requests that this dataset, model or device cannot meet; the config is after `with_facts`


def _batch_problems(config: TuneConfig, facts: WorkloadFacts) -> Iterator[str]:
    """Batch sizes that the options name, and that a loader of fixed batches, an epoch or the model does not allow."""
    sizes = {
        "--batch-size": config.yours.batch_size,
        "--max-batch-size": config.max_batch_size,
        "--fix batch_size": config.fixed("batch_size"),
    }
    asked = {option: int(size) for option, size in sizes.items() if size is not None}
    fixed, length, least = facts.fixed_batch_size, facts.dataset_length, facts.min_batch_size
    loader, largest, own = facts.own_loader, config.max_batch_size, config.yours.batch_size or 0
    for option, size in asked.items():
        is_limit = option == "--max-batch-size"
        if fixed is not None and (size < fixed if is_limit else size != fixed):
            yield (
                f"{option} is {size}, but your loader's batch sampler or dataset makes batches of {fixed} samples."
                f" Leave {option} out, or give the DataLoader batch_size=..., so that PyTorch makes its batches."
            )
        if length is not None and size > length and not is_limit:
            is_own = loader is not None and size == loader.batch_size
            yield (
                f"{'Your loader has batch_size=' if is_own else f'{option} is '}{size}, but an epoch has only "
                f"{counted(length, 'sample')}. Use a batch size from 1 to {length:,}, or a longer dataset or stream."
            )
        if size < least:
            yield _too_small(f"{option} {size}", least)
    if fixed is None and loader is not None and largest is not None and own > largest:
        yield (
            f"The baseline's batch size is {own}, as in your loader, more than --max-batch-size {largest}. Raise "
            "--max-batch-size, or give a smaller baseline with --batch-size."
        )
    if length is not None and length < least:
        yield _too_small(f"an epoch has {counted(length, 'sample')}", least)


def _too_small(found: str, least: int) -> str:
    return (
        f"{found}, but this model needs at least {least} samples in a batch, as batch normalization does. "
        f"Allow {least} or more, or use another model."
    )


def problems(config: TuneConfig, facts: WorkloadFacts, device_kind: str) -> Iterator[str]:
    """Of batch sizes, workers, precisions, and what only a GPU or images have."""
    yield from _batch_problems(config, facts)
    most, fixed = facts.max_workers, config.fixed("num_workers")
    for option, asked in (("--num-workers", config.yours.num_workers), ("--fix num_workers", fixed)):
        if most is not None and asked is not None and int(asked) > most:
            yield (
                f"{option} is {asked}, but the stream does not split its samples among workers, so more than "
                f"{most} would repeat them. Give {most} or 0, or split the samples with "
                "torch.utils.data.get_worker_info()."
            )
    if config.fixed("pin_memory") and device_kind != "cuda":
        yield "--fix pin_memory=true has no effect without a GPU. Leave it out, or choose a GPU with --device."
    if config.max_gpu_memory_bytes is not None and device_kind != "cuda":
        yield "--max-gpu-memory is for a GPU, but this run is on the CPU. Leave it out, or choose a GPU with --device."
    if config.fixed("memory_format") == "channels_last" and not facts.takes_channels_last:
        shape = "×".join(map(str, facts.input_shape))
        yield (
            f"--fix memory_format=channels_last needs samples of three dimensions, here {shape}, and in a script "
            "convolutions that are neither compiled nor distributed. Leave it out."
        )
    for precision in (*(config.considered or ()), config.yours.precision or facts.precisions[0]):
        if precision not in facts.precisions:
            where = f"{'in this script ' if facts.own_precision else ''}on {facts.device_name}"
            able = ", ".join(facts.precisions).replace("own", "the script's own alone")
            yield f"{precision} is not available {where}. Available: {able}. Choose one of them, or another device."
