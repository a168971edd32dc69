"""Live objects of the caller → bytes → the same objects in the training process.

Both processes use this module: `pack_parts` runs in the caller's, `unpack_parts` in the training process. Neither
touches a GPU: tensors travel as bytes and arrive on the CPU.
"""

import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import cloudpickle
import torch
from torch import nn

from loadtune.errors import WorkloadError
from loadtune.records.config import LiveObjects
from loadtune.workload.loaders import LoaderParts
from loadtune.workload.tasks import Loss, MakeStep, OptimizerFactory
from loadtune.workload.user_code import last_line, user_traceback


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveParts:
    """What of a workload was given as an object. None: it has a name, which the `WorkloadSpec` holds."""

    model: nn.Module | Callable[[], Any] | None = None
    """A module, or what makes one."""
    dataset: Any = None
    """A dataset, or what makes one."""
    input_shape: tuple[int, ...] | None = None
    """Of one sample: random ones take the dataset's place."""
    loss: Loss | None = None
    """Of outputs and targets, or of model and batch. None: cross entropy, or what the spec names."""
    optimizer: OptimizerFactory | None = None
    loader: LoaderParts | Callable[[], Any] | None = None
    """A DataLoader taken apart, or what makes one: it takes the dataset's place."""
    collate: Callable[[list[Any]], Any] | None = None
    step: MakeStep | None = None

    @property
    def dataset_is_made(self) -> bool:
        """False: it is a class or function that has to be called."""
        return not isinstance(self.dataset, type) and hasattr(self.dataset, "__getitem__")


def pack_parts(parts: LiveParts) -> LiveObjects:
    """Parts of the caller as bytes; what its ``__main__`` defines travels by value.

    Raises WorkloadError that names the part which cannot be pickled.
    """
    try:
        pickled = _pickled(parts)
    except Exception:
        for field in fields(parts):  # one by one, to tell which
            part = getattr(parts, field.name)
            try:
                _pickled(part)
            except Exception as error:
                raise WorkloadError(
                    f"The {field.name} ({type(part).__name__}) cannot be sent to the training process, because it "
                    f"cannot be pickled: {last_line(error)}. Pass its import path, `pkg.mod:factory`, or for a model, "
                    "dataset or loader a function without arguments that returns it. Otherwise remove references to "
                    "open files, locks, threads and connections."
                ) from error
        raise
    # Absolute: '' stands for the folder a script or a prompt was started in.
    return LiveObjects(pickled=pickled, search_path=tuple(os.path.abspath(folder) for folder in sys.path))


def unpack_parts(objects: LiveObjects, device: torch.device) -> LiveParts:
    """The parts again, importing what they need from where the caller would; a loss with tensors goes to the device.

    Raises WorkloadError where that fails.
    """
    sys.path[:] = [*objects.search_path, *(folder for folder in sys.path if folder not in objects.search_path)]
    try:
        parts: LiveParts = torch.load(io.BytesIO(objects.pickled), map_location="cpu", weights_only=False)
    except (Exception, SystemExit) as error:  # a module without a main guard may exit while it is imported
        raise WorkloadError(
            f"The job's objects could not be loaded in the training process: {last_line(error)}. "
            "The modules that define them have to be importable there. Install them, add their folder to PYTHONPATH, "
            "or pass import paths such as `pkg.mod:factory`.",
            user_traceback(error),
        ) from error
    if isinstance(parts.loss, nn.Module):
        parts.loss.to(device)
    return parts


def _pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=cloudpickle, pickle_protocol=cloudpickle.DEFAULT_PROTOCOL)
    return buffer.getvalue()
