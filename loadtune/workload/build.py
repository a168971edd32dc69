"""A `WorkloadSpec`, and the caller's own objects where there are any → everything one training step needs.

Objects travel as bytes: `pack_parts` runs in the caller's process, `unpack_parts` in the training process.
"""

import functools
import hashlib
import io
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, get_args

import cloudpickle
import torch
from torch import nn

from loadtune.errors import WorkloadError
from loadtune.records.config import LiveObjects, OptimizerName, WorkloadPart, WorkloadSpec, is_import_path
from loadtune.records.facts import CodePart
from loadtune.workload.batches import Batch
from loadtune.workload.datasets import make_model, make_parts, model_needs, num_classes_of
from loadtune.workload.loaders import Epoch, LoaderParts, epoch_of
from loadtune.workload.tasks import ComputeLoss, Loss, OptimizerFactory, loss_of_batches, takes_model
from loadtune.workload.user_code import find, is_users_file, module_of, reported

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
    """An empty one where the user's script trains."""
    compute_loss: ComputeLoss
    """Of a batch of any structure that can be trained on."""
    num_classes: int
    """As the user gave it, else as the dataset says, else as the model's published weights have it."""
    own: frozenset[str] = frozenset()
    """Parts that are the user's own code, by name. The others were made of a name, or are ours."""
    loss_takes: Literal["classes", "outputs", "batch"] = "classes"
    """``classes``: it is ours. ``outputs``: the user's own takes any outputs and targets. ``batch``: the user's own, or
    a script, takes batches of any structure."""
    optimizer: OptimizerName | OptimizerFactory = "sgd"
    on_device: tuple[Callable[[Batch], Batch], ...] = ()
    """What is done with a batch once it is on the device, before it is trained on."""

    @property
    def dataset(self) -> Any:
        return self.loader.dataset


def pack_parts(parts: Mapping[str, Any]) -> LiveObjects:
    """Parts of the caller's `Job` as bytes, by name; what its ``__main__`` defines travels by value. ``input_shape`` of
    one sample: random ones take the dataset's place. Raises WorkloadError for a part that cannot be pickled."""
    try:
        pickled = _pickled(parts)
    except Exception:
        for name, part in parts.items():  # one by one, to tell which
            with reported(
                f"The {name} ({type(part).__name__}) cannot be sent to the training process, because it cannot be "
                "pickled: {}. Pass its import path, `pkg.mod:factory`, or for a model, dataset or loader a function "
                "without arguments that returns it. Otherwise remove references to open files, locks, threads and "
                "connections.",
                traced=False,
            ):
                _pickled(part)
        raise
    # Absolute: '' stands for the folder a script or a prompt was started in.
    return LiveObjects(pickled=pickled, search_path=tuple(os.path.abspath(folder) for folder in sys.path))


def _pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=cloudpickle, pickle_protocol=cloudpickle.DEFAULT_PROTOCOL)
    return buffer.getvalue()


def unpack_parts(objects: LiveObjects, device: torch.device) -> dict[str, Any]:
    """The parts again, on the CPU, importing what they need from where the caller would; a loss with tensors goes to
    the device. Raises WorkloadError."""
    ForkingPickler.reducer_override = _by_value  # type: ignore[method-assign, assignment]
    sys.path[:] = [*objects.search_path, *(folder for folder in sys.path if folder not in objects.search_path)]
    with reported(
        "The job's objects could not be loaded in the training process: {}. The modules that define them have to be "
        "importable there. Install them, add their folder to PYTHONPATH, or pass import paths such as "
        "`pkg.mod:factory`."
    ):
        parts: dict[str, Any] = torch.load(io.BytesIO(objects.pickled), map_location="cpu", weights_only=False)
    if isinstance(parts.get("loss"), nn.Module):
        parts["loss"].to(device)
    return parts


# Neither the training process nor a worker can import what the caller's ``__main__`` defines. So they send one another
# its classes and functions by value: a dataset to spawned workers, a batch that is a named tuple from any worker.

_bytes_of = functools.cache(cloudpickle.dumps)


