"""JPEG files decoded at a reduced size."""

from functools import partial
from typing import TYPE_CHECKING

from loadtune.changes.base import NotApplicableError, Remedy, Situation
from loadtune.records.config import TrialConfig

if TYPE_CHECKING:
    from loadtune.workload import Workload

DRAFT = """\
from PIL import Image

def read(path):
    with Image.open(path) as image:
        image.draft("RGB", ({size}, {size}))
        return image.convert("RGB")

{path}.loader = read  # of an ImageFolder"""


class DraftDecoding(Remedy):
    """Pillow's ``draft`` leaves out what a smaller image does not need."""

    name = "draft_decoding"
    title = "decode JPEG at reduced size (Pillow's draft)"
    changes = "crops are taken from a reduced image, so small ones are enlarged from fewer pixels"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        return situation.config if len(situation.facts.input_shape) == 3 else None

    def apply(self, workload: "Workload") -> "Workload":
        from loadtune.changes import datasets, images

        files = images.folder_of(workload.dataset).samples
        if not images.scales_first(datasets.steps_of(workload.dataset)):
            raise NotApplicableError("its transform does not begin with Resize or RandomResizedCrop: zoom would change")
        size = images.reduced_size(workload)
        if not images.are_larger([path for path, _ in files], size):
            raise NotApplicableError("its files are no JPEG, or are hardly larger than the images that are trained on")
        return datasets.with_owner(workload, read=partial(images.read_reduced, size))

    def compared(self, workload: "Workload") -> "Workload":
        """Reduced in the same way after decoding: a random crop of a larger image would be another one."""
        from loadtune.changes import datasets, images

        return datasets.with_owner(workload, read=partial(images.read_whole, images.reduced_size(workload)))

    def own_code(self, workload: "Workload") -> str:
        from loadtune.changes import datasets, images

        dataset = workload.dataset
        own = DRAFT.format(path=datasets.path_of(dataset), size=images.reduced_size(workload))
        return "\n".join([*datasets.copy_lines(dataset), own])
