"""JPEG files decoded in another way: at a reduced size, by torchvision, or on the GPU. One of them is used at most."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from loadtune.changes.base import NotApplicableError, Remedy, Situation
from loadtune.records import TrialConfig

if TYPE_CHECKING:
    import torch

    from loadtune.workload import Workload

ENOUGH = 1.5
"""Times the size that the transform asks for: so much larger the reduced image stays at least, since a crop takes a
part of it only."""

NUM_FILES = 8
"""From all over the dataset, of which one at least has to be larger than that."""

DRAFT = """\
from PIL import Image

def read(path):
    with Image.open(path) as image:
        image.draft("RGB", ({size}, {size}))
        return image.convert("RGB")

{path}.loader = read  # of an ImageFolder"""

TENSOR = """\
from torchvision.io import ImageReadMode, decode_image

def read(path):
    return decode_image(path, mode=ImageReadMode.RGB)

{path}.loader = read  # of an ImageFolder"""

ON_GPU = """\
from torchvision.io import ImageReadMode, decode_jpeg

def read(path):
    with open(path, "rb") as file:
        return file.read()

transform = {path}.transform  # runs on the GPU now
{path}.loader, {path}.transform = read, None

def collate(samples):
    files, targets = zip(*samples)
    return files, torch.tensor(targets)

# DataLoader(..., collate_fn=collate); in the training loop, for a batch (files, targets)
encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
images = decode_jpeg(encoded, mode=ImageReadMode.RGB, device=device)
images = torch.stack([transform(image) for image in images])"""


class Decoding(Remedy):
    """The base of these remedies."""

    loads = True
    replaces: Sequence[str] = ("draft_decoding", "tensor_decoding", "gpu_decoding")
    """Remedies beside which it is not used."""
    makes_tensors: bool = True
    """Whether the transform gets a tensor instead of a picture."""

    def offer(self, situation: Situation) -> TrialConfig | None:
        fits = len(situation.facts.input_shape) == 3 and not situation.has(*self.replaces)
        return situation.config if fits else None

    def own_code(self, workload: "Workload") -> str:
        from loadtune.changes.datasets import copy_lines, path_of, takes_tensors_lines

        dataset = workload.dataset
        before = [*copy_lines(dataset), *(takes_tensors_lines(dataset) if self.makes_tensors else [])]
        return "\n".join([*before, self.lines.format(path=path_of(dataset), size=_size(workload))])


