"""The search space: spanned from what the probes found, then frozen; and the user's own configuration beside it."""

from collections.abc import Mapping
from typing import Any

from loadtune.errors import UsageError
from loadtune.findings import Findings
from loadtune.probe.recipe import SMALL, STEP_S, power_of_two_to
from loadtune.records import (
    MEMORY_FORMATS,
    Dimension,
    MemoryCeiling,
    Precision,
    Recipe,
    TrialConfig,
    TuneConfig,
    WorkloadFacts,
)
from loadtune.stages.run import Run
from loadtune.study.space import EPOCH_STEPS, PREFETCH_FACTORS, SearchSpace, batch_ladder, worker_ladder
from loadtune.study.yours import ASSUMED_BATCH, your_config

WAITS = 1.5
"""Seconds of a sample ÷ its CPU seconds from which on workers wait, for storage, a network or a timer."""

MOST_WAITING = 256
"""Workers at the most. RAM and /dev/shm may allow fewer."""

_TUNED: Mapping[Dimension, tuple[Any, ...]] = {
    "prefetch_factor": PREFETCH_FACTORS,
    "memory_format": MEMORY_FORMATS,
    "in_order": (True, False),
    "persistent_workers": (True, False),
}
_KEPT: tuple[Dimension, ...] = ("prefetch_factor", "in_order")
"""Settings of the user's own loader that stay where they are not tuned. Workers are kept from epoch to epoch anyway."""

_DEFAULTS: Mapping[Dimension, tuple[Any, ...]] = {
    "prefetch_factor": (2,),
    "memory_format": (),
    "in_order": (True,),
    "persistent_workers": (True,),
}


def space(run: Run, facts: WorkloadFacts, chosen: Mapping[Precision, Recipe]) -> SearchSpace:
    """Freeze what the study searches, and settle the user's own configuration."""
    found, config = run.found, run.found.config
    ceilings = {ceiling.precision: _searched_up_to(ceiling, config) for ceiling in found.ceilings}
    if not found.batch_sizes:  # else they are of before an interruption, and the study has them
        found.yours = _yours(run, facts)
        top = _top(found, facts, max(ceilings.values()))
        found.batch_sizes = _batch_sizes(found, facts, ceilings, top)
        found.num_workers = _num_workers(found, facts, found.yours)
        run.save()
    return SearchSpace(
        batch_sizes=found.batch_sizes,
        num_workers=found.num_workers,
        pin_memory=_axis(found, "pin_memory", (False, True) if found.device.kind == "cuda" else (False,)),
        recipes=chosen,
        ceilings=ceilings,
        prefetch_factors=_optional(found, "prefetch_factor"),
        memory_formats=_optional(found, "memory_format") if "memory_format" in config.tune else (),
        in_order=_optional(found, "in_order"),
        persistent_workers=_optional(found, "persistent_workers"),
    )


