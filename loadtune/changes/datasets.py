"""A job's dataset, behind any number of `Subset`, its files and its transform: read, taken apart and replaced.

Needs torchvision; imported late. What a worker calls is a function of this module, so that it pickles.
"""

import copy
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision import transforms as v1
from torchvision.datasets import DatasetFolder
from torchvision.datasets.folder import default_loader, pil_loader
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import to_image

from loadtune.changes.remedies import NotApplicableError
from loadtune.workload.batches import Batch, is_pair, tensors_of
from loadtune.workload.build import Workload
from loadtune.workload.datasets import ToRgb
from loadtune.workload.samples import owner_of, small_batch

# The transform


def steps_of(dataset: Any) -> list[Any]:
    """The steps of the dataset's transform. Raises NotApplicableError where it has none that can be taken apart."""
    transform = getattr(owner_of(dataset), "transform", None)
    if transform is None:
        raise NotApplicableError("the dataset has no transform in an attribute `transform`")
    return list(transform.transforms) if isinstance(transform, (v1.Compose, v2.Compose)) else [transform]


def with_attributes(workload: Workload, **attributes: Any) -> Workload:
    """The same job over a copy of the dataset that loads samples, changed. The user's own stays as it is."""
    dataset = owner = copy.copy(workload.dataset)
    while isinstance(owner, Subset):
        owner.dataset = copy.copy(owner.dataset)
        owner = owner.dataset
    for name, value in attributes.items():
        setattr(owner, name, value)
    return replace(workload, loader=replace(workload.loader, dataset=dataset))


def reached(dataset: Any) -> tuple[str, list[str]]:
    """How the dataset that loads samples is reached in code, ``dataset.dataset`` behind a `Subset`, and lines of code
    that give each `Subset` a dataset of its own, before that is changed."""
    path, lines = "dataset", list[str]()
    while isinstance(dataset, Subset):
        dataset, path = dataset.dataset, f"{path}.dataset"
        lines.append(f"{path} = copy.copy({path})")
    comment = "# other splits of the dataset, such as validation, stay as they are"
    return path, ["import copy", comment, *lines] if lines else []


# JPEG files at a reduced size

ENOUGH = 1.5
"""Times the size of a sample that a reduced image keeps at least, since a crop takes only a part of it."""

NUM_FILES = 8
"""From all over the dataset, of which one at least has to be large enough to be reduced."""


def decoded_smaller(workload: Workload) -> Workload:
    """The job with its JPEG files decoded at a reduced size. Raises NotApplicableError."""
    owner = owner_of(workload.dataset)
    if not isinstance(owner, DatasetFolder) or owner.loader not in (default_loader, pil_loader):
        raise NotApplicableError("the dataset is no ImageFolder that reads its files with Pillow")
    scaling = (v1.Resize, v1.RandomResizedCrop, v2.Resize, v2.RandomResizedCrop)
    changing = (step for step in steps_of(owner) if not isinstance(step, (ToRgb, v2.ToImage)))
    if not isinstance(next(changing, None), scaling):
        raise NotApplicableError("its transform does not begin with Resize or RandomResizedCrop: zoom would change")
    size = reduced_size(workload)
    seen = owner.samples[:: max(1, len(owner.samples) // NUM_FILES)]
    if all(pil_loader(path).size == read_reduced(size, path).size for path, _ in seen):
        raise NotApplicableError("its files are no JPEG, or are hardly larger than the images that are trained on")
    return with_attributes(workload, loader=partial(read_reduced, size))


def reduced_size(workload: Workload) -> int:
    """Height and width in pixels below which no image is reduced."""
    images = next(tensors_of(small_batch(workload)[0]))
    return round(ENOUGH * max(images.shape[-2:]))


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


def sent_as_bytes(workload: Workload) -> Workload:
    """The job with images that are bytes until they are on the device. Raises NotApplicableError."""
    ending = ending_of(steps_of(workload.dataset))
    steps = [*ending.head, *([to_uint8] if ending.makes_tensors else [])]
    compose = v2.Compose if any(isinstance(step, v2.Transform) for step in steps) else v1.Compose
    changed = with_attributes(workload, transform=compose(steps))
    old, new = (small_batch(job)[0] for job in (workload, changed))
    if not is_pair(new) or not all(isinstance(part, torch.Tensor) for part in new):
        raise NotApplicableError("a batch is no pair (inputs, targets) of tensors")
    if not old[0].is_floating_point() or new[0].dtype != torch.uint8:
        raise NotApplicableError("its images were never bytes")
    return replace(changed, on_device=(*workload.on_device, partial(to_floats, ending.mean, ending.std)))


def to_uint8(image: Any) -> torch.Tensor:
    """A picture, or an array of one, as a uint8 tensor (C, H, W); a tensor stays as it is."""
    return image if isinstance(image, torch.Tensor) else to_image(image).as_subclass(torch.Tensor)


def to_floats(mean: tuple[float, ...], std: tuple[float, ...], batch: Batch) -> Batch:
    """The batch with its images as float32 from 0 to 1, normalised where mean and standard deviation are given: as
    ToTensor and Normalize compute it, on whatever device the tensor is."""
    images, targets = batch
    made = images.to(torch.float32).div_(255)
    if mean:
        made.sub_(_by_channel(mean, made.device)).div_(_by_channel(std, made.device))
    return made, targets


@cache
def _by_channel(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Kept: copying it for each batch would wait for the device."""
    return torch.tensor(values, device=device).view(-1, 1, 1)
