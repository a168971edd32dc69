"""Where the memory of one training step goes: measured on a GPU, estimated from shapes, and with one thing changed.

In: what to train and what is asked about it. Out: a `FootprintReport`. Beside `tune`, because it needs neither loader
nor study. The training measures; this process estimates, and creates no CUDA context.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.footprint.estimate import (
    CUDA_CONTEXT_BYTES,
    estimate_layers,
    estimate_step,
    largest_batch,
    with_loss_if_it_applies,
)
from loadtune.footprint.plan import StepPlan, plan_of_spec, varied
from loadtune.records.config import PRECISIONS, Precision, Recipe, WorkloadSpec
from loadtune.records.facts import WorkloadFacts
from loadtune.records.footprint import Checkpoint, FootprintReport, StepAccount, StepOptimizer, StepVariant, WhatIf
from loadtune.records.measurement import TrialFailure
from loadtune.report.footprint import OPTIMIZER_TEXT, checkpointed_text
from loadtune.report.wording import PRECISION_TEXT

_STEP_OPTIMIZERS: tuple[StepOptimizer, ...] = ("sgd", "sgd_plain", "adamw")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked about the step."""

    precision: Precision
    batch_size: int
    memory_bytes: int | None = None
    """For which to estimate the largest batch. None: the free memory of the GPU that is measured on."""
    per_layer: bool = False
    checkpoint: bool = False
    what_if: bool = False
    checkpoint_segments: int | None = None
    """For both of these. None: see `Checkpoint.segments`."""

    @property
    def given(self) -> StepVariant:
        return StepVariant(recipe=Recipe(precision=self.precision), batch_size=self.batch_size)

    @property
    def with_checkpoint(self) -> StepVariant:
        return replace(self.given, checkpoint=Checkpoint(segments=self.checkpoint_segments))


class Meter(Protocol):
    """What measures: a training on a GPU."""

    def describe(self) -> WorkloadFacts: ...

    def account(self, asked: StepVariant) -> StepAccount | TrialFailure: ...


def step_report(
    spec: WorkloadSpec, wanted: Wanted, open_meter: Callable[[], AbstractContextManager[Meter]] | None
) -> FootprintReport:
    """Measured by what `open_meter` gives; None: estimated only. A step without a loss is always estimated.

    Raises WorkloadError, NothingFitsError, TrainingError.
    """
    plan = with_loss_if_it_applies(plan_of_spec(spec, wanted.precision), wanted.batch_size)
    if open_meter is None or not plan.has_loss:
        return _report(plan, spec, wanted, None)
    with open_meter() as meter:
        return _report(plan, spec, wanted, meter)


def _report(plan: StepPlan, spec: WorkloadSpec, wanted: Wanted, meter: Meter | None) -> FootprintReport:
    memory_bytes, context_bytes = wanted.memory_bytes, CUDA_CONTEXT_BYTES
    if meter is not None and memory_bytes is None:  # what a training finds free is without its context
        memory_bytes, context_bytes = meter.describe().memory_budget_bytes, 0
    estimate = None
    if meter is not None:
        with suppress(WorkloadError):  # the forward pass depends on the values of tensors: shapes are not enough
            estimate = estimate_step(plan, wanted.batch_size)
    rows: Iterator[WhatIf] = iter(())
    if wanted.what_if:
        precisions = PRECISIONS if meter is None else meter.describe().precisions
        images = plan.input_shape if plan.has_images else ()
        rows = (
            _row(plan, name, variant, meter, memory_bytes, context_bytes)
            for name, variant in variants(wanted, spec.optimizer, images, precisions)
        )
    return FootprintReport(
        account=_found(plan, wanted.given, meter),
        estimate=estimate,
        checkpointed=_found(plan, wanted.with_checkpoint, meter) if wanted.checkpoint else None,
        layers=estimate_layers(plan, wanted.batch_size) if wanted.per_layer else (),
        largest_batch=None if wanted.memory_bytes is None else largest_batch(plan, wanted.memory_bytes),
        what_if=tuple(rows),
        memory_bytes=memory_bytes,
    )


def _found(plan: StepPlan, variant: StepVariant, meter: Meter | None) -> StepAccount:
    """Measured by the meter; without one, estimated from the plan, which has to be the variant's."""
    if meter is None:
        return estimate_step(plan, variant.batch_size, variant.checkpoint)
    found = meter.account(variant)
    if isinstance(found, StepAccount):
        return found
    if found.is_of_memory:
        raise NothingFitsError(
            f"A batch of {variant.batch_size} does not fit into GPU memory: {found.message} Lower --batch-size."
        )
    raise WorkloadError(f"The memory of the step could not be measured: {found.message}", found.log_tail or None)


def variants(
    wanted: Wanted, optimizer: str, input_shape: tuple[int, ...], precisions: tuple[Precision, ...]
) -> Iterator[tuple[str, StepVariant]]:
    """(Name, step): the step as given, then with one thing changed at a time. Only (C, H, W) has an image size."""
    given = wanted.given
    named = next((text for name, text in OPTIMIZER_TEXT.items() if name == optimizer), optimizer)
    yield f"as given: {given.recipe.precision}, {named}", given
    for precision in precisions:
        if precision != given.recipe.precision:
            yield PRECISION_TEXT[precision], replace(given, recipe=replace(given.recipe, precision=precision))
    for other in _STEP_OPTIMIZERS:
        if other != optimizer:
            yield OPTIMIZER_TEXT[other], replace(given, optimizer=other)
    yield "activation checkpointing", wanted.with_checkpoint
    if len(input_shape) == 3:
        for size in (input_shape[-1] // 2, 2 * input_shape[-1]):
            yield f"{size}×{size} images", replace(given, image_size=size)


def _row(
    plan: StepPlan, name: str, variant: StepVariant, meter: Meter | None, memory_bytes: int | None, context_bytes: int
) -> WhatIf:
    """What changes with this step, and the largest batch of it where the memory for it is known."""
    changed = varied(plan, variant)
    row = WhatIf(name=name, peak_bytes=None, estimated=meter is None)
    try:
        found = _found(changed, variant, meter)
        remark = None if found.checkpointed is None else f"{checkpointed_text(found.checkpointed)}."
        row = replace(row, peak_bytes=found.peak_bytes, step_s=found.step_s, remark=remark)
    except (WorkloadError, NothingFitsError) as error:
        row = replace(row, remark=str(error))
    if memory_bytes is not None:
        with suppress(WorkloadError):  # the row's remark says why, or shapes are not enough
            most = largest_batch(changed, memory_bytes, checkpoint=variant.checkpoint, context_bytes=context_bytes)
            return replace(row, largest_batch=most.batch_size)
    return row
