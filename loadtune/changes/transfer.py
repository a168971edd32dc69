"""Batches sent to the GPU as fewer bytes, which makes 32-bit floats of them there, or sent one batch ahead."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from loadtune.changes.base import NotApplicableError, Remedy, Situation
from loadtune.model.resources import Job
from loadtune.records.config import TrialConfig
from loadtune.records.result import Examined

if TYPE_CHECKING:
    from loadtune.workload import Workload

HALVED = """\
{first}

def collate_halved(samples):
    inputs, targets = {name}(samples)
    return inputs.half(), targets

# DataLoader(..., collate_fn=collate_halved); in the training loop, once the inputs are on the GPU
inputs = inputs.float()"""

AHEAD = """\
def copied_ahead(loader, device):
    stream, waiting = torch.cuda.Stream(device), None
    for batch in loader:
        with torch.cuda.stream(stream):
            copied = [part.to(device, non_blocking=True) for part in batch], stream.record_event()
        if waiting is not None:
            yield ready(*waiting)
        waiting = copied
    if waiting is not None:
        yield ready(*waiting)

def ready(batch, copied):
    torch.cuda.current_stream().wait_event(copied)
    for part in batch:
        part.record_stream(torch.cuda.current_stream())
    return batch

for inputs, targets in copied_ahead(loader, device):
    ..."""


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


class HalfTransfer(Remedy):
    """Half of the bytes."""

    name = "half_transfer"
    title = "send 16-bit inputs, widen them on the GPU"
    changes = "inputs are rounded to 16 bits; values above 65,504 would become infinite"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        if not situation.on_gpu or situation.facts.input_dtype != "float32":
            return None
        return None if situation.has("uint8_transfer", "batched_fetch") else situation.config

    def apply(self, workload: "Workload") -> "Workload":
        import torch
        from torch.utils.data import default_collate

        from loadtune.changes import datasets

        inputs, _ = datasets.pair_of_tensors(workload)
        if inputs.dtype != torch.float32:
            raise NotApplicableError("a batch is no pair (inputs, targets) of tensors with float32 inputs")
        if not inputs.half().isfinite().all():
            raise NotApplicableError("its inputs are too large for 16-bit floats")
        collate = partial(datasets.collate_halved, workload.loader.collate_fn or default_collate)
        loader, widen = replace(workload.loader, collate_fn=collate), datasets.OnInputs(torch.Tensor.float)
        return replace(workload, loader=loader, on_device=(*workload.on_device, widen))

    def own_code(self, workload: "Workload") -> str:
        from torch.utils.data import default_collate

        if workload.loader.collate_fn in (None, default_collate):
            return HALVED.format(first="from torch.utils.data import default_collate", name="default_collate")
        return HALVED.format(first="own_collate = loader.collate_fn  # of your loader as it is", name="own_collate")


class CopyAhead(Remedy):
    """On a stream of its own, while the current batch is trained on."""

    name = "copy_ahead"
    title = "copy one batch ahead on a side stream"
    changes = "one more batch of GPU memory"
    lines = AHEAD

    def offer(self, situation: Situation) -> TrialConfig | None:
        """Copies out of memory that is not page-locked cannot overlap with anything."""
        return situation.config if situation.on_gpu and situation.config.loader.pin_memory else None

    def apply(self, workload: "Workload") -> "Workload":
        from loadtune.changes import datasets

        if not workload.epoch.indices:
            raise NotApplicableError("its samples are not read by their indices")
        datasets.pair_of_tensors(workload)
        return replace(workload, copy_ahead=True)

    def job(self, job: Job, seen: Examined, situation: Situation) -> Job | None:
        return replace(job, copies_ahead=True)
