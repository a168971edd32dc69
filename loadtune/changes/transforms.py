"""The transforms that a dataset holds, also behind `Subset` and in attributes of the user's own datasets: found, and
written as code. Needs torchvision; imported late.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from types import CodeType
from typing import Any

import torch
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision.datasets.folder import DatasetFolder
from torchvision.transforms import v2

_DEEPEST = 6
_SEVERAL = 64
"""Objects below a dataset that are looked through, and elements of a list of them."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object that the dataset holds."""

    held: Any
    path: tuple[str, ...]
    """How it is reached in code, from ``dataset`` on: ``("dataset", ".dataset", ".transform")``."""

    @property
    def code(self) -> str:
        return "".join(self.path)

    @property
    def steps(self) -> list[Any]:
        return list(self.held.transforms) if isinstance(self.held, (v1.Compose, v2.Compose)) else [self.held]


def find_transforms(dataset: Any) -> list[Found]:
    """Transforms of torchvision, each once: a Compose, or a single one."""
    return [each for each in _held(dataset) if each.held is not dataset and not isinstance(each.held, Dataset)]


def find_folders(dataset: Any) -> list[Found]:
    """Of the kind of ImageFolder."""
    return [each for each in _held(dataset) if isinstance(each.held, DatasetFolder)]


def _held(dataset: Any) -> Iterator[Found]:
    """Datasets and transforms, the nearest first; an object that is held twice is found where its owner uses it."""
    seen, waiting = set[int](), [Found(dataset, ("dataset",))]
    while waiting:
        found = waiting.pop(0)
        if id(found.held) in seen or len(found.path) > _DEEPEST:
            continue
        seen.add(id(found.held))
        is_dataset = found.held is dataset or isinstance(found.held, Dataset)
        if not is_dataset and not type(found.held).__module__.endswith("datasets.vision"):
            yield found
            continue
        yield from [found] if is_dataset else []
        attributes = getattr(found.held, "__dict__", {})
        used = _names_used(type(found.held))
        for name, value in sorted(attributes.items(), key=lambda each: each[0] not in used):
            parts: list[tuple[Any, str]] = [(value, f".{name}")]
            if isinstance(value, (list, tuple)) and len(value) <= _SEVERAL:
                parts += [(each, f".{name}[{at}]") for at, each in enumerate(value)]
            waiting += [Found(part, (*found.path, step)) for part, step in parts if _is_of_use(part)]


def _names_used(kind: type) -> set[str]:
    code = getattr(getattr(kind, "__getitem__", None), "__code__", None)
    return set(code.co_names) if isinstance(code, CodeType) else set()


def _is_of_use(value: Any) -> bool:
    is_torchvisions = type(value).__module__.startswith("torchvision.transforms.")
    return is_torchvisions or isinstance(value, Dataset) or type(value).__name__ == "StandardTransform"


# As code


def code_of(step: Any) -> str | None:
    """The step of v1 as one of v2 in code, ``v2.RandomHorizontalFlip(p=0.5)``. None: it stays the object that it is."""
    kind = getattr(v2, type(step).__name__, None)
    if not isinstance(step, torch.nn.Module) or not type(step).__module__.startswith("torchvision.") or kind is None:
        return None
    usual = {name: each.default for name, each in signature(kind).parameters.items()}
    values = {name: getattr(step, name) for name in usual if hasattr(step, name) and name != "antialias"}  # always
    given = {name: _value_text(value) for name, value in values.items() if not _is_usual(value, usual[name])}
    if any(text is None for text in given.values()) or isinstance(step, v2.Transform):
        return None
    return f"v2.{type(step).__name__}({', '.join(f'{name}={text}' for name, text in given.items())})"


def _is_usual(value: Any, usual: Any) -> bool:
    both = [tuple(each) if isinstance(each, (list, tuple)) else each for each in (value, usual)]
    return type(both[0]) is type(both[1]) and both[0] == both[1]


def _value_text(value: Any) -> str | None:
    """None: it cannot be written."""
    if isinstance(value, v1.InterpolationMode):
        return f"v2.InterpolationMode.{value.name}"
    inside = value if type(value) in (list, tuple) else (value,)
    return repr(value) if all(type(each) in (bool, int, float, str, type(None)) for each in inside) else None


def copies(found: Sequence[Found]) -> list[str]:
    """Lines that give each dataset on the way a copy, before it is changed. Empty: none is needed."""
    owners = dict[str, None]()
    for each in found:
        for at in range(2, len(each.path) + isinstance(each.held, Dataset)):
            path = "".join(each.path[:at])
            if path.endswith("]"):  # of a list that a copy shares
                owners[path.rpartition("[")[0]] = None
            owners[path] = None
    comment = "# other splits of the dataset, such as validation, stay as they are"
    return ["import copy", comment, *(f"{path} = copy.copy({path})" for path in owners)] if owners else []


def as_tensors(found: Found, *, to_bytes: bool) -> list[str]:
    """Lines that make a transform of images one of uint8 tensors, which ends in bytes or as it did. Empty: it is that
    already."""
    ending, lines = ending_of(found.steps) if to_bytes else None, list[str]()
    steps = found.steps if ending is None else found.steps[: ending[0]]
    if not any(isinstance(step, (v1.ToTensor, v1.PILToTensor)) or code_of(step) for step in steps):
        return []
    for at, step in enumerate(steps):
        own = f"before[{at}],  # {type(step).__name__}" if found.steps[1:] else "before,"
        if isinstance(step, v1.ToTensor):
            lines.append("v2.ToDtype(torch.float32, scale=True),")
        elif not isinstance(step, (v1.PILToTensor, v2.PILToTensor)):
            code = code_of(step)
            lines.append(own if code is None else f"{code},")
    held = f"{found.code}.transforms" if steps[1:] else found.code
    before = [f"before = {held}"] if any(line.startswith("before") for line in lines) else []
    return [*before, f"{found.code} = v2.Compose([", *(f"    {line}" for line in lines), "])"]


def ending_of(steps: Sequence[Any]) -> tuple[int, bool] | None:
    """(Steps before floats are made, whether the step that makes them also makes the tensor, as ToTensor does) of a
    transform that ends in floats, perhaps normalised. None: it ends otherwise."""
    *rest, last = steps or [None]
    if isinstance(last, (v1.Normalize, v2.Normalize)) and rest:
        *rest, last = rest
    makes_tensors = isinstance(last, v1.ToTensor)
    scales = isinstance(last, v1.ConvertImageDtype) or (isinstance(last, v2.ToDtype) and last.scale)
    return (len(rest), makes_tensors) if makes_tensors or (scales and last.dtype == torch.float32) else None
