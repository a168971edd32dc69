"""A `WorkloadSpec` → everything one training step needs."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from loadtune.errors import WorkloadError
from loadtune.records import WorkloadSpec
from loadtune.workload.datasets import dataset_length, make_dataset, num_classes_of
from loadtune.workload.models import Family, make_model, model_needs
from loadtune.workload.tasks import Forward, Task, forward_for, task_for


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
    """Of the user, else of the dataset, else of the model's family."""

    @property
    def dataset_length(self) -> int:
        return dataset_length(self.dataset)


def build_workload(spec: WorkloadSpec) -> Workload:
    """Resolve both names and build both. Raises WorkloadError, before anything was trained."""
    needs = model_needs(spec)
    dataset = make_dataset(spec, needs)
    num_classes = spec.num_classes or num_classes_of(dataset) or needs.num_classes
    torch.manual_seed(spec.seed)
    model = make_model(spec, needs, num_classes)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise WorkloadError(f"model {spec.model} has no parameter that can be trained.")
    return Workload(
        spec=spec,
        family=needs.family,
        dataset=dataset,
        model=model,
        task=task_for(needs.family, spec.model),
        forward=forward_for(needs.family),
        num_classes=num_classes,
    )
