"""JPEG files decoded at a reduced size: nearly the same pixels, by the same random state."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from remedy_rig import equal, image_folder, job_with, lines_of, pasted_batch, way_of
from torch.utils.data import Dataset, Subset
from torchvision import transforms as v1
from workload_rig import workload_of

from loadtune.changes.trial import Ways, examine
from loadtune.records.loading import NotApplicableError
from loadtune.workload.datasets import training_transform


def resized() -> Any:
    return v1.Compose([v1.Resize((16, 16)), v1.ToTensor(), v1.Normalize(0.5, 1.0)])


@pytest.mark.parametrize("behind_subset", [False, True])
@pytest.mark.parametrize("transform", [resized(), training_transform(16)])
def test_the_pasted_lines_decode_as_it_was_measured(transform: Any, behind_subset: bool, tmp_path: Path) -> None:
    folder = image_folder(tmp_path, transform)
    dataset, other = (Subset(folder, [4, 2, 0, 1, 3, 5]) for _ in range(2))
    job = workload_of(dataset if behind_subset else folder)
    before, expected = pasted_batch(job.dataset), pasted_batch(job_with(job, "draft_decoding").dataset)
    exec(lines_of("draft_decoding", job), {"dataset": job.dataset})
    assert equal(expected, pasted_batch(job.dataset))
    assert not equal(before, expected)
    assert not behind_subset or equal(before, pasted_batch(other)), "another split of the same folder"


class Plain:
    """What a DataLoader takes, too: no `Dataset` of torch."""

    def __init__(self, folder: Any) -> None:
        self.samples, self.transform = folder.samples, folder.transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, target = self.samples[index]
        return self.transform(Image.open(path).convert("RGB")), target


def test_transforms_are_found_in_datasets_of_any_class(tmp_path: Path) -> None:
    dataset = Plain(image_folder(tmp_path, resized()))
    job = workload_of(dataset)
    assert not equal(pasted_batch(dataset), pasted_batch(job_with(job, "draft_decoding").dataset))
    assert "\ndataset.transform = v2.Compose" in lines_of("tensor_decoding", job)


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a crop would show more": (v1.RandomCrop(16), {"pixels": 256}, "zoom would change"),
    "png": (v1.Resize((16, 16)), {"suffix": "png"}, "no JPEG"),
    "small": (v1.Resize((48, 48)), {}, "no JPEG"),
}


@pytest.mark.parametrize(("step", "files", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(step: Any, files: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(NotApplicableError, match=reason):
        job_with(workload_of(image_folder(tmp_path, v1.Compose([step, v1.ToTensor()]), **files)), "draft_decoding")


class Boxes(Dataset[Any]):
    """Looks at the size of an image, or takes a part of it, before it is transformed."""

    def __init__(self, folder: Any, *, crops: bool) -> None:
        self.paths, self.transform, self.crops = [path for path, _ in folder.samples], folder.transform, crops

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        box = torch.tensor([100.0]) / image.size[0]
        image = image.crop((30, 20, 60, 50)) if self.crops else image
        return self.transform(image), torch.zeros(1) if self.crops else box


@pytest.mark.parametrize("crops", [False, True])
def test_a_dataset_that_goes_by_pixels_of_the_whole_image_is_refused(crops: bool, tmp_path: Path) -> None:
    folder = image_folder(tmp_path, resized(), pixels=256)
    assert examine(Ways(way_of(workload_of(folder))), (), "draft_decoding").refused is None
    seen = examine(Ways(way_of(workload_of(Boxes(folder, crops=crops)))), (), "draft_decoding")
    assert "samples would be other ones" in (seen.refused or "")
