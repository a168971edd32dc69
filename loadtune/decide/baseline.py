"""The user's own configuration: what was given, what is assumed in its place, and what of it this device cannot do."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from loadtune.decide.recipe import STEP_S, power_of_two_to
from loadtune.decide.space import USUAL
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig, TuneConfig, YourSettings
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import ComputePoint, RecipeChoice
from loadtune.records.memory import MemoryCeiling
from loadtune.units import counted

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
