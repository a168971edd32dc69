"""Send images as uint8 and make floats of them on the GPU: a quarter of the bytes, and no floats in the workers."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loadtune.records import TrialConfig
from loadtune.remedies.base import NotApplicableError, Remedy, Situation

if TYPE_CHECKING:
    import torch

    from loadtune.workload import Workload


class Uint8Transfer(Remedy):
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

        from loadtune.remedies.leaves import AtPlaces, changed_places, is_pair_of_tensors, small_batch
        from loadtune.remedies.transforms import set_steps, steps_of, with_owner

        ending = _ending(steps_of(workload.dataset))
        changed = with_owner(workload, lambda dataset: set_steps(dataset, ending.uint8_steps))
        before, after = small_batch(workload), small_batch(changed)
        if changed_places(before, after, torch.uint8) != (0,) or not is_pair_of_tensors(after):
            raise NotApplicableError("a batch is no pair (images, targets) of tensors, or its images were never bytes")
        to_floats = AtPlaces((0,), Floats(ending.mean, ending.std))
        return replace(changed, on_device=(*workload.on_device, to_floats))

    def own_code(self, workload: "Workload") -> str:
        from loadtune.remedies.transforms import copy_lines, path_of, steps_of, transform_lines

        steps = steps_of(workload.dataset)
        ending, path = _ending(steps), path_of(workload.dataset)
        kept = [f"*{path}.transform.transforms[:{len(ending.head) - len(steps)}]"] if ending.head else []
        kept += ["v2.ToImage()"] if ending.makes_tensors else []  # unlike PILToTensor it also takes arrays and tensors
        lines = [
            *copy_lines(workload.dataset),
            "from torchvision.transforms import Compose, v2",
            "# in the dataset: workers send bytes",
            *transform_lines(workload.dataset, f"Compose([{', '.join(kept)}])"),
        ]
        if ending.mean:
            lines += [
                "# once, before the training loop",
                f"mean = torch.tensor({ending.mean}, device=device).view(-1, 1, 1)",
                f"std = torch.tensor({ending.std}, device=device).view(-1, 1, 1)",
            ]
        normalized = ".sub_(mean).div_(std)" if ending.mean else ""
        return "\n".join(
            [
                *lines,
                "# in the training loop, once the images are on the GPU",
                f"images = images.float().div_(255){normalized}",
            ]
        )


class ToUint8:
    """A picture, or an array of one, as a uint8 tensor (C, H, W); a tensor stays as it is."""

    def __call__(self, image: Any) -> "torch.Tensor":
        import numpy as np
        import torch
        from torchvision.transforms.functional import pil_to_tensor

        if isinstance(image, torch.Tensor):
            return image
        if isinstance(image, np.ndarray):
            return torch.from_numpy(image if image.ndim == 3 else image[:, :, None]).permute(2, 0, 1).contiguous()
        return pil_to_tensor(image)  # type: ignore[no-any-return]


class Floats:
    """uint8 → float32 from 0 to 1, normalised where mean and standard deviation are given: as ToTensor and Normalize
    compute it, on whatever device the tensor is."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self.mean, self.std = mean, std
        self._there: dict[Any, Any] = {}

    def __call__(self, images: "torch.Tensor") -> "torch.Tensor":
        import torch

        floats = images.to(torch.float32).div_(255)
        if not self.mean:
            return floats
        if images.device not in self._there:
            self._there[images.device] = [
                torch.tensor(values, device=images.device).view(-1, 1, 1) for values in (self.mean, self.std)
            ]
        mean, std = self._there[images.device]
        return floats.sub_(mean).div_(std)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """How a transform ends: in floats, perhaps normalised."""

    head: list[Any]
    """The steps before floats are made."""
    makes_tensors: bool
    """Whether the step that makes floats also makes the tensor, as ToTensor does."""
    mean: tuple[float, ...] = ()
    """Of each channel. Empty: nothing is normalised."""
    std: tuple[float, ...] = ()

    @property
    def uint8_steps(self) -> list[Any]:
        return [*self.head, ToUint8()] if self.makes_tensors else self.head


def _ending(steps: list[Any]) -> _Ending:
    """Raises NotApplicableError where the transform ends otherwise."""
    import numpy as np
    import torch
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    *rest, last = steps or [None]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    if isinstance(last, (v1.Normalize, v2.Normalize)) and rest:
        mean, std = (tuple(float(value) for value in np.ravel(values)) for values in (last.mean, last.std))
        *rest, last = rest
    if isinstance(last, v1.ToTensor) or getattr(last, "makes_tensors", False):
        return _Ending(head=rest, makes_tensors=True, mean=mean, std=std)
    scales = isinstance(last, v2.ToDtype) and last.dtype == torch.float32 and last.scale
    if scales or (isinstance(last, v1.ConvertImageDtype) and last.dtype == torch.float32):
        return _Ending(head=rest, makes_tensors=False, mean=mean, std=std)
    raise NotApplicableError(
        "the dataset's transform does not end in ToTensor() or ToDtype(torch.float32, scale=True), and perhaps "
        "Normalize(...)"
    )
