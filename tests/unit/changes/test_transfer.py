"""Batches sent to the GPU as bytes: what is trained on stays what it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from remedy_rig import apart, delivered, equal, fake_images, job_with, lines_of, pasted_batch, trained_on, way_of
from torch.utils.data import Dataset, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2
from workload_rig import workload_of

from loadtune.changes.trial import Ways, examine
from loadtune.records.loading import NotApplicableError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

ROUNDING = 1e-6

TRANSFORMS: dict[str, Callable[[], Any]] = {
    "ToTensor alone": v1.ToTensor,
    "ToTensor": lambda: v1.Compose([v1.RandomCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()]),
    "ToTensor, Normalize": lambda: v1.Compose([v1.RandomResizedCrop(24), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    "ConvertImageDtype": lambda: v1.Compose([v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]),
    "v2": lambda: v2.Compose(
        [
            v2.RandomResizedCrop(24),
            v2.ToImage(),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    ),
    "one number for all channels": lambda: v1.Compose([v1.ToTensor(), v1.Normalize(0.5, 0.25)]),
}


class Pictures(Dataset[Any]):
    """Samples of any kind, transformed by an attribute `transform`."""

    def __init__(self, samples: list[Any], transform: Any) -> None:
        self.samples, self.transform = samples, transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.samples[index]), index


class Named(Pictures):
    def __getitem__(self, index: int) -> Any:
        return {"image": self.transform(self.samples[index]), "label": index}


def arrays() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (32, 32, 3), generator=generator).to(torch.uint8).numpy() for _ in range(8)]


def pasted(code: str, dataset: Any, **others: Any) -> Any:
    """The batch that is trained on, after these lines were pasted: those of the dataset, then those of the loop."""
    before, _, after = code.partition("# in the training loop")
    names: dict[str, Any] = {"torch": torch, "dataset": dataset, "device": "cpu", **others}
    exec(before, names)
    images, targets = pasted_batch(dataset)
    assert images.dtype == torch.uint8
    names["images"] = images
    exec(f"#{after}", names)
    return names["images"], targets


@pytest.mark.parametrize("name", TRANSFORMS)
def test_bytes_travel_and_the_same_floats_are_trained_on(name: str) -> None:
    dataset = fake_images(TRANSFORMS[name]())
    plain = workload_of(dataset)
    changed = job_with(plain, "uint8_transfer")
    images, before = delivered(changed)[0], delivered(plain)[0]
    assert images.dtype == torch.uint8
    assert 4 * images.nbytes == before.nbytes
    one, other = trained_on(plain), trained_on(changed)
    assert other[0].dtype == torch.float32
    assert equal(one, other) if name.startswith("ToTensor") else apart(one, other) < ROUNDING
    assert apart(one, trained_on(plain, seed=1)) > 0.1 or not _is_random(dataset.transform)
    expected = pasted_batch(dataset)
    assert apart(expected, pasted(lines_of("uint8_transfer", plain), dataset)) < ROUNDING


def test_behind_subsets_the_inner_dataset_is_changed_and_the_lines_reach_it() -> None:
    inner = fake_images(TRANSFORMS["ToTensor, Normalize"]())
    dataset = Subset(Subset(inner, range(1, 12)), [3, 1, 0, 5, 2, 7])
    job = workload_of(dataset)
    plain = trained_on(job)
    changed = job_with(job, "uint8_transfer")
    assert delivered(changed)[0].dtype == torch.uint8
    assert equal(plain, trained_on(changed))
    code = lines_of("uint8_transfer", job)
    assert "dataset.dataset.dataset.transform = " in code
    other = Subset(inner, range(4))
    validated = pasted_batch(other)
    assert equal(pasted_batch(dataset), pasted(code, dataset))
    assert equal(pasted_batch(other), validated), "another split of the same dataset"


REFUSED: dict[str, Callable[[], Any]] = {
    "no scaling": lambda: fake_images(v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32)])),
    "half": lambda: fake_images(v2.Compose([v2.ToImage(), v2.ToDtype(torch.float16, scale=True)])),
    "no step": lambda: Pictures([torch.rand(3, 8, 8)] * 4, v1.Compose([])),
    "no transform": lambda: [(torch.rand(3, 8, 8), 0)] * 4,
    "floats from the start": lambda: Pictures([a.astype("float32") for a in arrays()], v1.ToTensor()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_images_that_cannot_be_sent_as_bytes(name: str) -> None:
    with pytest.raises(NotApplicableError, match="never bytes"):
        job_with(workload_of(REFUSED[name]()), "uint8_transfer")


OTHERS: dict[str, tuple[Any, Any]] = {
    "filled before": (v1.Compose([v1.ToTensor(), v1.RandomErasing(p=1.0)]), None),
    "filled after": (v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD), v1.RandomErasing(p=1.0)]), "other values"),
    "noise": (v1.Compose([v1.ToTensor(), v1.Lambda(lambda image: image + torch.rand_like(image.float()))]), "never"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_follows_on_the_floats_must_do_the_same_to_bytes(name: str) -> None:
    """Zeros are zeros as bytes, too, unless they are normalised later."""
    transform, reason = OTHERS[name]
    refused = examine(Ways(way_of(workload_of(Named(arrays(), transform)))), (), "uint8_transfer").refused
    assert refused is None if reason is None else reason in (refused or "")


def _is_random(transform: Any) -> bool:
    return any("Random" in type(step).__name__ for step in getattr(transform, "transforms", []))
