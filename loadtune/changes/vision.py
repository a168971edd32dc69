"""torchvision: the transforms that a dataset holds, what it and Pillow do otherwise while a sample loads, and images
whose content is known, loaded both ways. Needs torchvision; imported late.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from inspect import signature
from io import BytesIO
from types import CodeType
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import io, tv_tensors
from torchvision import transforms as v1
from torchvision.datasets.folder import DatasetFolder
from torchvision.transforms import functional as v1_functional
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as v2_functional

from loadtune.changes.way import Changed, How, Replacement, Way
from loadtune.records.loading import FARTHEST, NotApplicableError

# The transforms that a dataset holds, also behind `Subset` and in attributes of the user's own datasets

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


# What is done otherwise


def replacements(how: How, others: Mapping[tuple[int, str], Any]) -> list[Replacement]:
    """``others``: what stands in the place of attributes already."""
    made = list[Replacement]()
    if how.tensors or how.reduced_size is not None:
        made.append((Image, "open", partial(_open, others.get((id(Image), "open"), Image.open), how)))
    if how.tensors:
        made += [(v1_functional, name, _of_tensors(name)) for name in _FASTER]
    if how.tensors or how.as_bytes:
        made += [(v1_functional, "to_tensor", partial(_to_tensor, v1_functional.to_tensor, how.as_bytes))]
        made += [(v1_functional, "pil_to_tensor", partial(_or_tensor, v1_functional.pil_to_tensor))]
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
            image = v1_functional.pil_to_tensor(made) if is_plain else None
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
    for name, function in vars(v1_functional).items()
    if callable(function)
    and hasattr(v2_functional, name)
    and name != "get_image_size"  # v2's calls v1's
    and not isinstance(function, type)
    and next(iter(signature(function).parameters), None) == "img"
)
"""Functions of an image that v1 computes in floats where it gets a tensor, and v2 in bytes."""


def _of_tensors(name: str) -> Callable[..., Any]:
    before, faster = getattr(v1_functional, name), getattr(v2_functional, name)
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
    (v1_functional, "normalize", partial(_normalize, v1_functional.normalize)),
    (v1_functional, "convert_image_dtype", partial(_convert, v1_functional.convert_image_dtype)),
    (v2.Normalize, "transform", _normalize_v2),
    (v2.ToDtype, "transform", _to_dtype),
]


# Images whose content is known: errors that the user's own samples may not show. Files of all kinds, red and blue
# apart, fine lines, an orientation in EXIF, the range of values.

_WIDTH, _HEIGHT = 96, 72
_ORIENTATION = 0x112


@cache
def _files() -> dict[str, bytes]:
    """By name: an image in stripes of red, green and blue, with fine lines on the right, as files of several kinds."""
    pixels = np.zeros((_HEIGHT, _WIDTH, 3), np.uint8)
    for channel in range(3):
        pixels[:, 16 * channel : 16 * (channel + 1), channel] = 255
    pixels[:, 48:] = 255 * (np.indices((_HEIGHT, 48)).sum(0) % 2)[..., None]
    pixels[: _HEIGHT // 4] //= 3
    image, exif = Image.fromarray(pixels), Image.Exif()
    exif[_ORIENTATION] = 6
    turned: dict[str, Any] = {"exif": exif}

    def saved(made: Image.Image, kind: str, **given: Any) -> bytes:
        with BytesIO() as buffer:
            made.save(buffer, kind, **given)
            return buffer.getvalue()

    found = {
        "a JPEG file": saved(image, "JPEG", quality=95, subsampling=0),
        "a progressive JPEG file": saved(image, "JPEG", progressive=True),
        "a grey JPEG file": saved(image.convert("L"), "JPEG"),
        "a CMYK JPEG file": saved(image.convert("CMYK"), "JPEG"),
        "a JPEG file with an orientation in EXIF": saved(image, "JPEG", **turned),
        "a PNG file": saved(image, "PNG"),
        "a PNG file with a palette": saved(image.convert("P"), "PNG"),
        "a PNG file of 16 bits": saved(Image.fromarray(pixels[..., 0].astype(np.uint16) * 257), "PNG"),
    }
    return found | {"a file that ends too early": found["a JPEG file"][:-200], "a file that is no image": b"text" * 9}


class _Patterns(Dataset[Any]):
    """Each file, read as the user's code reads its own and given to a function."""

    def __init__(self, use: Callable[[Any], Any]) -> None:
        self.use = use

    def __getitem__(self, name: str) -> Any:
        torch.manual_seed(0)
        return self.use(Image.open(BytesIO(_files()[name])).convert("RGB"))


def _resized(image: Any) -> torch.Tensor:
    made: torch.Tensor = v1_functional.to_tensor(v1_functional.resize(image, [_HEIGHT // 3, _WIDTH // 3]))
    return made.div(255) if made.dtype == torch.uint8 else made


def _whole(image: Any) -> torch.Tensor:
    made: torch.Tensor = v1_functional.pil_to_tensor(image)
    return made


_PLAIN = (_whole, _resized)
"""What is done with an image here, and not by the user."""


def check(before: Way, after: Way, transforms: Sequence[Callable[[Any], Any]]) -> None:
    """``transforms``: of the user. Raises NotApplicableError where a pattern comes out otherwise with the change."""
    for name in _files():
        _compare(before, after, _whole, name, name)
    first = next(iter(_files()))
    for use in (_resized, *transforms):
        _compare(before, after, use, first, "an image of fine lines in red, green and blue")


def _compare(before: Way, after: Way, use: Callable[[Any], Any], file: str, what: str) -> None:
    one, other = (_loaded(way, use, file) for way in (before, after))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.shape == other.shape:
        far = float((one.double() - other.double()).abs().mean() / max(1e-6, float(one.double().std())))
        if far <= FARTHEST:
            return
        raise NotApplicableError(f"{what} would have other values (by {far:.2g} of their standard deviation)")
    if isinstance(one, Exception) or type(one) is not type(other):
        if isinstance(one, Exception) and (isinstance(other, Exception) or use not in _PLAIN):
            return  # both refuse it, or the transform takes something else
        raise NotApplicableError(f"{what} would no longer be read as before")
    if isinstance(one, torch.Tensor):
        raise NotApplicableError(f"{what} would have another shape or orientation")


def _loaded(way: Way, use: Callable[[Any], Any], file: str) -> Any:
    """A batch of one, ready to be trained on; or the exception of loading it."""
    # A reduced size is another one, as it should be.
    patterns = Changed(_Patterns(use), replace(way.how, reduced_size=None, stand_ins=None))
    try:
        batch = patterns[file][None]
        return batch if use in _PLAIN else way.prepared(batch)
    except Exception as error:
        return error
