"""A `WorkloadSpec`, and the caller's own objects where there are any → everything one training step needs."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from loadtune.errors import WorkloadError
from loadtune.records import LiveObjects, OptimizerName, WorkloadSpec
from loadtune.workload.datasets import dataset_length, make_dataset, num_classes_of
from loadtune.workload.factories import is_import_path
from loadtune.workload.live import LiveParts, unpack_parts
from loadtune.workload.models import Family, make_model, model_needs
from loadtune.workload.optimizers import OptimizerFactory
from loadtune.workload.tasks import Forward, Task, forward_for, own_loss_task, task_for

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained, still on the CPU."""

    spec: WorkloadSpec
    family: Family
    dataset: Dataset[Any]
    model: nn.Module
    task: Task
    forward: Forward
    num_classes: int
    """As the user gave it, else as the dataset says, else the default of the model's family."""
    own_model: bool = False
    """The model is the user's own code, so its traceback is shown."""
    own_loss: bool = False
    """The loss is the user's own: outputs and targets are whatever it accepts."""
    own_optimizer: OptimizerFactory | None = None
    """None: the spec's."""

    @property
    def dataset_length(self) -> int:
        return dataset_length(self.dataset)

    @property
    def optimizer(self) -> OptimizerName | OptimizerFactory:
        return self.own_optimizer or self.spec.optimizer

    @property
    def answers_with_logits(self) -> bool:
        """Whether the loss is cross entropy on the model's output; other families have losses of their own."""
        return self.family in ("classification", "video")


def build_workload(
    spec: WorkloadSpec,
    objects: LiveObjects | None = None,
    device: torch.device = _CPU,
    making: AbstractContextManager[object] | None = None,
) -> Workload:
    """Build the dataset and the model from objects, or from the names in `spec`. Raises WorkloadError.

    Nothing is trained. Everything stays on the CPU, except tensors of a loss, which go to `device`. Only the model is
    made within `making`, for example under fake tensors, so that a model of any size takes no memory.
    """
    live = LiveParts() if objects is None else unpack_parts(objects, device)
    needs = model_needs(spec, is_live=live.model is not None)
    dataset = make_dataset(spec, needs, live)
    num_classes = spec.num_classes or num_classes_of(dataset) or needs.num_classes
    torch.manual_seed(spec.seed)
    with making or nullcontext():
        model = make_model(spec, needs, num_classes, live.model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise WorkloadError(
            f"The model {spec.model} has no trainable parameter: requires_grad is False for all. Unfreeze some of them."
        )
    return Workload(
        spec=spec,
        family=needs.family,
        dataset=dataset,
        model=model,
        task=task_for(needs.family, spec.model) if live.loss is None else own_loss_task(live.loss),
        forward=forward_for(needs.family),
        num_classes=num_classes,
        own_model=live.model is not None or is_import_path(spec.model),
        own_loss=live.loss is not None,
        own_optimizer=live.optimizer,
    )
