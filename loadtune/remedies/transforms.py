"""A dataset's torchvision transform, found, taken apart and replaced. Torch's side; imported late."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import Subset
from torchvision import transforms as v1
from torchvision.datasets import DatasetFolder
from torchvision.datasets.folder import default_loader, pil_loader
from torchvision.datasets.vision import StandardTransform
from torchvision.transforms import v2
from torchvision.transforms.functional import convert_image_dtype, to_tensor

from loadtune.remedies.base import NotApplicableError
from loadtune.workload import Workload

COMPOSES = (v1.Compose, v2.Compose)


def owner_of(dataset: Any) -> Any:
    """The dataset that loads samples: behind any number of `Subset`."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def path_of(dataset: Any) -> str:
    """How the dataset that loads samples is reached in code: ``dataset.dataset``, behind a `Subset`."""
    return f"{path_of(dataset.dataset)}.dataset" if isinstance(dataset, Subset) else "dataset"


def copy_lines(dataset: Any) -> list[str]:
    """Lines of code that give a `Subset` a dataset of its own, before that is changed; none for another dataset."""
    if not isinstance(dataset, Subset):
        return []
    lines, path = list[str](), "dataset"
    inner: Any = dataset
    while isinstance(inner, Subset):
        path, inner = f"{path}.dataset", inner.dataset
        lines.append(f"{path} = copy.copy({path})")
    if isinstance(getattr(inner, "transforms", None), StandardTransform):
        lines.append(f"{path}.transforms = copy.copy({path}.transforms)")
    return ["import copy", "# other splits of the dataset, such as validation, stay as they are", *lines]


def steps_of(dataset: Any) -> list[Any]:
    """The steps of the dataset's transform. Raises NotApplicableError where it has none that can be taken apart."""
    transform = getattr(owner_of(dataset), "transform", None)
    if transform is None:
        raise NotApplicableError("the dataset has no transform in an attribute `transform`")
    if isinstance(transform, COMPOSES):
        return list(transform.transforms)
    return [transform]


def transform_lines(dataset: Any, made: str) -> list[str]:
    """Lines of code that give the dataset this transform, also where torchvision holds it twice."""
    path, lines = path_of(dataset), []
    if isinstance(getattr(owner_of(dataset), "transforms", None), StandardTransform):
        lines = [f"{path}.transforms.transform = {path}.transform  # where torchvision holds it a second time"]
    return [f"{path}.transform = {made}", *lines]


def with_owner(workload: Workload, change: Callable[[Any], None]) -> Workload:
    """The same job over a changed copy of the dataset that loads samples. The user's own stays as it is."""

    def changed(dataset: Any) -> Any:
        made = copy.copy(dataset)
        if isinstance(dataset, Subset):
            made.dataset = changed(dataset.dataset)
        else:
            change(made)
        return made

    loader = replace(workload.loader, dataset=changed(workload.loader.dataset))
    return replace(workload, loader=loader)


def set_steps(dataset: Any, steps: Sequence[Any]) -> None:
    """Give the dataset a transform of these steps, also where torchvision holds it twice."""
    dataset.transform = v2.Compose(list(steps)) if any(_is_v2(step) for step in steps) else v1.Compose(list(steps))
    if isinstance(getattr(dataset, "transforms", None), StandardTransform):
        dataset.transforms = StandardTransform(dataset.transform, getattr(dataset, "target_transform", None))


@dataclass(frozen=True, slots=True)
class ToFloats:
    """What ToTensor does, for tensors too."""

    makes_tensors: bool = True

    def __call__(self, image: Any) -> torch.Tensor:
        made: torch.Tensor = convert_image_dtype(image) if isinstance(image, torch.Tensor) else to_tensor(image)
        return made


def is_to_tensor(step: Any) -> bool:
    return isinstance(step, v1.ToTensor)


def as_tensor_steps(steps: Sequence[Any]) -> list[Any]:
    """The same steps for images that are tensors from the start."""
    return [ToFloats() if is_to_tensor(step) else step for step in steps]


def takes_tensors_lines(dataset: Any) -> list[str]:
    """Lines that make the dataset's transform take tensors; none where it does."""
    steps, path = steps_of(dataset), path_of(dataset)
    at = next((at for at, step in enumerate(steps) if is_to_tensor(step)), None)
    if at is None:
        return []
    made = [f"*{path}.transform.transforms[:{at}]"] if at else []
    made += ["ConvertImageDtype(torch.float32)"]
    made += [f"*{path}.transform.transforms[{at + 1}:]"] if at + 1 < len(steps) else []
    return [
        "from torchvision.transforms import Compose, ConvertImageDtype",
        "# the transform gets tensors now: another step in place of ToTensor()",
        *transform_lines(dataset, f"Compose([{', '.join(made)}])"),
    ]


def _is_v2(step: Any) -> bool:
    return isinstance(step, v2.Transform)


def scales_first(dataset: Any) -> bool:
    """Whether the first step that changes a picture scales it to a size of its own, whatever size the picture had."""
    scaling = (v1.Resize, v1.RandomResizedCrop, v2.Resize, v2.RandomResizedCrop)
    kept = [
        step for step in steps_of(dataset) if not isinstance(step, v2.ToImage) and not getattr(step, "keeps_size", 0)
    ]
    return bool(kept) and isinstance(kept[0], scaling)


def check_reads_files(dataset: Any) -> None:
    """Raise NotApplicableError where the dataset is no image folder whose files Pillow decodes."""
    owner = owner_of(dataset)
    if not isinstance(owner, DatasetFolder) or owner.loader not in (default_loader, pil_loader):
        raise NotApplicableError("the dataset is no ImageFolder that reads its files with Pillow")
