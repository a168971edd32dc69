"""What code a workload is made of, so that another can be told from it later.

In: a `Workload` that was built. Out: `CodePart`s. Files of the user alone: torch, torchvision and what else is
installed are known by their versions. A module that was imported from a file of the user's counts wherever it came
from, so that a model beside the script that builds it is seen too.
"""

import hashlib
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn
from torch.utils.data import Subset

from loadtune.records.config import WorkloadSpec, is_import_path
from loadtune.records.facts import CodePart
from loadtune.workload.build import Workload
from loadtune.workload.factories import module_of

_OURS = Path(__file__).resolve().parents[1]
_INSTALLED = {"site-packages", "dist-packages"}


def code_of(workload: Workload) -> tuple[CodePart, ...]:
    """The user's files by name, then the dataset's class and the model's layers. What cannot be read is left out."""
    parts = {
        **dict(sorted(_files(workload.spec).items())),
        "the dataset's class": _dataset_text(workload.dataset).encode(),
        "the model's layers": _layers_text(workload.model).encode(),
    }
    return tuple(CodePart(name=name, sha256=hashlib.sha256(content).hexdigest()) for name, content in parts.items())


def _files(spec: WorkloadSpec) -> dict[str, bytes]:
    """``pkg/mod.py`` → what is in it, of the user's modules and of those that were named."""
    paths = (
        spec.dataset,
        spec.model,
        spec.loader,
        spec.collate,
        spec.loss,
        spec.optimizer,
        spec.step,
    )
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


def _dataset_text(dataset: Any) -> str:
    """Its class, and what a `Subset` is one of."""
    text = _class_text(dataset)
    return f"{text} of {_dataset_text(dataset.dataset)}" if isinstance(dataset, Subset) else text


def _layers_text(model: nn.Module) -> str:
    """Every layer by name and class, activations too; torch's own also with their sizes.

    What a layer of the user's says of itself may hold weights or addresses, which differ each time.
    """
    layers = [(name, layer, type(layer).__module__.startswith("torch.nn.")) for name, layer in model.named_modules()]
    return "\n".join(
        f"{name}: {_class_text(layer)}({layer.extra_repr() if is_torchs else ''})" for name, layer, is_torchs in layers
    )


def _class_text(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