class DraftDecoding(Decoding):
    """Pillow's ``draft`` leaves out what a smaller image does not need."""

    name = "draft_decoding"
    title = "decode JPEG at reduced size (Pillow's draft)"
    changes = "crops are taken from a reduced image, so small ones are enlarged from fewer pixels"
    lines, makes_tensors = DRAFT, False

    def apply(self, workload: "Workload") -> "Workload":
        from loadtune.changes.datasets import steps_of, with_owner

        files = _folder(workload.dataset).samples
        if not _scales_first(steps_of(workload.dataset)):
            raise NotApplicableError("its transform does not begin with Resize or RandomResizedCrop: zoom would change")
        size = _size(workload)
        if not any(_is_reduced(path, size) for path, _ in files[:: max(1, len(files) // NUM_FILES)]):
            raise NotApplicableError("its files are no JPEG, or are hardly larger than the images that are trained on")
        return with_owner(workload, read=partial(read_reduced, size))

    def compared(self, workload: "Workload") -> "Workload":
        """Reduced in the same way after decoding: a random crop of a larger image would be another one."""
        from loadtune.changes.datasets import with_owner

        return with_owner(workload, read=partial(read_whole, _size(workload)))


class TensorDecoding(Decoding):
    """Straight to a tensor, without the steps between."""

    name = "tensor_decoding"
    title = "decode by torchvision, not Pillow"
    changes = "torchvision deprecates its decoders from version 0.29 on"
    lines = TENSOR

    def apply(self, workload: "Workload") -> "Workload":
        from loadtune.changes.datasets import as_tensor_steps, small_batch, with_owner

        _folder(workload.dataset)
        changed = with_owner(workload, steps=as_tensor_steps(workload.dataset), read=read_tensor)
        try:
            small_batch(changed)
        except Exception as error:
            raise NotApplicableError("the dataset's transform does not take tensors") from error
        return changed


class GpuDecoding(Decoding):
    """Images are transformed on the GPU, too: workers only read bytes."""

    name = "gpu_decoding"
    title = "decode and transform JPEG on the GPU"
    changes = "the order of random augmentation; torchvision deprecates its decoders from version 0.29 on"
    lines = ON_GPU
    replaces = (*Decoding.replaces, "uint8_transfer", "half_transfer")

    def offer(self, situation: Situation) -> TrialConfig | None:
        return super().offer(situation) if situation.on_gpu else None

    def apply(self, workload: "Workload") -> "Workload":
        import torch
        from torch.utils.data import default_collate
        from torchvision.transforms import Compose

        from loadtune.changes.datasets import as_tensor_steps, with_owner

        _folder(workload.dataset)
        if workload.loader.collate_fn not in (None, default_collate):
            raise NotApplicableError("its loader has a collate function of its own")
        if not torch.cuda.is_available():
            raise NotApplicableError("CUDA is not available")
        changed = with_owner(workload, steps=[], read=read_bytes)
        loader = replace(changed.loader, collate_fn=collate_bytes)
        decode = partial(decoded, Compose(as_tensor_steps(workload.dataset)))
        return replace(changed, loader=loader, on_device=(*workload.on_device, decode))


def read_reduced(size: int, path: str) -> Any:
    """The image at about this height and width in pixels, as `partial` makes a loader of an ImageFolder of it."""
    from PIL import Image

    with Image.open(path) as image:
        image.draft("RGB", (size, size))
        return image.convert("RGB")


def read_whole(size: int, path: str) -> Any:
    """Decodes all pixels, and makes the image as small as `read_reduced` does."""
    from PIL import Image

    with Image.open(path) as image:
        whole = image.convert("RGB")
    reduced = read_reduced(size, path).size
    return whole if reduced == whole.size else whole.resize(reduced, Image.Resampling.BOX)


def read_tensor(path: str) -> "torch.Tensor":
    """The image as a uint8 tensor (3, H, W)."""
    from torchvision.io import ImageReadMode, decode_image

    return decode_image(path, mode=ImageReadMode.RGB)  # type: ignore[no-any-return]


def read_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@dataclass(slots=True)
class Files:
    """The bytes of one JPEG file a sample."""

    files: Sequence[bytes]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.files),)


def collate_bytes(samples: list[Any]) -> Any:
    from torch.utils.data import default_collate

    return [Files([file for file, _ in samples]), default_collate([target for _, target in samples])]


def decoded(transform: Callable[[Any], Any], batch: Any) -> Any:
    """A batch (files, targets) as (images, targets), on the device of the targets."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    files, targets = batch
    encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files.files]
    images = decode_jpeg(encoded, mode=ImageReadMode.RGB, device=targets.device)
    return [torch.stack([transform(image) for image in images]), targets]


def _folder(dataset: Any) -> Any:
    """The image folder whose files Pillow decodes. Raises NotApplicableError where the dataset is none."""
    from torchvision.datasets import DatasetFolder
    from torchvision.datasets.folder import default_loader, pil_loader

    from loadtune.changes.datasets import owner_of

    owner = owner_of(dataset)
    if not isinstance(owner, DatasetFolder) or owner.loader not in (default_loader, pil_loader):
        raise NotApplicableError("the dataset is no ImageFolder that reads its files with Pillow")
    return owner


def _scales_first(steps: Sequence[Any]) -> bool:
    """Whether the first step that changes a picture scales it to a size of its own, whatever size the picture had."""
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    scaling = (v1.Resize, v1.RandomResizedCrop, v2.Resize, v2.RandomResizedCrop)
    kept = (step for step in steps if not (isinstance(step, v2.ToImage) or getattr(step, "keeps_size", False)))
    return isinstance(next(kept, None), scaling)


def _is_reduced(path: str, size: int) -> bool:
    """Whether Pillow decodes this file at a reduced size."""
    from PIL import Image

    with Image.open(path) as image:
        return bool(image.size != read_reduced(size, path).size)


def _size(workload: "Workload") -> int:
    """Height and width in pixels below which no image is reduced."""
    from loadtune.changes.datasets import small_batch
    from loadtune.workload import tensors_of

    images = next(tensors_of(small_batch(workload)))
    return round(ENOUGH * max(images.shape[-2:]))
