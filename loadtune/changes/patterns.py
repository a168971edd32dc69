"""Images whose content is known, loaded with a change and without it: errors that the user's own samples may not show.

Files of all kinds, red and blue apart, fine lines, an orientation in EXIF, the range of values. Needs torchvision.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import functional as v1

from loadtune.changes.change import FARTHEST, NotApplicableError
from loadtune.changes.way import Changed, Way

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
    made: torch.Tensor = v1.to_tensor(v1.resize(image, [_HEIGHT // 3, _WIDTH // 3]))
    return made.div(255) if made.dtype == torch.uint8 else made


def _whole(image: Any) -> torch.Tensor:
    made: torch.Tensor = v1.pil_to_tensor(image)
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
