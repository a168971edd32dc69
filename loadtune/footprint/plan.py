"""What one step trains, by shapes alone: a model of fake tensors, the shape of a sample, the loss, the optimizer.

In: a `WorkloadSpec`. Out: a `StepPlan`. The dataset is real: a sample of it is looked at.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import init

from loadtune.errors import WorkloadError
from loadtune.records.config import LiveObjects, Precision, WorkloadSpec
from loadtune.records.footprint import StepVariant
from loadtune.workload import (
    Batch,
    ComputeLoss,
    Places,
    build_workload,
    is_pair,
    make_optimizer,
    sample_shape,
    small_batch,
    structure_text,
    uncounted_text,
)

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One training step, ready to be taken through at any batch size."""

    fake: FakeTensorMode
    """Under which the model was made, and everything else of the step has to be."""
    name: str
    model: nn.Module
    compute_loss: ComputeLoss
    example: Batch
    """A few samples, of which only shapes and types count."""
    places: Places
    """Where a batch keeps its samples."""
    optimizer: str
    make_optimizer: MakeOptimizer
    precision: Precision
    scores_classes: bool = False
    """Whether the loss is cross entropy on the model's output."""
    takes_inputs: bool = True
    """Whether batches are (inputs, targets), of which the model takes the inputs."""
    has_loss: bool = True
    """False: the backward pass starts from the mean of the model's outputs, without targets."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return sample_shape(self.example, self.places)

    @property
    def has_images(self) -> bool:
        """Whether inputs are one tensor of (C, H, W), which can be taken at another size."""
        return self.takes_inputs and isinstance(self.example[0], torch.Tensor) and self.example[0].dim() == 4

    def batch(self, batch_size: int) -> Batch:
        """The example's samples again and again; fake ones under `fake`."""
        num = self.places.num_samples(self.example)
        return self.places.take(self.example, [at % num for at in range(batch_size)])


def plan_of_spec(spec: WorkloadSpec, precision: Precision = "fp32", objects: LiveObjects | None = None) -> StepPlan:
    """The workload's step. Targets of any kind are taken. Raises WorkloadError as a run of it would."""
    fake = _OneFakeMode()
    workload = build_workload(spec, objects, making=_making(fake))
    example, places = small_batch(workload)
    if not places.are_known:
        raise WorkloadError(
            f"{uncounted_text(example)} Its memory cannot be estimated for another batch size. Name the dimension that "
            "counts them: --batch-dim."
        )
    is_pair_of_ours = is_pair(example) and not workload.own_batches
    has_loss = True
    if is_pair_of_ours and not workload.own_loss:
        inputs, targets = example
        if not (isinstance(inputs, torch.Tensor) and isinstance(targets, torch.Tensor)):
            raise WorkloadError(
                f"A batch is {structure_text(example)}. With cross entropy, the default loss, it has to be a pair "
                "(input tensor, target tensor). For other batches give a loss function of (model, batch): "
                "--loss FILE.py:fn."
            )
        has_loss = not targets.is_floating_point()
        example = (inputs, targets.long())
    return StepPlan(
        fake=fake,
        name=spec.model,
        model=workload.model,
        compute_loss=workload.compute_loss,
        example=example,
        places=places,
        optimizer=spec.optimizer,
        make_optimizer=functools.partial(make_optimizer, workload.optimizer, fused=False),
        precision=precision,
        scores_classes=workload.answers_with_logits and not workload.own_loss,
        takes_inputs=is_pair_of_ours,
        has_loss=has_loss,
    )


def varied(plan: StepPlan, variant: StepVariant) -> StepPlan:
    """The same step under the variant's precision, optimizer and image size."""
    changed = replace(plan, precision=variant.recipe.precision)
    if variant.optimizer is not None:
        make = functools.partial(make_optimizer, variant.optimizer, fused=False)
        changed = replace(changed, optimizer=variant.optimizer, make_optimizer=make)
    if variant.image_size is not None:
        pixels = (variant.image_size, variant.image_size)
        inputs, targets = plan.example
        inputs = inputs.new_zeros((*inputs.shape[:-2], *pixels))
        targets = targets.new_zeros((*targets.shape[:-2], *pixels)) if targets.dim() == 3 else targets
        changed = replace(changed, example=(inputs, targets))
    return changed


class _OneFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]  # PyTorch's own
    """Stays the same when a layer is copied, as nn.TransformerEncoder copies its own: modes do not mix. Real tensors,
    such as the class weights of a loss, are taken too."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

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
