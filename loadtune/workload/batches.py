"""Batches of any structure: any nesting of mappings, sequences, dataclasses and objects with tensors in it.

`Places` says where a batch keeps its samples, found by comparing a batch of few samples with one of more. With it a
batch is counted, cut and repeated to another size.
"""

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

Batch = Any
"""What a collate function returns."""

_MOST_SHOWN = 6  # parts of a batch that its description names
_MOST_DEEP = 8  # levels of an object in which tensors are looked for: objects may refer to one another in a circle


def map_tensors(
    batch: Batch, change: Callable[[torch.Tensor], torch.Tensor], change_object: Callable[[Any], Any] | None = None
) -> Batch:
    """A structure like this one with every tensor changed. What is neither a structure nor a tensor is the same object.

    ``change_object``: for objects that have a ``.to()`` of their own. None: their tensors are changed, too.
    """
    if isinstance(batch, torch.Tensor):
        return change(batch)
    # Mappings do not count: that of a Hugging Face batch changes the batch itself.
    if change_object is not None and not isinstance(batch, Mapping) and callable(getattr(batch, "to", None)):
        return change_object(batch)
    parts = _parts(batch)
    if parts is None:
        return batch
    return _rebuilt(batch, {key: map_tensors(part, change, change_object) for key, part in parts.items()})


def moved(batch: Batch, device: torch.device, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """The batch on this device: tensors by `change`, which has to move them, and objects by their own ``.to()``."""

    def by_itself(each: Any) -> Any:
        own = copy.copy(each)  # some change themselves
        try:
            return own.to(device, non_blocking=True)
        except TypeError:  # it takes the device alone
            return own.to(device)

    return map_tensors(batch, change, by_itself)


def own_structure(batch: Batch) -> Batch:
    """The same tensors in a structure of its own, which the user's code may change: ``batch.pop("labels")``."""
    return map_tensors(batch, lambda tensor: tensor, copy.copy)


def is_pair(batch: Batch) -> bool:
    """Whether it is (inputs, targets); either may be any structure."""
    return isinstance(batch, (tuple, list)) and len(batch) == 2


def tensors_of(batch: Batch) -> Iterator[torch.Tensor]:
    """In the order of the structure."""
    if isinstance(batch, torch.Tensor):
        yield batch
    else:
        for part in (_parts(batch) or {}).values():
            yield from tensors_of(part)


def leaf_tensors(values: Any) -> list[torch.Tensor]:
    """Those in lists, tuples and dicts, as operations take and return them."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def are_equal(one: Batch, other: Batch) -> bool:
    """Whether both have the same tensors in the same places."""
    if structure_text(one) != structure_text(other):
        return False
    return all(torch.equal(a, b) for a, b in zip(tensors_of(one), tensors_of(other), strict=True))


def num_bytes(batch: Batch) -> int:
    return sum(
        tensor._indices().nbytes + tensor._values().nbytes if tensor.layout is torch.sparse_coo else tensor.nbytes
        for tensor in tensors_of(batch)
    )


def num_tokens(batch: Batch) -> int | None:
    """Elements of ``input_ids``. None: there is none."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else getattr(batch, "input_ids", None)
    return ids.numel() if isinstance(ids, torch.Tensor) else None


def structure_text(batch: Batch) -> str:
    """``{input_ids: int64 tensor (8, 12), labels: int64 tensor (8,)}``, of a batch or of a sample."""
    if isinstance(batch, torch.Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} tensor {_sizes(batch)}"
    parts = _parts(batch)
    if parts is None and (shape := getattr(batch, "shape", None)) is not None:
        return f"{type(batch).__name__} {tuple(shape)}"
    if parts is None:
        text = re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(batch))
        return (text if text.startswith("<") else f"{type(batch).__name__} {text}")[:60]
    shown = list(parts.items())[:_MOST_SHOWN]
    more = ", …" if len(parts) > _MOST_SHOWN else ""
    if isinstance(batch, (list, tuple)):
        inside = ", ".join(structure_text(part) for _, part in shown)
        return f"[{inside}{more}]" if isinstance(batch, list) else f"({inside}{more})"
    inside = ", ".join(f"{key}: {structure_text(part)}" for key, part in shown)
    kind = "" if isinstance(batch, dict) else f"{type(batch).__name__} "
    return f"{kind}{{{inside}{more}}}"


def _sizes(tensor: torch.Tensor) -> tuple[int, ...]:
    """Of a nested tensor only the first, which is the only one that all of it has."""
    return (tensor.size(0),) if tensor.is_nested else tuple(tensor.shape)


