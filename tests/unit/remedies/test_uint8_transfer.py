"""Images sent as bytes: a quarter of the size, and the floats that are trained on stay what they were."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from remedy_rig import (
    CPU,
    apart,
    delivered,
    equal,
    fake_images,
    image_folder,
    job_with,
    lines_of,
    pasted_batch,
    situation,
    trained_on,
)
from torch.utils.data import Dataset, Subset
from torchvision import transforms as v1
from torchvision.datasets.vision import StandardTransform
from torchvision.transforms import v2
from workload_rig import workload_of

from loadtune.remedies import REMEDIES, NotApplicableError

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


class BothTransforms(Pictures):
    """Uses what torchvision's base class keeps in `transforms`, as OxfordIIITPet does."""

    def __init__(self, samples: list[Any], transform: Any) -> None:
        super().__init__(samples, transform)
        self.transforms = StandardTransform(transform, None)

    def __getitem__(self, index: int) -> Any:
        return self.transforms(self.samples[index], index)


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


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_bytes_travel_and_the_same_floats_are_trained_on(transform: Callable[[], Any]) -> None:
    plain = workload_of(fake_images(transform()))
    changed = job_with(plain, "uint8_transfer")
    images, before = delivered(changed)[0], delivered(plain)[0]
    assert images.dtype == torch.uint8
    assert 4 * images.nbytes == before.nbytes
    one, other = trained_on(plain), trained_on(changed)
    assert other[0].dtype == torch.float32
    assert apart(one, other) < ROUNDING
    assert apart(one, trained_on(plain, seed=1)) > 0.1 or not _is_random(transform())


@pytest.mark.parametrize("name", ["ToTensor alone", "ToTensor", "ToTensor, Normalize"])
def test_after_to_tensor_not_a_bit_differs(name: str) -> None:
    plain = workload_of(fake_images(TRANSFORMS[name]()))
    assert equal(trained_on(plain), trained_on(job_with(plain, "uint8_transfer")))


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_the_pasted_lines_train_on_the_same_samples(transform: Callable[[], Any]) -> None:
    dataset = fake_images(transform())
    plain = pasted_batch(dataset)
    code = lines_of("uint8_transfer", workload_of(dataset))
    assert apart(plain, pasted(code, dataset)) < ROUNDING


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


@pytest.mark.parametrize("kind", [Pictures, BothTransforms])
def test_pictures_that_are_arrays(kind: type[Pictures]) -> None:
    dataset = kind(arrays(), v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)]))
    job = workload_of(dataset)
    assert equal(trained_on(job), trained_on(job_with(job, "uint8_transfer")))
    plain = pasted_batch(dataset)
    assert equal(plain, pasted(lines_of("uint8_transfer", job), dataset))


def test_the_users_dataset_stays_as_it_was() -> None:
    transform = TRANSFORMS["ToTensor, Normalize"]()
    inner = fake_images(transform)
    dataset = Subset(inner, range(8))
    steps, attributes = list(transform.transforms), copy.copy(vars(inner))
    job = workload_of(dataset)
    before = trained_on(job)
    trained_on(job_with(job, "uint8_transfer"))
    assert vars(inner) == attributes
    assert transform.transforms == steps
    assert dataset.dataset is inner
    assert equal(before, trained_on(job))


def test_on_top_of_tensor_decoding(tmp_path: Any) -> None:
    """Both in the order in which remedies are applied, and both sets of lines pasted one after the other."""
    dataset = image_folder(tmp_path, v1.Compose([v1.Resize((32, 32)), v1.ToTensor(), v1.Normalize(MEAN, STD)]))
    job = workload_of(dataset)
    decoded = job_with(job, "tensor_decoding")
    both = job_with(job, "uint8_transfer", "tensor_decoding")
    assert delivered(both)[0].dtype == torch.uint8
    assert apart(trained_on(decoded), trained_on(both)) < ROUNDING
    exec(lines_of("tensor_decoding", job), {"torch": torch, "dataset": dataset})
    assert apart(trained_on(both), pasted(lines_of("uint8_transfer", decoded), dataset)) < ROUNDING


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "erasing after ToTensor": (
        lambda: fake_images(v1.Compose([v1.ToTensor(), v1.RandomErasing()])),
        "does not end in ToTensor",
    ),
    "no scaling": (
        lambda: fake_images(v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32)])),
        "does not end in ToTensor",
    ),
    "half": (
        lambda: fake_images(v2.Compose([v2.ToImage(), v2.ToDtype(torch.float16, scale=True)])),
        "does not end in ToTensor",
    ),
    "no step": (lambda: Pictures([torch.rand(3, 8, 8)] * 4, v1.Compose([])), "does not end in ToTensor"),
    "no transform": (lambda: [(torch.rand(3, 8, 8), 0)] * 4, "no transform in an attribute"),
    "floats from the start": (
        lambda: Pictures([array.astype("float32") for array in arrays()], v1.ToTensor()),
        "never bytes",
    ),
}


@pytest.mark.parametrize(("dataset", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(dataset: Callable[[], Any], reason: str) -> None:
    with pytest.raises(NotApplicableError, match=reason):
        job_with(workload_of(dataset()), "uint8_transfer")


def test_refused_where_a_batch_is_no_pair() -> None:
    """The pasted lines could not name its images."""

    class Named(Pictures):
        def __getitem__(self, index: int) -> Any:
            return {"image": self.transform(self.samples[index]), "label": index}

    with pytest.raises(NotApplicableError, match="no pair"):
        job_with(workload_of(Named(arrays(), v1.ToTensor())), "uint8_transfer")


def test_offered_for_float_images_on_a_gpu_alone() -> None:
    offer = REMEDIES["uint8_transfer"].offer
    here = situation()
    assert offer(here) == here.config
    assert offer(situation(device=CPU)) is None
    assert offer(situation(facts={"input_dtype": "uint8"})) is None
    assert offer(situation(facts={"input_shape": (16,)})) is None


def _is_random(transform: Any) -> bool:
    return any("Random" in type(step).__name__ for step in getattr(transform, "transforms", []))
