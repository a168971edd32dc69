"""Batches sent to the GPU as fewer bytes, which makes 32-bit floats of them there, or sent one batch ahead."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from loadtune.changes.base import NotApplicableError, Remedy, Situation
from loadtune.model.resources import Job
from loadtune.records import Examined, TrialConfig

if TYPE_CHECKING:
    import torch

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

        from loadtune.changes.datasets import OnInputs, is_pair_of_tensors, small_batch, steps_of, with_owner
        from loadtune.workload import tensors_of

        ending = _ending(steps_of(workload.dataset))
        changed = with_owner(workload, steps=[*ending.head, to_uint8] if ending.makes_tensors else ending.head)
        before, after = small_batch(workload), small_batch(changed)
        pairs = zip(tensors_of(before), tensors_of(after), strict=True)
        became_bytes = [old.is_floating_point() and new.dtype == torch.uint8 for old, new in pairs]
        if became_bytes != [True, False] or not is_pair_of_tensors(after):
            raise NotApplicableError("a batch is no pair (images, targets) of tensors, or its images were never bytes")
        to_floats = OnInputs(partial(floats, ending.mean, ending.std))
        return replace(changed, on_device=(*workload.on_device, to_floats))

    def own_code(self, workload: "Workload") -> str:
        from loadtune.changes.datasets import copy_lines, path_of, steps_of, transform_lines

        dataset, ending = workload.dataset, _ending(steps_of(workload.dataset))
        after = 2 if ending.mean else 1
        kept = [f"*{path_of(dataset)}.transform.transforms[:-{after}]"] if ending.head else []
        kept += ["v2.ToImage()"] if ending.makes_tensors else []  # unlike PILToTensor it also takes arrays and tensors
        constants = [
            "# once, before the training loop",
            f"mean = torch.tensor({ending.mean}, device=device).view(-1, 1, 1)",
            f"std = torch.tensor({ending.std}, device=device).view(-1, 1, 1)",
        ]
        lines = [
            *copy_lines(dataset),
            "from torchvision.transforms import Compose, v2",
            "# in the dataset: workers send bytes",
            *transform_lines(dataset, kept),
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

        from loadtune.changes.datasets import OnInputs, is_pair_of_tensors, small_batch

        batch = small_batch(workload)
        if not is_pair_of_tensors(batch) or batch[0].dtype != torch.float32:
            raise NotApplicableError("a batch is no pair (inputs, targets) of tensors with float32 inputs")
        if not batch[0].half().isfinite().all():
            raise NotApplicableError("its inputs are too large for 16-bit floats")
        collate = partial(collate_halved, workload.loader.collate_fn or default_collate)
        loader = replace(workload.loader, collate_fn=collate)
        return replace(workload, loader=loader, on_device=(*workload.on_device, OnInputs(torch.Tensor.float)))

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
        from loadtune.changes.datasets import is_pair_of_tensors, small_batch

        if not workload.epoch.indices or not is_pair_of_tensors(small_batch(workload)):
            raise NotApplicableError("a batch is no pair (inputs, targets) of tensors")
        return replace(workload, copy_ahead=True)

    def job(self, job: Job, seen: Examined, situation: Situation) -> Job | None:
        return replace(job, copies_ahead=True)


def collate_halved(collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    import torch

    from loadtune.changes.datasets import OnInputs

    return OnInputs(torch.Tensor.half)(collate(samples))


def to_uint8(image: Any) -> "torch.Tensor":
    """A picture, or an array of one, as a uint8 tensor (C, H, W); a tensor stays as it is."""
    import numpy as np
    import torch
    from torchvision.transforms.functional import pil_to_tensor

    if isinstance(image, torch.Tensor):
        return image
    if isinstance(image, np.ndarray):
        return torch.from_numpy(image if image.ndim == 3 else image[:, :, None]).permute(2, 0, 1).contiguous()
    return pil_to_tensor(image)  # type: ignore[no-any-return]


def floats(mean: tuple[float, ...], std: tuple[float, ...], images: "torch.Tensor") -> "torch.Tensor":
    """uint8 → float32 from 0 to 1, normalised where mean and standard deviation are given: as ToTensor and Normalize
    compute it, on whatever device the tensor is."""
    import torch

    made = images.to(torch.float32).div_(255)
    return made.sub_(_by_channel(mean, made.device)).div_(_by_channel(std, made.device)) if mean else made


@cache
def _by_channel(values: tuple[float, ...], device: "torch.device") -> "torch.Tensor":
    """Kept: copying it for each batch would wait for the device."""
    import torch

    return torch.tensor(values, device=device).view(-1, 1, 1)


class _Ending(NamedTuple):
    """How a transform ends: in floats, perhaps normalised."""

    head: list[Any]
    """The steps before floats are made."""
    makes_tensors: bool
    """Whether the step that makes floats also makes the tensor, as ToTensor does."""
    mean: tuple[float, ...]
    """Of each channel. Empty: nothing is normalised."""
    std: tuple[float, ...]


def _ending(steps: list[Any]) -> _Ending:
    """Raises NotApplicableError where the transform ends otherwise."""
    import numpy as np
    import torch
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    from loadtune.changes.datasets import to_floats

    *rest, last = steps or [None]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    if isinstance(last, (v1.Normalize, v2.Normalize)) and rest:
        mean, std = (tuple(float(value) for value in np.ravel(values)) for values in (last.mean, last.std))
        *rest, last = rest
    makes_tensors = isinstance(last, v1.ToTensor) or last is to_floats
    scales = isinstance(last, v1.ConvertImageDtype) or (isinstance(last, v2.ToDtype) and last.scale)
    if makes_tensors or (scales and last.dtype == torch.float32):
        return _Ending(rest, makes_tensors, mean, std)
    raise NotApplicableError(
        "the dataset's transform does not end in ToTensor() or ToDtype(torch.float32, scale=True), and perhaps "
        "Normalize(...)"
    )
