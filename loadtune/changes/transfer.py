"""Batches sent to the GPU as bytes, which makes 32-bit floats of them there."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from loadtune.changes.base import NotApplicableError, Remedy, Situation
from loadtune.records.config import TrialConfig

if TYPE_CHECKING:
    from loadtune.workload import Workload


class Uint8Transfer(Remedy):
    """A quarter of the bytes, and no floats in the workers."""

    name = "uint8_transfer"
    title = "send uint8 images, make floats on the GPU"
    changes = "on the GPU a batch takes a quarter more memory, as bytes and as floats"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        facts = situation.facts
        if not situation.on_gpu or len(facts.input_shape) != 3 or not facts.input_dtype.startswith("float"):
            return None
        return situation.config

    def apply(self, workload: "Workload") -> "Workload":
        import torch

        from loadtune.changes import datasets, images
        from loadtune.workload import tensors_of

        ending = images.ending_of(datasets.steps_of(workload.dataset))
        steps = [*ending.head, images.to_uint8] if ending.makes_tensors else ending.head
        changed = datasets.with_owner(workload, steps=steps)
        pairs = zip(tensors_of(datasets.small_batch(workload)), datasets.pair_of_tensors(changed), strict=True)
        if [old.is_floating_point() and new.dtype == torch.uint8 for old, new in pairs] != [True, False]:
            raise NotApplicableError("its images were never bytes")
        to_floats = datasets.OnInputs(partial(images.floats, ending.mean, ending.std))
        return replace(changed, on_device=(*workload.on_device, to_floats))

    def own_code(self, workload: "Workload") -> str:
        from loadtune.changes import datasets, images

        dataset = workload.dataset
        ending = images.ending_of(datasets.steps_of(dataset))
        after = 2 if ending.mean else 1
        kept = [f"*{datasets.path_of(dataset)}.transform.transforms[:-{after}]"] if ending.head else []
        kept += ["v2.ToImage()"] if ending.makes_tensors else []  # unlike PILToTensor it also takes arrays and tensors
        constants = [
            "# once, before the training loop",
            f"mean = torch.tensor({ending.mean}, device=device).view(-1, 1, 1)",
            f"std = torch.tensor({ending.std}, device=device).view(-1, 1, 1)",
        ]
        lines = [
            *datasets.copy_lines(dataset),
            "from torchvision.transforms import Compose, v2",
            "# in the dataset: workers send bytes",
            *datasets.transform_lines(dataset, kept),
            *(constants if ending.mean else []),
            "# in the training loop, once the images are on the GPU",
            f"images = images.float().div_(255){'.sub_(mean).div_(std)' if ending.mean else ''}",
        ]
        return "\n".join(lines)
