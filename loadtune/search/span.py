"""The search space, spanned from what the probes found; and the user's own configuration beside it.

Memory, cores (or workers that wait), RAM and a tenth of an epoch bound it, and what the options say.
"""

from collections.abc import Mapping
from typing import Any

from loadtune.errors import UsageError
from loadtune.limits.recipe import SMALL, STEP_S, power_of_two_to
from loadtune.records.config import MEMORY_FORMATS, Dimension, Precision, Recipe, TrialConfig, TuneConfig
from loadtune.records.facts import WorkloadFacts
from loadtune.records.memory import MemoryCeiling
from loadtune.run import Run
from loadtune.search.baseline import ASSUMED_BATCH, your_config
from loadtune.search.space import EPOCH_STEPS, PREFETCH_FACTORS, SearchSpace, batch_ladder, worker_ladder
from loadtune.search.throughput import WAITS

MOST_WAITING = 256
"""Workers at the most. RAM and /dev/shm may allow fewer."""

_TUNED: Mapping[Dimension, tuple[Any, ...]] = {
    "prefetch_factor": PREFETCH_FACTORS,
    "memory_format": MEMORY_FORMATS,
    "in_order": (True, False),
    "persistent_workers": (True, False),
}


def space(run: Run, facts: WorkloadFacts, chosen: Mapping[Precision, Recipe]) -> SearchSpace:
    """Freeze what the study searches, and settle the user's own configuration."""
    config = run.config
    ceilings = {ceiling.precision: largest_batch(run, ceiling) for ceiling in run.ceilings}
    if not run.batch_sizes:  # else they are of before an interruption, and the study has them
        run.yours = _yours(run, facts)
        run.batch_sizes = _batch_sizes(run, facts, run.yours, ceilings)
        run.num_workers = _num_workers(run, facts, run.yours)
        run.save()
    own = facts.own_loader
    return SearchSpace(
        batch_sizes=run.batch_sizes,
        num_workers=run.num_workers,
        pin_memory=_fixed(config, "pin_memory", (False, True) if run.device.kind == "cuda" else (False,)),
        recipes=chosen,
        ceilings=ceilings,
        prefetch_factors=_optional(config, "prefetch_factor", own.prefetch_factor if own else 2),
        memory_formats=_optional(config, "memory_format", None) if "memory_format" in config.tune else (),
        in_order=_optional(config, "in_order", own.in_order if own else True),
        persistent_workers=_optional(config, "persistent_workers", True),  # whose end changes no rate
    )


def _fixed(config: TuneConfig, name: Dimension, values: tuple[Any, ...]) -> tuple[Any, ...]:
    fixed = config.fixed(name)
    return values if fixed is None else (fixed,)


def _optional(config: TuneConfig, name: Dimension, usual: Any) -> tuple[Any, ...]:
    """Its values where it is tuned, else the user's own or PyTorch's default."""
    return _fixed(config, name, _TUNED[name] if name in config.tune else (usual,))


def largest_batch(run: Run, ceiling: MemoryCeiling) -> int:
    """The safe size, or one that the user named where that is above it and was seen to fit."""
    return max([ceiling.safe_batch_size, *(size for size in named_sizes(run) if size <= ceiling.batch_size)])


def named_sizes(run: Run) -> list[int]:
    """The batch sizes that the user asked to run."""
    named = (run.config.yours.batch_size, run.config.fixed("batch_size"))
    return [int(size) for size in named if size is not None]


def _batch_sizes(
    run: Run, facts: WorkloadFacts, yours: TrialConfig, ceilings: Mapping[Precision, int]
) -> tuple[int, ...]:
    """Up to the largest that fits and leaves an epoch `EPOCH_STEPS` steps; one that was named is never too large. Ends
    of precisions and the user's own size are rungs as well."""
    largest, fixed = max(ceilings.values()), facts.fixed_batch_size or run.config.fixed("batch_size")
    if fixed is not None:
        if int(fixed) > largest:
            raise UsageError(
                f"--fix batch_size={fixed} does not fit: the largest batch size that trains here is "
                f"{largest}. Use that or a smaller one, or leave --fix batch_size out."
            )
        return (int(fixed),)
    top = largest
    if facts.dataset_length is not None:
        named = max(run.config.named_batch_size or 1, facts.smallest_batch)
        top = min(largest, max(named, facts.dataset_length // EPOCH_STEPS))
    moderate = max(point.batch_size for choice in run.recipes for point in choice.points)
    ends = [ceiling.safe_batch_size for ceiling in run.ceilings if ceiling.safe_batch_size <= top]
    own = [yours.batch_size] if yours.batch_size <= largest else []
    return batch_ladder(max(facts.smallest_batch, min(moderate, top) // SMALL), top, (*ends, *own))


def _num_workers(run: Run, facts: WorkloadFacts, yours: TrialConfig) -> tuple[int, ...]:
    """Up to the usable cores; where workers wait rather than compute, `MOST_WAITING`. How many keep the cores busy is
    the model's to learn: 4.3 ms of a single sleeping sample held 0.19 ms of CPU, in large batches 0.06."""
    most = run.config.max_workers
    if most is None:
        cores, waits = run.host.num_usable_cores, facts.sample_s / (facts.sample_cpu_s or facts.sample_s)
        busy = cores if waits < WAITS else max(cores, MOST_WAITING)
        ladder = worker_ladder(busy, (cores, yours.loader.num_workers))
    else:
        ladder = worker_ladder(most)
    allowed = tuple(count for count in ladder if facts.max_workers is None or count <= facts.max_workers)
    return _fixed(run.config, "num_workers", allowed)


def _yours(run: Run, facts: WorkloadFacts) -> TrialConfig:
    """The user's own configuration; an assumed batch size is one that trains well here."""
    given, can_pin = run.config.yours, run.device.kind == "cuda"
    precision = given.precision or "fp32"
    ceiling = next((each for each in run.ceilings if each.precision == precision), None)
    largest = _assumed_batch(run, facts, precision, ceiling)
    yours = your_config(given, largest, can_pin=can_pin, own_loader=facts.own_loader)
    if given.batch_size is None and yours.batch_size < ASSUMED_BATCH:
        run.note(
            f"The baseline has batch size {yours.batch_size} instead of {ASSUMED_BATCH}: a step of a larger "
            "batch takes more than a second on this machine, or does not fit. Give your own with --batch-size."
        )
    if given.pin_memory and not can_pin:
        run.note("pin_memory has no effect without a GPU; the baseline is measured without it.")
    if ceiling is not None and ceiling.limit in ("memory", "failure") and yours.batch_size > ceiling.batch_size:
        run.note(
            f"Your batch size {yours.batch_size} is above {ceiling.batch_size}, the largest that trained in {precision}"
            " here. The confirmation tries it all the same."
        )
    return yours


def _assumed_batch(run: Run, facts: WorkloadFacts, precision: Precision, ceiling: MemoryCeiling | None) -> int:
    """The baseline's batch size where none was given: `ASSUMED_BATCH`, or a smaller power of two where its step would
    take longer than `STEP_S`, or its precision does not train it."""
    points = [p for choice in run.recipes for p in choice.points if p.recipe.precision == precision]
    largest = min(ASSUMED_BATCH, max((STEP_S * p.quickest_per_s for p in points), default=ASSUMED_BATCH))
    bounds = (None if ceiling is None else ceiling.safe_batch_size, facts.largest_batch)
    return max(facts.smallest_batch, power_of_two_to(min(largest, *(each for each in bounds if each is not None))))
