"""A `Workload` around a dataset and a model that a test made."""

from collections.abc import Callable
from typing import Any

from torch import nn

from loadtune.records.config import WorkloadSpec
from loadtune.workload.build import Workload, class_loss
from loadtune.workload.loaders import Epoch, LoaderParts, epoch_of


def workload_of(
    dataset: Any,
    model: nn.Module | None = None,
    task: Callable[..., Any] = class_loss,
    *,
    num_classes: int = 3,
    **given: Any,
) -> Workload:
    """``given``: fields in place of the plain ones."""
    loader = given.get("loader") or (LoaderParts(dataset=None) if dataset is None else LoaderParts.shuffled(dataset))
    plain: dict[str, Any] = {
        "spec": WorkloadSpec(),
        "loader": loader,
        "epoch": Epoch(num_draws=None) if loader.dataset is None else epoch_of(loader, 0),
        "model": nn.Identity() if model is None else model,
        "compute_loss": lambda model, batch: task(model, *batch),
        "num_classes": num_classes,
    }
    return Workload(**(plain | given))
