"""Send images as uint8 and make floats of them on the GPU: a quarter of the bytes, and no floats in the workers."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loadtune.records import TrialConfig
from loadtune.remedies.base import NotApplicableError, Remedy, Situation

if TYPE_CHECKING:
    import torch

    from loadtune.workload import Workload


class Uint8Transfer(Remedy):
    title = "send uint8 images, make floats on the GPU"
    loads = True

    def offer(self, situation: Situation) -> TrialConfig | None:
        facts = situation.facts
        if not situation.on_gpu or len(facts.input_shape) != 3 or not facts.input_dtype.startswith("float"):
            return None
        return situation.config

    def apply(self, workload: "Workload") -> "Workload":
        import torch

        from loadtune.remedies.leaves import AtPlaces, changed_places, small_batch
        from loadtune.remedies.transforms import set_steps, steps_of, with_owner

        head, normalize = _split(steps_of(workload.dataset))
        changed = with_owner(workload, lambda dataset: set_steps(dataset, [*head, ToUint8()]))
        places = changed_places(small_batch(workload), small_batch(changed), torch.uint8)
        if not places:
            raise NotApplicableError("its images are no bytes before they become floats")
        to_floats = AtPlaces(places, Floats(_values(normalize, "mean"), _values(normalize, "std")))
        return replace(changed, on_device=(*workload.on_device, to_floats))

    def own_code(self, workload: "Workload") -> str:
        from loadtune.remedies.transforms import COMPOSES, owner_of, steps_of

        steps = steps_of(workload.dataset)
        head, normalize = _split(steps)
        kept = f"*dataset.transform.transforms[:{len(head) - len(steps)}], "
        nested = isinstance(owner_of(workload.dataset).transform, COMPOSES)
        lines = [
            "from torchvision import transforms",
            "# in the dataset: workers send bytes",
            f"dataset.transform = transforms.Compose([{kept if nested and head else ''}transforms.PILToTensor()])",
            "# in the training loop, once the images are on the GPU",
        ]
        if normalize is None:
            return "\n".join([*lines, "images = images.float().div_(255)"])
        mean, std = _values(normalize, "mean"), _values(normalize, "std")
        return "\n".join(
            [
                *lines,
                f"mean = torch.tensor({mean}, device=images.device).view(-1, 1, 1)",
                f"std = torch.tensor({std}, device=images.device).view(-1, 1, 1)",
                "images = images.float().div_(255).sub_(mean).div_(std)",
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


def _split(steps: list[Any]) -> tuple[list[Any], Any]:
    """(The steps before floats are made, the normalisation after it or None). Raises NotApplicableError."""
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    rest, normalize = list(steps), None
    if rest and isinstance(rest[-1], (v1.Normalize, v2.Normalize)):
        normalize = rest.pop()
    if not rest or not _makes_floats(rest[-1]):
        raise NotApplicableError(
            "the dataset's transform does not end in ToTensor() or ToDtype(torch.float32, scale=True), and perhaps "
            "Normalize(...)"
        )
    rest.pop()
    while rest and isinstance(rest[-1], (v2.ToImage, v2.PILToTensor, v1.PILToTensor)):
        rest.pop()
    return rest, normalize


def _makes_floats(step: Any) -> bool:
    import torch
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    if isinstance(step, v2.ToDtype):
        return step.dtype == torch.float32 and bool(step.scale)
    if isinstance(step, v1.ConvertImageDtype):
        return bool(step.dtype == torch.float32)
    return isinstance(step, v1.ToTensor) or getattr(step, "is_to_tensor", False)


def _values(normalize: Any, name: str) -> tuple[float, ...]:
    """Of each channel. Empty: there is no normalisation."""
    return () if normalize is None else tuple(float(value) for value in getattr(normalize, name))
