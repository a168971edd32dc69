"""How images are decoded, transformed and sent: what changes of it do to a job, and the lines to paste.

Needs torchvision; imported late. What a worker calls is a function of a module, so that it pickles.
"""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from loadtune.changes.vision import (
    Found,
    Seen,
    as_tensors,
    check,
    copies,
    ending_of,
    find_folders,
    find_transforms,
    replacements,
)
from loadtune.changes.way import How, Replacement, Way
from loadtune.records.loading import NotApplicableError
from loadtune.workload.batches import Batch, map_tensors, tensors_of
from loadtune.workload.datasets import ToRgb

ENOUGH = 1.5
"""Times the size of a sample that a reduced image keeps at least, since a crop takes only a part of it."""

NUM_PROBED = 8
"""Samples from all over the data set that tell whether a change does anything at all."""


def apply(name: str, way: Way) -> Way:
    """The way with this change of images. Raises NotApplicableError, also where images with known content come out
    otherwise."""
    made: Way = {"draft_decoding": _reduced, "tensor_decoding": _tensors, "uint8_transfer": _bytes}[name](way)
    check(way, made, [found.held for found in find_transforms(way.users_dataset)])
    return made


def _probed(way: Way) -> Batch:
    """A batch from all over the data set."""
    Seen.forget()
    return way.load(way.indices[:: max(1, len(way.indices) // NUM_PROBED)][:NUM_PROBED])


# JPEG files at a reduced size


def _reduced(way: Way) -> Way:
    found = find_transforms(way.users_dataset)
    if len(found) != 1:
        several = f"{len(found)} transforms of torchvision, and it is not known which of them images take"
        raise NotApplicableError(f"the dataset holds {several if found else 'no transform of torchvision'}")
    changing = next((step for step in found[0].steps if not isinstance(step, (ToRgb, v2.ToImage))), None)
    if not isinstance(changing, (v1.Resize, v1.RandomResizedCrop, v2.Resize, v2.RandomResizedCrop)):
        raise NotApplicableError("its transform does not begin with Resize or RandomResizedCrop: zoom would change")
    sizes = [size for tensor in tensors_of(way.load(way.indices[:1])) if tensor.ndim >= 4 for size in tensor.shape[-2:]]
    if not sizes:
        raise NotApplicableError("its samples are no images")
    made = way.with_how(reduced_size=round(ENOUGH * max(sizes)), of_images=replacements)
    _probed(made)
    if not Seen.num_reduced:
        raise NotApplicableError(
            "it opens no JPEG files with Pillow, or they are hardly larger than the images that are trained on"
        )
    return made


def uncropped(way: Way) -> Way:
    """The way with whole images where RandomResizedCrop would draw a part."""
    return way.with_how(others=(*way.how.others, _WholeImages()))


class _WholeImages:
    def replacements(self) -> list[Replacement]:
        return [(v1.RandomResizedCrop, "get_params", _whole), (v2.RandomResizedCrop, "make_params", _whole_v2)]


@staticmethod  # type: ignore[misc]  # as the method that it stands for
def _whole(img: Any, scale: Any, ratio: Any) -> tuple[int, int, int, int]:
    width, height = v1.functional.get_image_size(img)
    return 0, 0, height, width


def _whole_v2(self: Any, flat_inputs: list[Any]) -> dict[str, int]:
    height, width = v2.query_size(flat_inputs)
    return {"top": 0, "left": 0, "height": height, "width": width}


# Tensors


def _tensors(way: Way) -> Way:
    made = way.with_how(tensors=True, of_images=replacements)
    _probed(made)
    if not Seen.num_decoded:
        raise NotApplicableError("the dataset does not open RGB images with Pillow's Image.open")
    return made


# Bytes and floats


def _bytes(way: Way) -> Way:
    if not way.on_gpu:
        raise NotApplicableError("the job does not train on a GPU")
    made = way.with_how(as_bytes=True, of_images=replacements)
    before, after = list(tensors_of(_probed(way))), list(tensors_of(_probed(made)))
    pairs = list(zip(before, after, strict=True)) if len(before) == len(after) else []
    sent = [one.is_floating_point() and other.dtype == torch.uint8 for one, other in pairs]
    if not any(sent) or len(Seen.normalized) > 1 or any(_is_images(tensor) for tensor in before):
        raise NotApplicableError("its images were never bytes, or are not all normalised alike")
    mean, std = next(iter(Seen.normalized), ((), ()))
    return replace(made, on_device=(*way.on_device, partial(to_floats, mean, std)))


def _is_images(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.uint8 and tensor.ndim >= 4


def to_floats(mean: tuple[float, ...], std: tuple[float, ...], batch: Batch) -> Batch:
    """The batch with its images as float32 from 0 to 1, normalised where mean and standard deviation are given: as
    ToTensor and Normalize compute it, on whatever device the tensor is."""

    def floats(tensor: torch.Tensor) -> torch.Tensor:
        if not _is_images(tensor):
            return tensor
        made = tensor.to(torch.float32).div_(255)
        return made.sub_(_by_channel(mean, made.device)).div_(_by_channel(std, made.device)) if mean else made

    return map_tensors(batch, floats)


@cache
def _by_channel(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Kept: copying it for each batch would wait for the device."""
    return torch.tensor(values, device=device).view(-1, 1, 1)


# Lines to paste

_READ = """\
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

def read(path):
    try:
        return decode_image(path, ImageReadMode.RGB)
    except RuntimeError:  # a file that torchvision cannot read: as before
        return v2.functional.pil_to_tensor(Image.open(path).convert("RGB"))
"""

_DRAFT = """\
from PIL import Image

def read(path):
    with Image.open(path) as image:
        image.draft("RGB", ({size}, {size}))
        return image.convert("RGB")
"""
_IMPORTS = "import torch\nfrom PIL import Image\nfrom torchvision.transforms import v2"
_DRAFT_TENSORS = _DRAFT.replace("from PIL import Image", _IMPORTS).replace(
    'image.convert("RGB")', 'v2.functional.pil_to_tensor(image.convert("RGB"))'
)

_KEPT = """\
import numpy as np
import torch
from PIL import Image

class KeptImages:
    \"""Images of these paths. Decoded once, they stay in memory that all workers share, as long as there is room.\"""

    def __init__(self, load, paths, num_bytes):
        self.load, self.slots = load, dict(zip(paths, range(len(paths))))
        self.pixels = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(num_bytes))
        self.places = torch.zeros(len(self.slots) + 1, 3, dtype=torch.int64).share_memory_()  # begin, height, width
        self.places[-1, 0] = 1  # the last row: where the next image begins; 0 of another row: not there yet
        self.lock = torch.multiprocessing.get_context("spawn").Lock()

    def __call__(self, path):
        place = self.places[self.slots[path]]
        if begin := int(place[0]):
            height, width = place[1:].tolist()
            pixels = self.pixels[begin : begin + 3 * height * width].view(height, width, 3)
            return AS_IMAGE
        image = self.load(path)
        pixels = PIXELS  # height, width, 3
        if self.lock.acquire(timeout=1):  # a worker that was killed may still hold it
            begin, num = int(self.places[-1, 0]), pixels.numel()
            if not place[0] and begin + num <= len(self.pixels):
                self.pixels[begin : begin + num] = pixels.flatten()
                self.places[-1, 0] = begin + num
                place[1:] = torch.tensor(pixels.shape[:2])
                place[0] = begin  # last, because others read it without the lock
            self.lock.release()
        return image
"""
_OF_PILLOW = {"AS_IMAGE": "Image.fromarray(pixels.numpy())", "PIXELS": "torch.from_numpy(np.array(image))"}
_OF_TENSORS = {"AS_IMAGE": "pixels.permute(2, 0, 1).clone()", "PIXELS": "image.permute(1, 2, 0)"}


def code(before: Way, after: Way, *, is_whole: bool) -> str:
    """Lines to paste for the change between them, after those of the changes that there are before. ``is_whole``: they
    reach into the dataset; else they show the pattern."""
    dataset = before.users_dataset if is_whole else None
    lines = _reading_code if before.how.as_bytes == after.how.as_bytes else _bytes_code
    return lines(before, after, find_folders(dataset), find_transforms(dataset))


def _copied(before: Way, found: list[Found]) -> list[str]:
    """By the lines of the first change."""
    return copies(found) if before.how == How() else []


def _reading_code(before: Way, after: Way, folders: list[Found], transforms: list[Found]) -> str:
    how, was = after.how, before.how
    made = {each: as_tensors(each, to_bytes=how.as_bytes) for each in transforms}
    changed = [each for each in transforms if made[each]] if how.tensors and not was.tensors else []
    read = _READ if how.reduced_size is None else (_DRAFT_TENSORS if how.tensors else _DRAFT)
    lines = [*_copied(before, [*folders, *changed]), read.format(size=how.reduced_size)]
    lines += [f"{each.code}.loader = read" for each in folders]
    if not folders:
        lines.append("# In your dataset, use read(path) in place of what opens an image with Pillow and converts it.")
    for each in changed:
        lines += made[each]
    if not transforms and how.tensors:
        lines.append("# Use the transforms of torchvision.transforms.v2 with the arguments that yours have, and")
        lines.append("# v2.ToDtype(torch.float32, scale=True) in place of ToTensor().")
    return "\n".join(lines)


def kept_code(before: Way, num_bytes: int, *, is_whole: bool) -> str:
    """Lines to paste that keep images in memory; ``num_bytes``: of all of them."""
    folders = find_folders(before.users_dataset if is_whole else None)
    made = _KEPT
    for name, text in (_OF_TENSORS if before.how.tensors else _OF_PILLOW).items():
        made = made.replace(name, text)
    lines = [*_copied(before, folders), made]
    for path in (each.code for each in folders):
        lines.append(f"paths = [path for path, _ in {path}.samples]")
        lines.append(f"{path}.loader = KeptImages({path}.loader, paths, num_bytes={num_bytes:_})")
    if not folders:
        lines.append("# in your dataset, in place of your function `load` from a path to an RGB image:")
        lines.append(f"self.load = KeptImages(load, paths, num_bytes={num_bytes:_})")
    return "\n".join(lines)


def _bytes_code(before: Way, after: Way, _: list[Found], found: list[Found]) -> str:
    mean, std = after.on_device[-1].args  # type: ignore[attr-defined]
    lines = list[str]()
    ending = ending_of(found[0].steps) if len(found) == 1 else None
    if ending is not None:
        num_kept, makes_tensors = ending
        kept = [f"*{found[0].code}.transforms[:-{len(found[0].steps) - num_kept}]"] if num_kept else []
        # ToImage() also takes arrays and tensors
        kept += ["v2.ToImage()"] if makes_tensors and not before.how.tensors else []
        lines += [*_copied(before, found), "from torchvision.transforms import Compose, v2"]
        lines += ["# in the dataset: workers send bytes", f"{found[0].code} = Compose([{', '.join(kept)}])"]
    else:
        lines.append("# In your dataset, leave out Normalize(...), and use v2.PILToTensor() in place of ToTensor().")
        lines.append("# The lines below belong to that: both or neither.")
    if mean:
        lines.append("# once, before the training loop")
        lines += [
            f"{name} = torch.tensor({values}, device=device).view(-1, 1, 1)"
            for name, values in (("mean", mean), ("std", std))
        ]
    lines.append("# in the training loop, once the images are on the GPU")
    lines.append(f"images = images.float().div_(255){'.sub_(mean).div_(std)' if mean else ''}")
    return "\n".join(lines)