def _top(found: Findings, facts: WorkloadFacts, largest: int) -> int:
    """The largest batch that fits and leaves an epoch `EPOCH_STEPS` steps; one that was named is never too large."""
    if facts.dataset_length is None:
        return largest
    named = max(found.config.named_batch_size or 1, facts.smallest_batch)
    return min(largest, max(named, facts.dataset_length // EPOCH_STEPS))


def _batch_sizes(found: Findings, facts: WorkloadFacts, ceilings: Mapping[Precision, int], top: int) -> tuple[int, ...]:
    fixed = facts.fixed_batch_size or found.config.fixed("batch_size")
    if fixed is not None:
        if int(fixed) > max(ceilings.values()):
            raise UsageError(
                f"--fix batch_size={fixed} does not fit: the largest batch size that trains here is "
                f"{max(ceilings.values())}. Use that or a smaller one, or leave --fix batch_size out."
            )
        return (int(fixed),)
    moderate = max(point.batch_size for choice in found.recipes for point in choice.points)
    smallest = max(facts.smallest_batch, min(moderate, top) // SMALL)
    return batch_ladder(smallest, top, _named_sizes(found, ceilings, top))


def _num_workers(found: Findings, facts: WorkloadFacts, yours: TrialConfig) -> tuple[int, ...]:
    """Up to the usable cores; where workers wait rather than compute, as many as keep the cores busy."""
    most = found.config.max_workers
    if most is None:
        cores, waits = found.host.num_usable_cores, facts.sample_s / (facts.sample_cpu_s or facts.sample_s)
        busy = cores if waits < WAITS else max(cores, min(round(cores * waits), MOST_WAITING))
        ladder = worker_ladder(busy, (cores, yours.loader.num_workers))
    else:
        ladder = worker_ladder(most)
    if facts.max_workers is not None:
        ladder = tuple(count for count in ladder if count <= facts.max_workers)
    return _axis(found, "num_workers", ladder)


def _axis(found: Findings, name: Dimension, values: tuple[Any, ...]) -> tuple[Any, ...]:
    fixed = found.config.fixed(name)
    return values if fixed is None else (fixed,)


def _optional(found: Findings, name: Dimension) -> tuple[Any, ...]:
    """Its values; where it is not tuned, that of the user's own loader, else PyTorch's default."""
    own_loader = None if found.facts is None else found.facts.own_loader
    if own_loader is not None and name in _KEPT and name not in found.config.tune:
        return _axis(found, name, (getattr(own_loader, name),))
    return _axis(found, name, (_TUNED if name in found.config.tune else _DEFAULTS)[name])


def _searched_up_to(ceiling: MemoryCeiling, config: TuneConfig) -> int:
    """The safe ceiling, or a size that was named where that is above it and was seen to fit."""
    named = (config.yours.batch_size, config.fixed("batch_size"))
    return max(ceiling.safe_batch_size, *(int(size) for size in named if size and int(size) <= ceiling.batch_size), 0)


def _named_sizes(found: Findings, ceilings: Mapping[Precision, int], top: int) -> tuple[int, ...]:
    """Sizes that are rungs because somebody cares for them: the user's own, and ends that lie within reach."""
    ends = [c.safe_batch_size for c in found.ceilings if c.safe_batch_size <= top]
    own = [found.yours.batch_size] if found.yours and found.yours.batch_size <= max(ceilings.values()) else []
    return (*ends, *own)


def _yours(run: Run, facts: WorkloadFacts) -> TrialConfig:
    """The user's own configuration; an assumed batch size is one that trains well here."""
    found = run.found
    wanted = found.config.yours.precision or "fp32"
    ceiling = next((c for c in found.ceilings if c.precision == wanted), None)
    can_pin = found.device.kind == "cuda"
    largest = _assumed_batch(found, facts, wanted, ceiling)
    yours = your_config(found.config.yours, largest, can_pin=can_pin, own_loader=facts.own_loader)
    if found.config.yours.batch_size is None and yours.batch_size < ASSUMED_BATCH:
        found.note(
            f"The baseline has batch size {yours.batch_size} instead of {ASSUMED_BATCH}: a step of a larger "
            "batch takes more than a second on this machine, or does not fit. Give your own with --batch-size."
        )
    if found.config.yours.pin_memory and not can_pin:
        found.note("pin_memory has no effect without a GPU; the baseline is measured without it.")
    if ceiling is not None and ceiling.limit in ("memory", "failure") and yours.batch_size > ceiling.batch_size:
        found.note(
            f"Your batch size {yours.batch_size} is above {ceiling.batch_size}, the largest that trained in {wanted} "
            "here. The confirmation tries it all the same."
        )
    return yours


def _assumed_batch(found: Findings, facts: WorkloadFacts, precision: Precision, ceiling: MemoryCeiling | None) -> int:
    """The baseline's batch size where none was given: `ASSUMED_BATCH`, or a smaller power of two where its step would
    take longer than `STEP_S`, or its precision does not train it."""
    points = [p for choice in found.recipes for p in choice.points if p.recipe.precision == precision]
    largest = min(ASSUMED_BATCH, max((STEP_S * p.quickest_per_s for p in points), default=ASSUMED_BATCH))
    bounds = (None if ceiling is None else ceiling.safe_batch_size, facts.largest_batch)
    return max(facts.smallest_batch, power_of_two_to(min(largest, *(each for each in bounds if each is not None))))
