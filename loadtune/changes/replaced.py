"""What Pillow and torchvision do otherwise while a sample loads. Imported late."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torchvision import io, tv_tensors
from torchvision.transforms import functional as v1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as v2_functional

from loadtune.changes.way import How, Replacement


def replacements(how: How, others: Mapping[tuple[int, str], Any]) -> list[Replacement]:
    """``others``: what stands in the place of attributes already."""
    made = list[Replacement]()
    if how.tensors or how.reduced_size is not None:
        made.append((Image, "open", partial(_open, others.get((id(Image), "open"), Image.open), how)))
    if how.tensors:
        made += [(v1, name, _of_tensors(name)) for name in _FASTER]
    if how.tensors or how.as_bytes:
        made += [(v1, "to_tensor", partial(_to_tensor, v1.to_tensor, how.as_bytes))]
        made += [(v1, "pil_to_tensor", partial(_or_tensor, v1.pil_to_tensor))]
    return made + (_BYTES if how.as_bytes else [])


class Seen:
    """What was done with replacements, since `forget`: whether they were ever used."""

    num_decoded: ClassVar[int] = 0
    """Images that were decoded to tensors."""
    num_reduced: ClassVar[int] = 0
    """Images that were decoded at a smaller size than they have."""
    normalized: ClassVar[set[tuple[tuple[float, ...], tuple[float, ...]]]] = set()
    """Means and standard deviations that the device is to normalise by."""

    @classmethod
    def forget(cls) -> None:
        cls.num_decoded = cls.num_reduced = 0
        cls.normalized = set()


# Opening


def decoded(source: Any) -> torch.Tensor | None:
    """An image as uint8 RGB (3, H, W). None: torchvision cannot read it, and Pillow shall do as before."""
    try:
        if isinstance(source, (str, os.PathLike)):
            image = io.decode_image(os.fspath(source), io.ImageReadMode.RGB)
        else:
            source.seek(0)  # as Pillow does
            image = io.decode_image(torch.frombuffer(bytearray(source.read()), dtype=torch.uint8), io.ImageReadMode.RGB)
    except (RuntimeError, ValueError):
        return None
    return image if image.dtype == torch.uint8 and image.ndim == 3 else None


def _open(opened: Callable[..., Any], how: How, source: Any, *given: Any, **named: Any) -> Any:
    return Opened(partial(opened, source, *given, **named), how, source)


class Opened:
    """What stands for Pillow's image until its pixels are asked for; whatever else is asked for is Pillow's answer."""

    def __init__(self, opened: Callable[[], Any], how: How, source: Any) -> None:
        self._opened, self._how, self._source = opened, how, source
        self._image: Any = None

    def _pillow(self) -> Any:
        if self._image is None:
            self._image = self._opened()
            if (size := self._how.reduced_size) is not None:
                whole = self._image.size
                self._image.draft("RGB", (size, size))
                Seen.num_reduced += self._image.size != whole
        return self._image

    def convert(self, mode: str | None = None, *given: Any, **named: Any) -> Any:
        is_plain = mode == "RGB" and not given and not named and self._how.tensors
        image = None
        if is_plain and self._how.reduced_size is None and self._image is None and not self._how.others:
            image = decoded(self._source)
        if image is None:
            made = self._pillow().convert(mode, *given, **named)
            image = v1.pil_to_tensor(made) if is_plain else None
            if image is None:
                return made
        Seen.num_decoded += 1
        return tv_tensors.Image(image)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pillow(), name)

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._image is not None:
            self._image.close()


# Transforms

_FASTER = tuple(
    name
    for name, function in vars(v1).items()
    if callable(function)
    and hasattr(v2_functional, name)
    and name != "get_image_size"  # v2's calls v1's
    and not isinstance(function, type)
    and next(iter(signature(function).parameters), None) == "img"
)
"""Functions of an image that v1 computes in floats where it gets a tensor, and v2 in bytes."""


def _of_tensors(name: str) -> Callable[..., Any]:
    before, faster = getattr(v1, name), getattr(v2_functional, name)
    takes = signature(before)

    def function(img: Any, *given: Any, **named: Any) -> Any:
        if not _are_bytes(img):
            return before(img, *given, **named)
        bound = takes.bind(img, *given, **named)
        if "antialias" in takes.parameters:  # as Pillow does, whatever is given
            bound.arguments["antialias"] = True
        return faster(*bound.args, **bound.kwargs)

    return function


def _to_tensor(before: Callable[[Any], Any], as_bytes: bool, pic: Any) -> torch.Tensor:
    is_tensor = isinstance(pic, torch.Tensor)
    if as_bytes and (
        is_tensor or getattr(pic, "mode", None) in ("L", "RGB") or getattr(pic, "dtype", None) == np.uint8
    ):
        image: torch.Tensor = pic if is_tensor else v2_functional.to_image(pic)
        return image.as_subclass(torch.Tensor)
    made: torch.Tensor = pic.as_subclass(torch.Tensor).float().div(255) if is_tensor else before(pic)
    return made


def _or_tensor(before: Callable[[Any], Any], pic: Any) -> Any:
    return pic.as_subclass(torch.Tensor) if isinstance(pic, torch.Tensor) else before(pic)


def _are_bytes(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8


def _noted(mean: Any, std: Any) -> None:
    Seen.normalized.add((tuple(map(float, np.ravel(mean))), tuple(map(float, np.ravel(std)))))


def _normalize(before: Callable[..., Any], tensor: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
    if not _are_bytes(tensor):
        return before(tensor, mean, std, inplace)
    _noted(mean, std)
    return tensor


def _normalize_v2(self: Any, inpt: Any, params: Any) -> Any:
    if not _are_bytes(inpt):
        return _V2_NORMALIZE(self, inpt, params)
    _noted(self.mean, self.std)
    return inpt


def _convert(before: Callable[..., Any], image: Any, dtype: Any = torch.float32) -> Any:
    return image if _are_bytes(image) and dtype == torch.float32 else before(image, dtype)


def _to_dtype(self: Any, inpt: Any, params: Any) -> Any:
    dtype = self.dtype.get(type(inpt)) if isinstance(self.dtype, dict) else self.dtype
    is_image = isinstance(inpt, tv_tensors.Image) or type(inpt) is torch.Tensor
    is_scaled = is_image and _are_bytes(inpt) and self.scale and dtype == torch.float32
    return inpt if is_scaled else _V2_TO_DTYPE(self, inpt, params)


_V2_NORMALIZE, _V2_TO_DTYPE = v2.Normalize.transform, v2.ToDtype.transform
_BYTES: list[Replacement] = [
    (v1, "normalize", partial(_normalize, v1.normalize)),
    (v1, "convert_image_dtype", partial(_convert, v1.convert_image_dtype)),
    (v2.Normalize, "transform", _normalize_v2),
    (v2.ToDtype, "transform", _to_dtype),
]
