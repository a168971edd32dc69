"""Images of a dataset: read from their files at a reduced size, and sent as bytes that become floats on the device.

Torch's side; imported late. What a worker calls is a function of this module, so that it pickles.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import DatasetFolder
from torchvision.datasets.folder import default_loader, pil_loader
from torchvision.transforms import v2
from torchvision.transforms.functional import pil_to_tensor

from loadtune.changes.base import NotApplicableError
from loadtune.changes.datasets import owner_of, small_batch
from loadtune.workload import Workload, tensors_of

ENOUGH = 1.5
"""Times the size that the transform asks for: so much larger the reduced image stays at least, since a crop takes a
part of it only."""

NUM_FILES = 8
"""From all over the dataset, of which one at least has to be larger than that."""


# Files


def folder_of(dataset: Any) -> Any:
    """The image folder whose files Pillow decodes. Raises NotApplicableError where the dataset is none."""
    owner = owner_of(dataset)
    if not isinstance(owner, DatasetFolder) or owner.loader not in (default_loader, pil_loader):
        raise NotApplicableError("the dataset is no ImageFolder that reads its files with Pillow")
    return owner


def reduced_size(workload: Workload) -> int:
    """Height and width in pixels below which no image is reduced."""
    images = next(tensors_of(small_batch(workload)))
    return round(ENOUGH * max(images.shape[-2:]))


def are_larger(paths: Sequence[str], size: int) -> bool:
    """Whether Pillow decodes one of these files at a reduced size; some from all over the dataset are looked at."""
    seen = paths[:: max(1, len(paths) // NUM_FILES)]
    return any(pil_loader(path).size != read_reduced(size, path).size for path in seen)


def scales_first(steps: Sequence[Any]) -> bool:
    """Whether the first step that changes a picture scales it to a size of its own, whatever size the picture had."""
    scaling = (v1.Resize, v1.RandomResizedCrop, v2.Resize, v2.RandomResizedCrop)
    kept = (step for step in steps if not (isinstance(step, v2.ToImage) or getattr(step, "keeps_size", False)))
    return isinstance(next(kept, None), scaling)


def read_reduced(size: int, path: str) -> Any:
    """The image at about this height and width in pixels, as `partial` makes a loader of an ImageFolder of it."""
    with Image.open(path) as image:
        image.draft("RGB", (size, size))
        return image.convert("RGB")


def read_whole(size: int, path: str) -> Any:
    """Decodes all pixels, and makes the image as small as `read_reduced` does."""
    whole, reduced = pil_loader(path), read_reduced(size, path).size
    return whole if reduced == whole.size else whole.resize(reduced, Image.Resampling.BOX)


# Bytes and floats


class Ending(NamedTuple):
    """How a transform ends: in floats, perhaps normalised."""

    head: list[Any]
    """The steps before floats are made."""
    makes_tensors: bool
    """Whether the step that makes floats also makes the tensor, as ToTensor does."""
    mean: tuple[float, ...]
    """Of each channel. Empty: nothing is normalised."""
    std: tuple[float, ...]


def ending_of(steps: list[Any]) -> Ending:
    """Raises NotApplicableError where the transform ends otherwise."""
    *rest, last = steps or [None]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    if isinstance(last, (v1.Normalize, v2.Normalize)) and rest:
        mean, std = (tuple(float(value) for value in np.ravel(values)) for values in (last.mean, last.std))
        *rest, last = rest
    makes_tensors = isinstance(last, v1.ToTensor)
    scales = isinstance(last, v1.ConvertImageDtype) or (isinstance(last, v2.ToDtype) and last.scale)
    if makes_tensors or (scales and last.dtype == torch.float32):
        return Ending(rest, makes_tensors, mean, std)
    raise NotApplicableError(
        "the dataset's transform does not end in ToTensor() or ToDtype(torch.float32, scale=True), and perhaps "
        "Normalize(...)"
    )


def to_uint8(image: Any) -> torch.Tensor:
    """A picture, or an array of one, as a uint8 tensor (C, H, W); a tensor stays as it is."""
    if isinstance(image, torch.Tensor):
        return image
    if isinstance(image, np.ndarray):
        return torch.from_numpy(image if image.ndim == 3 else image[:, :, None]).permute(2, 0, 1).contiguous()
    return pil_to_tensor(image)  # type: ignore[no-any-return]


def floats(mean: tuple[float, ...], std: tuple[float, ...], images: torch.Tensor) -> torch.Tensor:
    """uint8 → float32 from 0 to 1, normalised where mean and standard deviation are given: as ToTensor and Normalize
    compute it, on whatever device the tensor is."""
    made = images.to(torch.float32).div_(255)
    return made.sub_(_by_channel(mean, made.device)).div_(_by_channel(std, made.device)) if mean else made


@cache
def _by_channel(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Kept: copying it for each batch would wait for the device."""
    return torch.tensor(values, device=device).view(-1, 1, 1)
