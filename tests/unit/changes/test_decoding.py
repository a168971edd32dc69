"""JPEG files decoded in another way: nearly the same pixels, by the same random state."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from remedy_rig import (
    apart,
    equal,
    image_folder,
    job_with,
    lines_of,
    pasted_batch,
    trained_on,
)
from torch.utils.data import Subset
from torchvision import transforms as v1
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2
from workload_rig import workload_of

from loadtune.changes import REMEDIES, NotApplicableError

pytestmark = pytest.mark.filterwarnings("ignore:.*TorchVision are deprecated:DeprecationWarning")

DECODERS = ("tensor_decoding", "draft_decoding")
RESIZING = 0.06
"""Largest difference of a value between 0 and 1 for pictures as smooth as these."""


def augmented(size: int = 16) -> Any:
    return v1.Compose([v1.RandomResizedCrop(size), v1.RandomHorizontalFlip(), v1.ToTensor()])


def resized(size: int = 16) -> Any:
    return v1.Compose([v1.Resize((size, size)), v1.ToTensor(), v1.Normalize(0.5, 1.0)])


TRANSFORMS = {
    "ToTensor alone": v1.ToTensor,
    "ToTensor first": lambda: v1.Compose([v1.ToTensor(), v1.Resize((16, 16), antialias=True)]),
    "ToTensor between": resized,
    "ToTensor last": lambda: v1.Compose([v1.Resize((16, 16)), v1.ToTensor()]),
    "augmented": augmented,
    "v2": lambda: v2.Compose([v2.ToImage(), v2.Resize((16, 16)), v2.ToDtype(torch.float32, scale=True)]),
}


@pytest.mark.parametrize("name", ["tensor_decoding", "gpu_decoding"])
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_decoded_by_torchvision_the_samples_are_nearly_the_same(
    transform: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # the same calls decode on a CPU
    job = workload_of(image_folder(tmp_path, transform()))
    one, other = trained_on(job), trained_on(job_with(job, name))
    assert one[0].dtype == other[0].dtype
    assert apart(one, other) < RESIZING


def test_at_reduced_size_images_stay_larger_than_what_is_trained_on(tmp_path: Path) -> None:
    job = workload_of(image_folder(tmp_path, resized(32), pixels=256))
    read = job_with(job, "draft_decoding").dataset.loader
    path = job.dataset.samples[0][0]
    assert read(path).size == (64, 64)
    assert default_loader(path).size == (256, 256)


def test_at_reduced_size_samples_are_nearly_the_same_and_the_same_part_of_a_picture_is_compared(tmp_path: Path) -> None:
    """A random crop of a smaller image is another one: a difference of samples would tell nothing of decoding."""
    plain = workload_of(image_folder(tmp_path / "resized", resized()))
    assert 0.0 < apart(trained_on(plain), trained_on(job_with(plain, "draft_decoding"))) < RESIZING
    job = workload_of(image_folder(tmp_path / "augmented", augmented(), pixels=256))
    changed, compared = job_with(job, "draft_decoding"), REMEDIES["draft_decoding"].compared(job)
    assert apart(trained_on(compared), trained_on(changed)) < RESIZING


@pytest.mark.parametrize(
    ("name", "transform"),
    [*((name, make) for name in DECODERS for make in (resized, augmented)), ("tensor_decoding", v1.ToTensor)],
)
def test_the_pasted_lines_decode_as_it_was_measured(name: str, transform: Any, tmp_path: Path) -> None:
    dataset = image_folder(tmp_path, transform())
    job = workload_of(dataset)
    expected = pasted_batch(job_with(job, name).dataset)
    exec(lines_of(name, job), {"torch": torch, "dataset": dataset})
    assert equal(expected, pasted_batch(dataset))


@pytest.mark.parametrize("name", DECODERS)
def test_behind_a_subset_the_lines_reach_the_folder(name: str, tmp_path: Path) -> None:
    dataset = Subset(image_folder(tmp_path, resized()), [4, 2, 0, 1, 3, 5])
    job = workload_of(dataset)
    before, expected = pasted_batch(dataset), pasted_batch(job_with(job, name).dataset)
    other = Subset(dataset.dataset, dataset.indices)
    exec(lines_of(name, job), {"torch": torch, "dataset": dataset})
    assert equal(expected, pasted_batch(dataset))
    assert not equal(before, expected)
    assert equal(before, pasted_batch(other)), "another split of the same folder"


def test_the_pasted_lines_leave_a_shared_transform_as_it_is(tmp_path: Path) -> None:
    """A validation set of arrays or pictures may have the same one."""
    transform = resized()
    dataset = image_folder(tmp_path, transform)
    exec(lines_of("tensor_decoding", workload_of(dataset)), {"torch": torch, "dataset": dataset})
    assert isinstance(transform.transforms[1], v1.ToTensor)


@pytest.mark.parametrize("name", DECODERS)
def test_the_users_folder_stays_as_it_was(name: str, tmp_path: Path) -> None:
    dataset = image_folder(tmp_path, resized())
    attributes = dict(vars(dataset))
    trained_on(job_with(workload_of(dataset), name))
    assert vars(dataset) == attributes
    assert dataset.loader is default_loader


@pytest.mark.parametrize("name", DECODERS)
def test_refused_where_no_folder_of_images_is_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(NotApplicableError, match="no ImageFolder"):
        job_with(workload_of([(torch.rand(3, 8, 8), 0)] * 4), name)
    folder = image_folder(tmp_path, resized())
    folder.loader = lambda path: Image.open(path).convert("RGB")
    with pytest.raises(NotApplicableError, match="no ImageFolder"):
        job_with(workload_of(folder), name)


REFUSED: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "needs a picture": (
        "tensor_decoding",
        v1.Lambda(lambda picture: picture.convert("L")),
        {},
        "does not take tensors",
    ),
    "a crop would show more": ("draft_decoding", v1.RandomCrop(16), {"pixels": 256}, "zoom would change"),
    "png": ("draft_decoding", v1.Resize((16, 16)), {"suffix": "png"}, "no JPEG"),
    "small": ("draft_decoding", v1.Resize((48, 48)), {}, "no JPEG"),
}


@pytest.mark.parametrize(("name", "step", "files", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(name: str, step: Any, files: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(NotApplicableError, match=reason):
        job_with(workload_of(image_folder(tmp_path, v1.Compose([step, v1.ToTensor()]), **files)), name)


def test_png_files_decoded_by_torchvision_are_the_same(tmp_path: Path) -> None:
    job = workload_of(image_folder(tmp_path, v1.ToTensor(), suffix="png"))
    assert equal(trained_on(job), trained_on(job_with(job, "tensor_decoding")))
