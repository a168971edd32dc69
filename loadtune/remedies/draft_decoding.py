"""Decode JPEG files at a reduced size: Pillow's ``draft`` leaves out what a smaller image does not need."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loadtune.records import TrialConfig
from loadtune.remedies.base import NotApplicableError, Remedy, Situation

if TYPE_CHECKING:
    from loadtune.workload import Workload

ENOUGH = 1.5
"""Times the size that the transform asks for: so much larger the reduced image stays at least, since a crop takes a
part of it only."""


NUM_FILES = 8
"""From all over the dataset, of which one at least has to be larger than that."""


class DraftDecoding(Remedy):
    title = "decode JPEG at reduced size (Pillow's draft)"
    changes = "crops are taken from a reduced image, so small ones are enlarged from fewer pixels"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        taken = bool({"tensor_decoding", "gpu_decoding"} & set(situation.config.remedies))
        return situation.config if len(situation.facts.input_shape) == 3 and not taken else None

    def apply(self, workload: "Workload") -> "Workload":
        from loadtune.remedies.transforms import check_reads_files, owner_of, scales_first, with_owner

        check_reads_files(workload.dataset)
        if not scales_first(workload.dataset):
            raise NotApplicableError("its transform does not begin with Resize or RandomResizedCrop: zoom would change")
        reader = DraftReader(_size(workload))
        files = owner_of(workload.dataset).samples
        if not any(_is_reduced(path, reader.size) for path, _ in files[:: max(1, len(files) // NUM_FILES)]):
            raise NotApplicableError("its files are no JPEG, or are hardly larger than the images that are trained on")

        def change(dataset: Any) -> None:
            dataset.loader = reader

        return with_owner(workload, change)

    def compared(self, workload: "Workload") -> "Workload":
        """Reduced in the same way after decoding: a random crop of a larger image would be another one."""
        from loadtune.remedies.transforms import with_owner

        reader = WholeReader(_size(workload))

        def change(dataset: Any) -> None:
            dataset.loader = reader

        return with_owner(workload, change)

    def own_code(self, workload: "Workload") -> str:
        from loadtune.remedies.transforms import copy_lines, path_of

        size = _size(workload)
        return "\n".join(
            [
                *copy_lines(workload.dataset),
                "from PIL import Image",
                "",
                "def read(path):",
                "    with Image.open(path) as image:",
                f'        image.draft("RGB", ({size}, {size}))',
                '        return image.convert("RGB")',
                "",
                f"{path_of(workload.dataset)}.loader = read  # of an ImageFolder",
            ]
        )


@dataclass(frozen=True, slots=True)
class DraftReader:
    """A loader of an ImageFolder. A class, so that workers started by spawn can pickle it."""

    size: int

    def __call__(self, path: str) -> Any:
        from PIL import Image

        with Image.open(path) as image:
            image.draft("RGB", (self.size, self.size))
            return image.convert("RGB")


@dataclass(frozen=True, slots=True)
class WholeReader:
    """Decodes all pixels, and makes the image as small as `DraftReader` of this size does."""

    size: int

    def __call__(self, path: str) -> Any:
        from PIL import Image

        with Image.open(path) as image:
            whole = image.convert("RGB")
        with Image.open(path) as image:
            image.draft("RGB", (self.size, self.size))
            return whole if image.size == whole.size else whole.resize(image.size, Image.Resampling.BOX)


def _is_reduced(path: str, size: int) -> bool:
    """Whether Pillow decodes this file at a reduced size."""
    from PIL import Image

    with Image.open(path) as image:
        whole = image.size
        image.draft("RGB", (size, size))
        return image.size != whole


def _size(workload: "Workload") -> int:
    """Height and width in pixels below which no image is reduced."""
    from loadtune.remedies.leaves import small_batch
    from loadtune.workload import tensors_of

    images = next(tensors_of(small_batch(workload)))
    return round(ENOUGH * max(images.shape[-2:]))
