"""Batches of any structure: any nesting of mappings, sequences, dataclasses and objects with tensors in it.

`Places` says where a batch keeps its samples, found by comparing a batch of few samples with one of more. With it a
batch is counted, cut and repeated to another size.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from loadtune.errors import WorkloadError

Batch = Any
"""What a collate function returns."""

MOST_SHOWN = 6
"""Parts of a batch that its description names."""


def map_tensors(batch: Batch, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """The same structure with every tensor changed. What holds no tensor stays the same object."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    parts = _parts(batch)
    return batch if parts is None else _rebuilt(batch, {key: map_tensors(part, change) for key, part in parts.items()})


def tensors_of(batch: Batch) -> Iterator[torch.Tensor]:
    """In the order of the structure."""
    if isinstance(batch, torch.Tensor):
        yield batch
    else:
        for part in (_parts(batch) or {}).values():
            yield from tensors_of(part)


def num_bytes(batch: Batch) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(batch))


def num_tokens(batch: Batch) -> int | None:
    """Elements of ``input_ids``. None: there is none."""
    ids = _parts(batch).get("input_ids") if isinstance(batch, Mapping) or hasattr(batch, "input_ids") else None  # type: ignore[union-attr]
    return ids.numel() if isinstance(ids, torch.Tensor) else None


def structure_text(batch: Batch) -> str:
    """``{input_ids: int64 tensor (8, 12), labels: int64 tensor (8,)}``."""
    if isinstance(batch, torch.Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} tensor {tuple(batch.shape)}"
    parts = _parts(batch)
    if parts is None:
        return type(batch).__name__
    more = ", …" if len(parts) > MOST_SHOWN else ""
    shown = list(parts.items())[:MOST_SHOWN]
    if isinstance(batch, (list, tuple)):
        inside = ", ".join(structure_text(part) for _, part in shown)
        named = type(batch).__name__ if hasattr(batch, "_fields") else ""
        return f"[{inside}{more}]" if isinstance(batch, list) else f"{named}({inside}{more})"
    inside = ", ".join(f"{key}: {structure_text(part)}" for key, part in shown)
    kind = "" if isinstance(batch, dict) else f"{type(batch).__name__} "
    return f"{kind}{{{inside}{more}}}"


Kind = Literal["same", "tensor", "list", "parts", "unknown"]


@dataclass(frozen=True, slots=True)
class Places:
    """Where a batch keeps its samples."""

    kind: Kind
    """``same``: the same for any number of samples. ``tensor``: along dimension `dim`. ``list``: one element a sample.
    ``parts``: as `parts` say. ``unknown``: more samples make it larger in a way that cannot be repeated."""
    dim: int = 0
    parts: Mapping[Any, "Places"] = field(default_factory=dict)

    @property
    def are_known(self) -> bool:
        """Whether a batch can be cut and repeated."""
        return self.kind != "unknown" and all(part.are_known for part in self.parts.values())

    @property
    def count(self) -> bool:
        """Whether the number of samples can be told from a batch."""
        return self.kind in ("tensor", "list") or any(part.count for part in self.parts.values())

    def num_samples(self, batch: Batch) -> int:
        """Samples of this batch. Only where they `count`."""
        if self.kind == "tensor":
            return int(batch.shape[self.dim])
        if self.kind == "list":
            return len(batch)
        inside = _parts(batch) or {}
        key, places = next((key, part) for key, part in self.parts.items() if part.count)
        return places.num_samples(inside[key])

    def take(self, batch: Batch, indices: Sequence[int]) -> Batch:
        """A batch of the samples at these indices, any number of times. Only where places `are_known`."""
        if self.kind == "tensor":
            return batch.index_select(self.dim, torch.as_tensor(indices, device=batch.device))
        if self.kind == "list":
            return type(batch)([batch[at] for at in indices])
        if self.kind == "parts":
            inside = _parts(batch) or {}
            return _rebuilt(batch, {key: part.take(inside[key], indices) for key, part in self.parts.items()})
        return batch

    def zeros(self, batch: Batch, num: int) -> Batch:
        """A batch of this many samples like those of `batch`, its tensors zero. Only where places `are_known`."""
        if isinstance(batch, torch.Tensor):
            shape = list(batch.shape)
            if self.kind == "tensor":
                shape[self.dim] = num
            return torch.zeros(shape, dtype=batch.dtype)
        if self.kind == "list":
            return type(batch)([_zeros(batch[at % len(batch)]) for at in range(num)])
        if self.kind == "parts":
            inside = _parts(batch) or {}
            return _rebuilt(batch, {key: part.zeros(inside[key], num) for key, part in self.parts.items()})
        return _zeros(batch)


