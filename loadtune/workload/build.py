"""A `WorkloadSpec`, and the caller's own objects where there are any → everything one training step needs."""

import hashlib
import sys
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import torch
from torch import nn

from loadtune.errors import WorkloadError
from loadtune.records.config import LiveObjects, OptimizerName, WorkloadSpec, is_import_path
from loadtune.records.facts import CodePart
from loadtune.workload.batches import Batch
from loadtune.workload.datasets import make_parts, num_classes_of
from loadtune.workload.live import LiveParts, unpack_parts
from loadtune.workload.loaders import Epoch, LoaderParts, epoch_of
from loadtune.workload.models import make_model, model_needs
from loadtune.workload.tasks import (
    ComputeLoss,
    Loss,
    MakeStep,
    OptimizerFactory,
    loss_of_batches,
    takes_model,
)
from loadtune.workload.user_code import find_function, module_of

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained, still on the CPU."""

    spec: WorkloadSpec
    loader: LoaderParts
    """What is loaded: of the user's own DataLoader, or a dataset in random order."""
    epoch: Epoch
    """What one epoch of it draws."""
    model: nn.Module
    """An empty one where the user's own step trains."""
    compute_loss: ComputeLoss
    """Of a batch of any structure that can be trained on."""
    num_classes: int
    """As the user gave it, else as the dataset says, else as the model's published weights have it."""
    own_model: bool = False
    """The model is the user's own code, so its traceback is shown."""
    own_loader: bool = False
    """The settings of the loader are the user's own."""
    own_loss: bool = False
    """The loss is the user's own: outputs and targets are whatever it accepts."""
    own_batches: bool = False
    """Batches are the user's own: a loss of (model, batch) or a step takes them as they are."""
    make_step: MakeStep | None = None
    """The user's own training. None: ours."""
    own_optimizer: OptimizerFactory | None = None
    """None: the spec's."""
    on_device: tuple[Callable[[Batch], Batch], ...] = ()
    """What is done with a batch once it is on the device, before it is trained on."""

    @property
    def dataset(self) -> Any:
        return self.loader.dataset

    @property
    def named_dataset(self) -> bool:
        """Whether it is torchvision's, with a transform of ours."""
        return not (self.own_loader or "dataset" in self.spec.objects or is_import_path(self.spec.dataset))

    @property
    def optimizer(self) -> OptimizerName | OptimizerFactory:
        return self.own_optimizer or self.spec.named_optimizer or "sgd"

    @property
    def has_own_code(self) -> bool:
        """Whether a failing step may be the fault of the user's code, whose traceback then helps."""
        return self.own_model or self.own_loss or self.own_batches


def build_workload(
    spec: WorkloadSpec,
    objects: LiveObjects | None = None,
    device: torch.device = _CPU,
    making: AbstractContextManager[object] | None = None,
) -> Workload:
    """Build loader and model from objects, or from the names in `spec`. Raises WorkloadError.

    Nothing is trained. Everything stays on the CPU, except tensors of a loss, which go to `device`. Only the model is
    made within `making`, for example under fake tensors, so that a model of any size takes no memory.
    """
    live = LiveParts() if objects is None else unpack_parts(objects, device)
    make_step: MakeStep | None = _given(live.step, spec.step, "step")
    loss: Loss | None = _given(live.loss, spec.loss, "loss function")
    of_batch = loss is not None and takes_model(loss)
    named = spec.optimizer not in get_args(OptimizerName)
    optimizer: OptimizerFactory | None = _given(live.optimizer, spec.optimizer if named else None, "optimizer")
    is_own = live.model is not None or make_step is not None
    needs = model_needs(spec, is_live=is_own)
    loader = make_parts(spec, needs, live)
    num_classes = spec.num_classes or num_classes_of(loader.dataset) or needs.num_classes
    torch.manual_seed(spec.seed)
    with making or nullcontext():
        model = (
            nn.Module()
            if make_step is not None
            else make_model(spec, needs, num_classes, live.model, own_training=of_batch)
        )
    if make_step is None and not any(parameter.requires_grad for parameter in model.parameters()):
        raise WorkloadError(
            f"The model {spec.model} has no trainable parameter: requires_grad is False for all. Unfreeze some of them."
        )
    own_model = is_own or is_import_path(spec.model)
    return Workload(
        spec=spec,
        loader=loader,
        epoch=epoch_of(loader, spec.seed),
        model=model,
        compute_loss=loss_of_batches(loss, spec.loss or ""),
        num_classes=num_classes,
        own_model=own_model,
        own_loader=live.loader is not None or spec.loader is not None,
        own_loss=loss is not None and not of_batch,
        own_batches=of_batch or make_step is not None,
        make_step=make_step,
        own_optimizer=optimizer,
    )


def _given(live: Any, path: str | None, option: str) -> Any:
    """The caller's function, or the one that the path names. None: neither."""
    if live is not None or path is None:
        return live
    found: Callable[..., Any] = find_function(path, option)
    return found


# What code it is made of


_OURS = Path(__file__).resolve().parents[1]
_INSTALLED = {"site-packages", "dist-packages"}


def code_of(workload: Workload) -> tuple[CodePart, ...]:
    """What tells this workload from another later: the user's files by name, and the model's layers.

    torch and what else is installed are known by their versions. A module that was imported from a file of the user's
    counts wherever it came from, so that a model beside the script that builds it is seen too.
    """
    parts = dict(sorted(_files(workload.spec).items())) | {"the model's layers": _layers_text(workload.model).encode()}
    return tuple(CodePart(name=name, sha256=hashlib.sha256(content).hexdigest()) for name, content in parts.items())


def _files(spec: WorkloadSpec) -> dict[str, bytes]:
    """``pkg/mod.py`` → what is in it, of the user's modules and of those that were named."""
    paths = (spec.dataset, spec.model, spec.loader, spec.collate, spec.loss, spec.optimizer, spec.step)
    named = {module_of(path) for path in paths if path is not None and is_import_path(path)}
    libraries = (_OURS, *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")))
    found: dict[str, bytes] = {}
    for name, module in list(sys.modules.items()):
        path = _source(module)
        if path is not None and (name in named or _is_users(name, path, libraries)):
            inside = "/__init__" if path.stem == "__init__" else ""
            try:
                found[f"{name.replace('.', '/')}{inside}.py"] = path.read_bytes()
            except OSError:
                continue
    return found


def _source(module: ModuleType | None) -> Path | None:
    """Absolute. None: it has no source of its own; torch has modules that only claim one."""
    file = getattr(module, "__file__", None)
    path = Path(file) if isinstance(file, str) else None
    return path if path is not None and path.is_absolute() and path.suffix == ".py" else None


def _is_users(name: str, path: Path, libraries: Sequence[Path]) -> bool:
    """An installed file may be a link to where it is kept, and a folder of the user's a link to another.

    What torch.compile writes is a module of torch's that lies in a temporary folder.
    """
    return not name.startswith("torch.") and all(
        _INSTALLED.isdisjoint(where.parts) and not any(where.is_relative_to(library) for library in libraries)
        for where in (path, path.resolve())
    )


def _layers_text(model: nn.Module) -> str:
    """Every layer by name and class, activations too, and the shapes of the parameters."""
    layers = [f"{name}: {type(layer).__module__}.{type(layer).__qualname__}" for name, layer in model.named_modules()]
    return "\n".join([*layers, *(f"{name} {tuple(weights.shape)}" for name, weights in model.named_parameters())])
