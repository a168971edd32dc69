"""What one step trains, by shapes alone: a model of fake tensors, the shape of a sample, the loss, the optimizer.

In: a `WorkloadSpec`, or a factory and a shape. Out: a `StepPlan`. The dataset is real: a sample of it is looked at.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import init

from loadtune.records import OptimizerName, Precision, StepOptimizer, StepVariant, WorkloadSpec
from loadtune.workload import Task, build_workload, class_loss, collate_samples, fetch_samples, make_optimizer

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleShape:
    """One tensor of a batch, without its batch dimension."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def batch(self, batch_size: int) -> torch.Tensor:
        return torch.zeros((batch_size, *self.shape), dtype=self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One training step, ready to be taken through at any batch size."""

    fake: FakeTensorMode
    """Under which the model was made, and everything else of the step has to be."""
    name: str
    model: nn.Module
    task: Task
    inputs: SampleShape
    targets: SampleShape
    optimizer: str
    make_optimizer: MakeOptimizer
    precision: Precision
    has_loss: bool = True
    """False: the backward pass starts from the mean of the model's outputs, without targets."""


def plan_of_spec(spec: WorkloadSpec, precision: Precision = "fp32") -> StepPlan:
    """The workload's step. Targets of any kind are taken. Raises WorkloadError as a run of it would."""
    fake = _OneFakeMode()
    workload = build_workload(spec, making=_making(fake))
    inputs, targets = collate_samples(
        fetch_samples(workload.dataset, [0]), [0], any_target=workload.answers_with_logits
    )
    return StepPlan(
        fake=fake,
        name=spec.model,
        model=workload.model,
        task=workload.task,
        inputs=_shape_of(inputs),
        targets=SampleShape(shape=tuple(targets.shape[1:]), dtype=torch.long),
        optimizer=spec.optimizer,
        make_optimizer=_maker(cast(OptimizerName, spec.optimizer)),
        precision=precision,
        has_loss=not targets.is_floating_point(),
    )


def plan_of_factory(
    make_model: Callable[[], nn.Module],
    input_shape: tuple[int, ...],
    *,
    optimizer: OptimizerName | MakeOptimizer = "sgd",
    precision: Precision = "fp32",
    task: Task = class_loss,
) -> StepPlan:
    """A classifier of one's own on float32 inputs of this shape, without the batch dimension."""
    fake = _OneFakeMode()
    with _making(fake):
        model = make_model()
    return StepPlan(
        fake=fake,
        name=type(model).__name__,
        model=model,
        task=task,
        inputs=SampleShape(shape=input_shape, dtype=torch.float32),
        targets=SampleShape(shape=(), dtype=torch.long),
        optimizer=optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", "own"),
        make_optimizer=_maker(optimizer) if isinstance(optimizer, str) else optimizer,
        precision=precision,
    )


def varied(plan: StepPlan, variant: StepVariant) -> StepPlan:
    """The same step under the variant's precision, optimizer and image size."""
    changed = replace(plan, precision=variant.recipe.precision)
    if variant.optimizer is not None:
        changed = replace(changed, optimizer=variant.optimizer, make_optimizer=_maker(variant.optimizer))
    if variant.image_size is not None:
        pixels = (variant.image_size, variant.image_size)
        inputs, targets = (replace(part, shape=part.shape[:-2] + pixels) for part in (plan.inputs, plan.targets))
        changed = replace(changed, inputs=inputs, targets=targets if len(plan.targets.shape) == 2 else plan.targets)
    return changed


class _OneFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]  # PyTorch's own
    """Stays the same when a layer is copied, as nn.TransformerEncoder copies its own: modes do not mix."""

    def __deepcopy__(self, memo: dict[int, object]) -> "_OneFakeMode":
        return self


@contextmanager
def _making(fake: FakeTensorMode) -> Iterator[None]:
    """Within it modules are made of fake tensors, whose initial values are left out: some ask for a value they drew."""
    found = {name: made for name, made in vars(init).items() if name[0] != "_" and name[-1] == "_" and callable(made)}
    try:
        for name in found:
            setattr(init, name, _as_it_is)
        with warnings.catch_warnings(), fake:
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # by PyTorch's own copying
            yield
    finally:
        for name, made in found.items():
            setattr(init, name, made)


def _as_it_is(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    return tensor


def _maker(name: StepOptimizer) -> MakeOptimizer:
    return lambda model: make_optimizer(name, model, fused=False)


def _shape_of(batch: torch.Tensor) -> SampleShape:
    return SampleShape(shape=tuple(batch.shape[1:]), dtype=batch.dtype)
