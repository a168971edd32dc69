"""A `Workload` around a dataset and a model that a test made."""

from typing import Any

from torch import nn

from loadtune.records import WorkloadSpec
from loadtune.workload import LoaderParts, Task, Workload, class_loss
from loadtune.workload.tasks import forward_for, on_pairs


def workload_of(
    dataset: Any, model: nn.Module | None = None, task: Task = class_loss, *, num_classes: int = 3, **given: Any
) -> Workload:
    """``given``: fields in place of the plain ones."""
    plain: dict[str, Any] = {
        "spec": WorkloadSpec(),
        "family": "classification",
        "loader": LoaderParts(dataset=dataset, batch_size=1),
        "model": nn.Identity() if model is None else model,
        "task": task,
        "compute_loss": on_pairs(task, any_structure=False),
        "forward": forward_for("classification"),
        "num_classes": num_classes,
    }
    return Workload(**(plain | given))
