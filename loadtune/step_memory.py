"""Where the memory of one training step goes: measured on a GPU, estimated from shapes, and with one thing changed.

In: what to train and what is asked about it. Out: a `FootprintReport`. Beside `tune`, because it needs neither loader
nor study. The training measures; this process estimates, and creates no CUDA context.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from loadtune.errors import NothingFitsError, WorkloadError
from loadtune.footprint.estimate import CUDA_CONTEXT_BYTES, estimate_layers, estimate_step, largest_batch
from loadtune.footprint.plan import StepPlan, plan_of_spec, varied
from loadtune.records.config import PRECISIONS, Precision, Recipe, WorkloadSpec
from loadtune.records.facts import WorkloadFacts
from loadtune.records.footprint import FootprintReport, StepAccount, StepVariant, WhatIf
from loadtune.records.measurement import TrialFailure
from loadtune.report.footprint import OPTIMIZER_TEXT
from loadtune.report.wording import PRECISION_TEXT
from loadtune.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked about the step."""

    precision: Precision
    batch_size: int
    memory_bytes: int | None = None
    """For which to estimate the largest batch. None: the free memory of the GPU that is measured on."""
    per_layer: bool = False
    what_if: bool = False

    @property
    def given(self) -> StepVariant:
        return StepVariant(recipe=Recipe(precision=self.precision), batch_size=self.batch_size)


class Meter(Protocol):
    """What measures: a training on a GPU."""

    def describe(self) -> WorkloadFacts: ...

    def account(self, asked: StepVariant) -> StepAccount | TrialFailure: ...


def step_report(
    spec: WorkloadSpec, wanted: Wanted, open_meter: Callable[[], AbstractContextManager[Meter]] | None
) -> FootprintReport:
    """Measured by what `open_meter` gives; None: estimated only.

    Raises WorkloadError, NothingFitsError, TrainingError.
    """
    plan = plan_of_spec(spec, wanted.precision)
    with nullcontext() if open_meter is None else open_meter() as meter:
        memory_bytes, context_bytes = wanted.memory_bytes, CUDA_CONTEXT_BYTES
        precisions, estimate = PRECISIONS, None
        if meter is not None:
            facts = meter.describe()
            precisions = facts.precisions
            if memory_bytes is None:  # what a training finds free is without its context
                memory_bytes, context_bytes = facts.memory_budget_bytes, 0
            with suppress(WorkloadError):  # the forward pass depends on the values of tensors: shapes are not enough
                estimate = estimate_step(plan, wanted.batch_size)
        asked = variants(wanted.given, spec.optimizer, precisions) if wanted.what_if else ()
        return FootprintReport(
            account=_found(plan, wanted.given, meter),
            estimate=estimate,
            layers=estimate_layers(plan, wanted.batch_size) if wanted.per_layer else (),
            largest_batch=None if wanted.memory_bytes is None else largest_batch(plan, wanted.memory_bytes),
            what_if=tuple(_row(plan, name, each, meter, memory_bytes, context_bytes) for name, each in asked),
            memory_bytes=memory_bytes,
        )


def _found(plan: StepPlan, variant: StepVariant, meter: Meter | None) -> StepAccount:
    """Measured by the meter; without one, estimated from the plan, which has to be the variant's."""
    if meter is None:
        return estimate_step(plan, variant.batch_size, checkpoint=variant.checkpoint)
    found = meter.account(variant)
    if isinstance(found, StepAccount):
        return found
    if found.is_of_memory:
        raise NothingFitsError(
            f"A batch of {variant.batch_size} does not fit into GPU memory: {found.message} Lower --batch-size."
        )
    raise WorkloadError(f"The memory of the step could not be measured: {found.message}", found.log_tail or None)


def variants(
    given: StepVariant, optimizer: str, precisions: tuple[Precision, ...]
) -> Iterator[tuple[str, StepVariant]]:
    """(Name, step): the step as given, then with one thing changed at a time."""
    named = next((text for name, text in OPTIMIZER_TEXT.items() if name == optimizer), optimizer)
    yield f"as given: {given.recipe.precision}, {named}", given
    for precision in precisions:
        if precision != given.recipe.precision:
            yield PRECISION_TEXT[precision], replace(given, recipe=replace(given.recipe, precision=precision))
    for other, text in OPTIMIZER_TEXT.items():
        if other != optimizer:
            yield text, replace(given, optimizer=other)
    yield "activation checkpointing", replace(given, checkpoint=True)


def _row(
    plan: StepPlan, name: str, variant: StepVariant, meter: Meter | None, memory_bytes: int | None, context_bytes: int
) -> WhatIf:
    """What changes with this step, and the largest batch of it where the memory for it is known."""
    changed = varied(plan, variant)
    row = WhatIf(name=name, estimated=meter is None)
    try:
        found = _found(changed, variant, meter)
        row = replace(row, peak_bytes=found.peak_bytes, step_s=found.step_s)
        if variant.checkpoint:
            row = replace(row, remark=f"{counted(found.num_checkpointed_blocks, 'block')} checkpointed.")
    except (WorkloadError, NothingFitsError) as error:
        row = replace(row, remark=str(error))
    if memory_bytes is not None:
        with suppress(WorkloadError):  # the row's remark says why, or shapes are not enough
            most = largest_batch(changed, memory_bytes, checkpoint=variant.checkpoint, context_bytes=context_bytes)
            return replace(row, largest_batch=most.batch_size)
    return row