def _zeros(batch: Batch) -> Batch:
    return map_tensors(batch, lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))


PAIR = Places("parts", parts={0: Places("tensor"), 1: Places("tensor")})
"""Of (inputs, targets)."""


def places_of(fewer: Batch, more: Batch, num_fewer: int, num_more: int) -> Places:
    """From a batch of ``num_fewer`` samples and one of ``num_more``."""
    if isinstance(fewer, torch.Tensor):
        return _places_of_tensor(fewer, more, num_fewer, num_more)
    one, other = _parts(fewer), _parts(more)
    if one is None or other is None:
        return Places("same")
    if isinstance(fewer, (list, tuple)) and (len(fewer), len(more)) == (num_fewer, num_more):
        return Places("list")
    if one.keys() != other.keys():
        return Places("unknown")
    found = {key: places_of(part, other[key], num_fewer, num_more) for key, part in one.items()}
    return Places("parts", parts=found)


def _places_of_tensor(fewer: torch.Tensor, more: Any, num_fewer: int, num_more: int) -> Places:
    if not isinstance(more, torch.Tensor) or fewer.dim() != more.dim():
        return Places("unknown")
    for dim, (size, other) in enumerate(zip(fewer.shape, more.shape, strict=True)):
        if (size, other) == (num_fewer, num_more):
            return Places("tensor", dim)
    return Places("same" if fewer.shape == more.shape else "unknown")


def places_along(batch: Batch, dim: int) -> Places:
    """Where the user says that samples lie along this dimension of tensors. Lists are taken as structure."""
    if isinstance(batch, torch.Tensor):
        return Places("tensor", dim) if batch.dim() > dim else Places("same")
    parts = _parts(batch)
    return (
        Places("same") if parts is None else Places("parts", parts={k: places_along(p, dim) for k, p in parts.items()})
    )


def sample_shape(batch: Batch, places: Places) -> tuple[int, ...]:
    """Of the first tensor of one sample."""
    if places.kind == "parts":
        inside = _parts(batch) or {}
        with_tensor = (key for key in places.parts if next(tensors_of(inside[key]), None) is not None)
        key = next(with_tensor, None)
        return () if key is None else sample_shape(inside[key], places.parts[key])
    first = next(tensors_of(batch), None)
    shape = [] if first is None else list(first.shape)
    if places.kind == "tensor":
        del shape[places.dim]
    return tuple(shape)


def places_of_ready(batch: Batch) -> Places:
    """Of a batch that the dataset made, of which nobody knows how many samples it has: the first dimension counts."""
    first = next((tensor for tensor in tensors_of(batch) if tensor.dim() > 0), None)
    if first is None:
        return Places("unknown")
    return _with_length(batch, len(first))


def _with_length(batch: Batch, length: int) -> Places:
    if isinstance(batch, torch.Tensor):
        return Places("tensor") if batch.dim() > 0 and len(batch) == length else Places("same")
    parts = _parts(batch)
    if parts is None:
        return Places("same")
    return Places("parts", parts={key: _with_length(part, length) for key, part in parts.items()})


def checked_scalar(value: Any, name: str) -> torch.Tensor:
    """The loss, if it is one number that gradients can come from. Raises WorkloadError."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:60]
        raise WorkloadError(f"The {name} returned {found}. It has to return a tensor with one number: take its mean.")
    if torch.is_grad_enabled() and not value.requires_grad:
        raise WorkloadError(
            f"The {name} returned a tensor without a gradient: it does not depend on the model's parameters. Compute "
            "it from the model's output, without detach(), item() or no_grad()."
        )
    return value


def _parts(batch: Any) -> dict[Any, Any] | None:
    """What is inside, by key. None: nothing that is looked into."""
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, (list, tuple)):
        return dict(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {each.name: getattr(batch, each.name) for each in dataclasses.fields(batch)}
    inside = getattr(batch, "__dict__", None)
    if isinstance(inside, dict) and any(isinstance(value, torch.Tensor) for value in inside.values()):
        return dict(inside)
    return None


def _rebuilt(batch: Any, parts: dict[Any, Any]) -> Any:
    """An object like `batch` with these parts."""
    if isinstance(batch, tuple):
        return type(batch)(*parts.values()) if hasattr(batch, "_fields") else type(batch)(parts.values())
    if isinstance(batch, list):
        return type(batch)(parts.values())
    if type(batch) is dict:
        return parts
    made = copy.copy(batch)
    if isinstance(batch, Mapping):
        if hasattr(made, "data") and isinstance(made.data, dict):  # a UserDict's copy shares what it holds
            made.data = parts
        else:
            made.update(parts)
    else:
        for key, part in parts.items():
            object.__setattr__(made, key, part)
    return made