def uncounted_text(batch: Batch) -> str:
    """That nothing tells how many samples it has."""
    if batch is None:
        return "The collate function returned None."
    return f"The number of samples in a batch cannot be found in {structure_text(batch)}."


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
    def count(self) -> bool:
        """Whether the number of samples can be told from a batch."""
        return self._has("tensor", "list")

    @property
    def are_known(self) -> bool:
        """Whether a batch can be cut and repeated."""
        return self.count and not self._has("unknown")

    def _has(self, *kinds: Kind) -> bool:
        return self.kind in kinds or any(part._has(*kinds) for part in self.parts.values())

    def num_samples(self, batch: Batch) -> int:
        """Samples of this batch. Only where they `count`."""
        if self.kind == "tensor":
            return int(batch.size(self.dim))
        if self.kind == "list":
            return len(batch)
        inside = _parts(batch) or {}
        key, places = next((key, part) for key, part in self.parts.items() if part.count)
        return places.num_samples(inside[key])

    def take(self, batch: Batch, indices: Sequence[int]) -> Batch:
        """A batch of copies of the samples at these indices, any number of times. Only where places `are_known`."""
        if self.kind == "tensor":
            return batch.index_select(self.dim, torch.as_tensor(indices, device=batch.device))
        if self.kind == "list":
            return type(batch)(map_tensors(batch[at], torch.clone) for at in indices)
        if self.kind == "parts":
            inside = _parts(batch) or {}
            return _rebuilt(batch, {key: part.take(inside[key], indices) for key, part in self.parts.items()})
        return batch

    def repeated(self, batch: Batch, batch_size: int) -> Batch:
        """Its samples again and again. Only where places `are_known`."""
        num = self.num_samples(batch)
        return self.take(batch, [at % num for at in range(batch_size)])


PAIR = Places("parts", parts={0: Places("tensor"), 1: Places("tensor")})
"""Of (inputs, targets)."""


def places_of(fewer: Batch, more: Batch, num_fewer: int, num_more: int, *, first_alone: bool = False) -> Places:
    """From a batch of ``num_fewer`` samples and one of ``num_more``.

    ``first_alone``: samples lie along the first dimension of tensors, and nowhere else.
    """
    is_special = isinstance(fewer, torch.Tensor) and (fewer.layout is not torch.strided or fewer.is_nested)
    if is_special or isinstance(fewer, PackedSequence):  # cannot be cut
        return Places("unknown")
    if isinstance(fewer, torch.Tensor):
        if not isinstance(more, torch.Tensor) or fewer.dim() != more.dim():
            return Places("unknown")
        sizes = list(zip(fewer.shape, more.shape, strict=True))[: 1 if first_alone else None]
        if (num_fewer, num_more) in sizes:
            return Places("tensor", sizes.index((num_fewer, num_more)))
        return Places("same" if fewer.shape == more.shape else "unknown")
    one, other = _parts(fewer), _parts(more)
    if one is None or other is None:
        return Places("same")
    if isinstance(fewer, (list, tuple)) and (len(fewer), len(more)) == (num_fewer, num_more) and not first_alone:
        return Places("list")
    if one.keys() != other.keys():
        return Places("unknown")
    inside = partial(places_of, num_fewer=num_fewer, num_more=num_more, first_alone=first_alone)
    return Places("parts", parts={key: inside(one[key], other[key]) for key in one})


def places_of_ready(batch: Batch) -> Places:
    """Of a batch of which nobody knows how many samples it has: the first dimension of its first tensor tells."""
    length = next((tensor.size(0) for tensor in tensors_of(batch) if tensor.dim() > 0), None)
    return Places("unknown") if length is None else places_of(batch, batch, length, length, first_alone=True)


def sample_shape(batch: Batch, places: Places) -> tuple[int, ...]:
    """Of the first tensor of one sample."""
    if isinstance(batch, torch.Tensor):
        shape = list(_sizes(batch))
        if places.kind == "tensor":
            del shape[places.dim]
        return tuple(shape)
    for key, part in (_parts(batch) or {}).items():
        if next(tensors_of(part), None) is not None:
            return sample_shape(part, places.parts.get(key, Places("same")))
    return ()


def _parts(batch: Any) -> dict[Any, Any] | None:
    """What is inside, by key. None: nothing that is looked into."""
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, (list, tuple)):
        return dict(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {each.name: getattr(batch, each.name) for each in dataclasses.fields(batch)}
    inside = getattr(batch, "__dict__", None)
    return dict(inside) if isinstance(inside, dict) and _holds_tensor(inside) else None


def _holds_tensor(value: Any, most_deep: int = _MOST_DEEP) -> bool:
    """Whether a tensor is in it, in mappings, sequences and attributes down to this depth."""
    if isinstance(value, torch.Tensor) or most_deep == 0 or isinstance(value, (type, ModuleType, nn.Module)):
        return isinstance(value, torch.Tensor)
    if not isinstance(value, (Mapping, list, tuple)):
        value = getattr(value, "__dict__", {})
    inside = value.values() if isinstance(value, Mapping) else value
    return any(_holds_tensor(each, most_deep - 1) for each in inside)


def _rebuilt(batch: Any, parts: dict[Any, Any]) -> Any:
    """An object like `batch` with these parts."""
    if isinstance(batch, tuple):
        return type(batch)(*parts.values()) if hasattr(batch, "_fields") else type(batch)(parts.values())
    if isinstance(batch, list):
        return type(batch)(parts.values())
    made = copy.copy(batch)
    if isinstance(batch, Mapping):
        if isinstance(getattr(made, "data", None), dict):  # a copy may share what it holds
            made.data = parts
        else:
            made.update(parts)
    else:
        for key, part in parts.items():
            object.__setattr__(made, key, part)
    return made
