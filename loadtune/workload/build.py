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
from typing import Any, get_args

import cloudpickle
import torch
from torch import nn

from loadtune.errors import WorkloadError
from loadtune.records.config import LiveObjects, OptimizerName, WorkloadSpec, is_import_path
from loadtune.records.facts import CodePart
from loadtune.workload.batches import Batch
from loadtune.workload.datasets import make_model, make_parts, model_needs, num_classes_of
from loadtune.workload.loaders import Epoch, LoaderParts, epoch_of
from loadtune.workload.tasks import ComputeLoss, Loss, MakeStep, OptimizerFactory, loss_of_batches, takes_model
from loadtune.workload.user_code import find_function, is_users_file, last_line, module_of, reported

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
    optimizer: OptimizerName | OptimizerFactory = "sgd"
    on_device: tuple[Callable[[Batch], Batch], ...] = ()
    """What is done with a batch once it is on the device, before it is trained on."""

    @property
    def dataset(self) -> Any:
        return self.loader.dataset


def pack_parts(parts: Mapping[str, Any]) -> LiveObjects:
    """Parts of the caller's `Job` as bytes, by name; what its ``__main__`` defines travels by value. ``input_shape`` of
    one sample: random ones take the dataset's place. Tensors arrive on the CPU.

    Raises WorkloadError that names the part which cannot be pickled.
    """
    try:
        pickled = _pickled(parts)
    except Exception:
        for name, part in parts.items():  # one by one, to tell which
            try:
                _pickled(part)
            except Exception as error:
                raise WorkloadError(
                    f"The {name} ({type(part).__name__}) cannot be sent to the training process, because it cannot be "
                    f"pickled: {last_line(error)}. Pass its import path, `pkg.mod:factory`, or for a model, dataset or "
                    "loader a function without arguments that returns it. Otherwise remove references to open files, "
                    "locks, threads and connections."
                ) from error
        raise
    # Absolute: '' stands for the folder a script or a prompt was started in.
    return LiveObjects(pickled=pickled, search_path=tuple(os.path.abspath(folder) for folder in sys.path))


def _pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=cloudpickle, pickle_protocol=cloudpickle.DEFAULT_PROTOCOL)
    return buffer.getvalue()


def unpack_parts(objects: LiveObjects, device: torch.device) -> dict[str, Any]:
    """The parts again, importing what they need from where the caller would; a loss with tensors goes to the device.

    Raises WorkloadError where that fails.
    """
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
    """Build loader and model from objects, or from the names in `spec`. Raises WorkloadError.

    Nothing is trained. Everything stays on the CPU, except tensors of a loss, which go to `device`. Only the model is
    made within `making`, for example under fake tensors, so that a model of any size takes no memory.
    """
    live = {} if objects is None else unpack_parts(objects, device)

    def given(name: str, path: str | None, option: str) -> Any:
        """The caller's function, or the one that the path names. None: neither."""
        return live.get(name) if name in live or path is None else find_function(path, option)

    make_step: MakeStep | None = given("step", spec.step, "step")
    loss: Loss | None = given("loss", spec.loss, "loss function")
    named = spec.optimizer in get_args(OptimizerName)
    optimizer: OptimizerFactory | None = given("optimizer", None if named else spec.optimizer, "optimizer")
    of_batch = loss is not None and takes_model(loss)
    is_own = "model" in live or make_step is not None
    needs = model_needs(spec, is_live=is_own)
    loader = make_parts(spec, needs, live)
    num_classes = spec.num_classes or num_classes_of(loader.dataset) or needs.num_classes
    torch.manual_seed(spec.seed)
    with making or nullcontext():
        if make_step is not None:
            model = nn.Module()
        else:
            model = make_model(spec, needs, num_classes, live.get("model"), own_training=of_batch)
    if make_step is None and not any(parameter.requires_grad for parameter in model.parameters()):
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
        own_model=is_own or is_import_path(spec.model),
        own_loader="loader" in live or spec.loader is not None,
        own_loss=loss is not None and not of_batch,
        own_batches=of_batch or make_step is not None,
        make_step=make_step,
        optimizer=optimizer or spec.named_optimizer or "sgd",
    )


# What code it is made of


def code_of(workload: Workload) -> tuple[CodePart, ...]:
    """What tells this workload from another later: the user's files by name, and the model's layers.

    torch and what else is installed are known by their versions. A module that was imported from a file of the user's
    counts wherever it came from, so that a model beside the script that builds it is seen too.
    """
    model = workload.model
    layers = [f"{name}: {type(layer).__module__}.{type(layer).__qualname__}" for name, layer in model.named_modules()]
    layers += [f"{name} {tuple(weights.shape)}" for name, weights in model.named_parameters()]
    parts = dict(sorted(_files(workload.spec).items())) | {"the model's layers": "\n".join(layers).encode()}
    return tuple(CodePart(name=name, sha256=hashlib.sha256(content).hexdigest()) for name, content in parts.items())


def _files(spec: WorkloadSpec) -> dict[str, bytes]:
    """``pkg/mod.py`` → what is in it, of the user's modules and of those that were named."""
    paths = (spec.dataset, spec.model, spec.loader, spec.collate, spec.loss, spec.optimizer, spec.step)
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
    return found