@functools.cache
def _defined(content: bytes) -> Any:
    ForkingPickler.reducer_override = _by_value  # type: ignore[method-assign, assignment]  # in a spawned worker, too
    return cloudpickle.loads(content)


def _by_value(pickler: ForkingPickler, value: object) -> Any:
    if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
        return _defined, (_bytes_of(value),)
    return NotImplemented


def build_workload(
    spec: WorkloadSpec,
    objects: LiveObjects | None = None,
    device: torch.device = _CPU,
    making: AbstractContextManager[object] | None = None,
) -> Workload:
    """Build loader and model on the CPU, from objects or from the names in `spec`; tensors of a loss go to `device`.
    Only the model is made within `making`, for example under fake tensors. Raises WorkloadError."""
    own = _own_parts(spec, {} if objects is None else unpack_parts(objects, device))
    loss: Loss | None = own.get("loss")
    of_batch = loss is not None and takes_model(loss)
    needs = model_needs(spec, own)
    loader = make_parts(spec, needs, own)
    num_classes = spec.num_classes or num_classes_of(loader.dataset) or needs.num_classes
    torch.manual_seed(spec.seed)
    with making or nullcontext():
        model = make_model(spec, needs, num_classes, own, own_training=of_batch)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise WorkloadError(
            f"The model {spec.model} has no trainable parameter: requires_grad is False for all. Unfreeze some of them."
        )
    return Workload(
        spec=spec,
        loader=loader,
        epoch=epoch_of(loader, spec.seed),
        model=model,
        compute_loss=loss_of_batches(loss, spec.loss or ""),
        num_classes=num_classes,
        own=frozenset(own),
        loss_takes="batch" if of_batch else "classes" if loss is None else "outputs",
        optimizer=own.get("optimizer") or spec.named_optimizer or "sgd",
    )


_FUNCTIONS = {"loss": "loss function", "optimizer": "optimizer", "collate": "collate function"}
"""Parts that are functions, by what they are called in messages."""


def _own_parts(spec: WorkloadSpec, live: Mapping[str, Any]) -> dict[str, Any]:
    """The user's own parts: objects of the caller, and what import paths name. Raises WorkloadError."""
    own = dict(live)
    for part in get_args(WorkloadPart):
        path, option = getattr(spec, part), _FUNCTIONS.get(part, part)
        is_a_name = part in ("dataset", "model") and not is_import_path(path)
        if part in live or path is None or is_a_name or path in get_args(OptimizerName):
            continue
        own[part] = find(path, option)
        if part in _FUNCTIONS and not callable(own[part]):
            found = type(own[part]).__name__
            raise WorkloadError(f"The {option} {path} is of type {found}. It has to be a function or class.")
    return own


def code_of(workload: Workload) -> tuple[CodePart, ...]:
    """What tells this workload from another later: the user's files that were imported, by name, ``pkg/mod.py``, and
    the model's layers."""
    paths = [getattr(workload.spec, part) for part in get_args(WorkloadPart)]
    named = {module_of(path) for path in paths if path is not None and is_import_path(path)}
    found: dict[str, bytes] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        path = Path(file if isinstance(file, str) else "")  # torch has modules that only claim one
        if not path.is_absolute() or path.suffix != ".py":
            continue
        # What torch.compile writes is a module of torch's that lies in a temporary folder.
        if name in named or (not name.startswith("torch.") and is_users_file(str(path))):
            inside = "/__init__" if path.stem == "__init__" else ""
            with suppress(OSError):
                found[f"{name.replace('.', '/')}{inside}.py"] = path.read_bytes()
    model = workload.model
    layers = [f"{name}: {type(layer).__module__}.{type(layer).__qualname__}" for name, layer in model.named_modules()]
    layers += [f"{name} {tuple(weights.shape)}" for name, weights in model.named_parameters()]
    parts = dict(sorted(found.items())) | {"the model's layers": "\n".join(layers).encode()}
    return tuple(CodePart(name=name, sha256=hashlib.sha256(content).hexdigest()) for name, content in parts.items())
