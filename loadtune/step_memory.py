"""Where the memory of one step goes: measured on the GPU, worked out from shapes, and with one thing changed.

In: what to train and what is asked about it. Out: a `FootprintReport`. Beside `tune`, because it needs neither loader
nor study. Measuring is the bench's, estimating this process's: no CUDA context is created here.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.records import (
    PRECISIONS,
    FootprintReport,
    OptimizerName,
    Precision,
    Recipe,
    StepAccount,
    StepOptimizer,
    StepVariant,
    TrialFailure,
    WhatIf,
    WorkloadFacts,
    WorkloadSpec,
)
from loadtune.report.wording import PRECISION_TEXT

if TYPE_CHECKING:
    from loadtune.footprint.plan import StepPlan

OPTIMIZER_NAMES: dict[StepOptimizer, str] = {"sgd_plain": "SGD", "sgd": "SGD with momentum", "adamw": "AdamW"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked about the step."""

    precision: Precision
    batch_size: int
    memory_bytes: int | None = None
    """None: what the GPU has free, where one is measured on."""
    per_layer: bool = False
    checkpoint: bool = False
    what_if: bool = False


class _Room(NamedTuple):
    """Memory that a step may have."""

    memory_bytes: int | None
    """None: nobody said."""
    has_context: bool
    """Whether CUDA's context has its share already: it does in what a bench finds free."""

    def largest_batch(self, plan: "StepPlan", *, checkpoint: bool) -> int | None:
        """By the line through two estimates. Raises WorkloadError where shapes cannot tell."""
        from loadtune.footprint.estimate import CUDA_CONTEXT_BYTES, largest_batch

        if self.memory_bytes is None:
            return None
        context = 0 if self.has_context else CUDA_CONTEXT_BYTES
        return largest_batch(plan, self.memory_bytes, checkpoint=checkpoint, context_bytes=context).batch_size


class Meter(Protocol):
    """What measures: a bench on a GPU."""

    def describe(self) -> WorkloadFacts: ...

    def account(self, asked: StepVariant) -> StepAccount | TrialFailure: ...


def step_report(
    spec: WorkloadSpec, wanted: Wanted, open_meter: Callable[[], AbstractContextManager[Meter]] | None
) -> FootprintReport:
    """Measured by what `open_meter` gives; None: estimated only. Raises WorkloadError, NothingFitsError, BenchError."""
    from loadtune.footprint.plan import plan_of_spec

    if open_meter is None:
        return _report(plan_of_spec(spec, wanted.precision), spec, wanted, None)
    with open_meter() as meter:  # a bench builds the workload while this process works on shapes
        return _report(plan_of_spec(spec, wanted.precision), spec, wanted, meter)


def _report(plan: "StepPlan", spec: WorkloadSpec, wanted: Wanted, meter: Meter | None) -> FootprintReport:
    from loadtune.footprint.estimate import estimate_layers, largest_batch

    given = StepVariant(recipe=Recipe(precision=wanted.precision), batch_size=wanted.batch_size)
    room = _Room(wanted.memory_bytes, has_context=False)
    if meter is not None and room.memory_bytes is None:
        room = _Room(meter.describe().memory_budget_bytes, has_context=True)
    return FootprintReport(
        account=_found(plan, given, meter),
        estimate=None if meter is None else _estimate_or_none(plan, wanted.batch_size),
        checkpointed=_found(plan, replace(given, checkpoint=True), meter) if wanted.checkpoint else None,
        layers=estimate_layers(plan, wanted.batch_size) if wanted.per_layer else (),
        largest_batch=None if wanted.memory_bytes is None else largest_batch(plan, wanted.memory_bytes),
        what_if=tuple(_what_if(plan, spec.optimizer, given, meter, room)) if wanted.what_if else (),
        memory_bytes=room.memory_bytes,
    )


def _measured(meter: Meter, asked: StepVariant) -> StepAccount:
    found = meter.account(asked)
    if isinstance(found, StepAccount):
        return found
    if found.is_of_memory:
        raise NothingFitsError(f"A batch of {asked.batch_size} does not fit: {found.message} Lower --batch-size.")
    raise WorkloadError(f"The step cannot be measured: {found.message}", found.log_tail or None)


def _found(plan: "StepPlan", variant: StepVariant, meter: Meter | None) -> StepAccount:
    """Measured where it can be, else of the plan, which is the variant's."""
    from loadtune.footprint.estimate import estimate_step

    if meter is None:
        return estimate_step(plan, variant.batch_size, checkpoint=variant.checkpoint)
    return _measured(meter, variant)


def _estimate_or_none(plan: "StepPlan", batch_size: int) -> StepAccount | None:
    """None: what the model computes depends on values, which shapes do not have."""
    from loadtune.footprint.estimate import estimate_step

    try:
        return estimate_step(plan, batch_size)
    except WorkloadError:
        return None


def _what_if(
    plan: "StepPlan", optimizer: OptimizerName, given: StepVariant, meter: Meter | None, room: _Room
) -> Iterator[WhatIf]:
    precisions = PRECISIONS if meter is None else meter.describe().precisions
    for name, variant in variants(given, optimizer, plan.inputs.shape, precisions):
        yield _row(plan, name, variant, meter, room)


def variants(
    given: StepVariant, optimizer: OptimizerName, input_shape: tuple[int, ...], precisions: tuple[Precision, ...]
) -> Iterator[tuple[str, StepVariant]]:
    """The step as given, and with one thing changed at a time, by name. (C, H, W) is an image, whose size can be."""
    yield "as given", given
    for precision in precisions:
        if precision != given.recipe.precision:
            yield PRECISION_TEXT[precision], replace(given, recipe=replace(given.recipe, precision=precision))
    for chosen, name in OPTIMIZER_NAMES.items():
        if chosen != optimizer:
            yield name, replace(given, optimizer=chosen)
    yield "checkpointed blocks", replace(given, checkpoint=True)
    if len(input_shape) == 3:
        for size in (input_shape[-1] // 2, 2 * input_shape[-1]):
            yield f"{size}×{size} images", replace(given, image_size=size)


def _row(plan: "StepPlan", name: str, variant: StepVariant, meter: Meter | None, room: _Room) -> WhatIf:
    from loadtune.footprint.plan import varied

    changed = varied(plan, variant)
    row = WhatIf(name=name, peak_bytes=None, estimated=meter is None)
    try:
        found = _found(changed, variant, meter)
        row = replace(row, peak_bytes=found.peak_bytes, step_s=found.step_s)
    except (WorkloadError, NothingFitsError) as error:
        row = replace(row, remark=str(error))
    with suppress(WorkloadError):  # by shapes it cannot be said
        return replace(row, largest_batch=room.largest_batch(changed, checkpoint=variant.checkpoint))
    return row
