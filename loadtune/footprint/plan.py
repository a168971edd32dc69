"""What one step trains, by shapes alone: a model of fake tensors, the shape of a sample, the loss, the optimizer.

In: a `WorkloadSpec`. Out: a `StepPlan`. The dataset is real: a sample of it is looked at. What a step may be varied by
is here too: precision, optimizer, and activation checkpointing, of a plan's model or of one that is really trained.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import init
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from loadtune.errors import WorkloadError
from loadtune.records.config import LiveObjects, Precision, WorkloadSpec
from loadtune.records.footprint import StepVariant
from loadtune.workload import (
    Batch,
    ComputeLoss,
    Places,
    build_workload,
    make_optimizer,
    sample_shape,
    small_batch,
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

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return sample_shape(self.example, self.places)

    def batch(self, batch_size: int) -> Batch:
        """The example's samples again and again; fake ones under `fake`."""
        num = self.places.num_samples(self.example)
        return self.places.take(self.example, [at % num for at in range(batch_size)])


def plan_of_spec(spec: WorkloadSpec, precision: Precision = "fp32", objects: LiveObjects | None = None) -> StepPlan:
    """The workload's step. Raises WorkloadError as a run of it would."""
    fake = _OneFakeMode()
    workload = build_workload(spec, objects, making=_making(fake))
    example, places = small_batch(workload)
    if not places.are_known:
        raise WorkloadError(f"{uncounted_text(example)} Its memory cannot be estimated for another batch size.")
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
    )


def varied(plan: StepPlan, variant: StepVariant) -> StepPlan:
    """The same step under the variant's precision and optimizer."""
    changed = replace(plan, precision=variant.recipe.precision)
    if variant.optimizer is None:
        return changed
    make = functools.partial(make_optimizer, variant.optimizer, fused=False)
    return replace(changed, optimizer=variant.optimizer, make_optimizer=make)


@contextmanager
def checkpointed(
    model: nn.Module, keep: Callable[[torch.Tensor], object], *, preserve_rng_state: bool = True
) -> Iterator[int]:
    """Run the model's blocks by `torch.utils.checkpoint` for as long as the context lasts; yields their number.

    ``keep`` is called with every tensor that a checkpoint keeps: the inputs of a block. ``preserve_rng_state``: as of
    `torch.utils.checkpoint`; fake tensors have no random numbers to restore. Raises WorkloadError for no block.
    """
    blocks = blocks_of(model)
    if not blocks:
        raise WorkloadError(
            f"{type(model).__name__} has no blocks to checkpoint: modules of several layers in an nn.Sequential or "
            "nn.ModuleList."
        )

    def rerun(forward: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, torch.Tensor):
                    keep(leaf)
            return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, **kwargs)

        return wrapped

    try:
        for block in blocks:
            block.forward = rerun(block.forward)
        yield len(blocks)
    finally:
        for block in blocks:
            vars(block).pop("forward", None)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The residual or encoder blocks: modules of several layers, in an `nn.Sequential` or `nn.ModuleList`."""
    lists = (nn.Sequential, nn.ModuleList)
    found: list[nn.Module] = []
    for child in model.children():
        has_blocks = isinstance(child, lists) and any(_is_made_of_several(part) for part in child.children())
        if isinstance(model, lists) and _is_made_of_several(child) and not has_blocks:
            found.append(child)
        else:
            found += blocks_of(child)
    return found


def _is_made_of_several(module: nn.Module) -> bool:
    return sum(1 for _ in module.modules()) > 2


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
