"""JPEG files decoded at a reduced size: nearly the same pixels, by the same random state."""

from pathlib import Path
from typing import Any

import pytest
import torch
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
from workload_rig import workload_of

from loadtune.changes import REMEDIES, NotApplicableError

RESIZING = 0.06
"""Largest difference of a value between 0 and 1 for pictures as smooth as these."""


def augmented(size: int = 16) -> Any:
    return v1.Compose([v1.RandomResizedCrop(size), v1.RandomHorizontalFlip(), v1.ToTensor()])


def resized(size: int = 16) -> Any:
    return v1.Compose([v1.Resize((size, size)), v1.ToTensor(), v1.Normalize(0.5, 1.0)])


def test_at_reduced_size_samples_are_nearly_the_same_and_the_same_part_of_a_picture_is_compared(tmp_path: Path) -> None:
    """A random crop of a smaller image is another one: a difference of samples would tell nothing of decoding."""
    plain = workload_of(image_folder(tmp_path / "resized", resized()))
    assert 0.0 < apart(trained_on(plain), trained_on(job_with(plain, "draft_decoding"))) < RESIZING
    job = workload_of(image_folder(tmp_path / "augmented", augmented(), pixels=256))
    changed, compared = job_with(job, "draft_decoding"), REMEDIES["draft_decoding"].compared(job)
    assert apart(trained_on(compared), trained_on(changed)) < RESIZING


@pytest.mark.parametrize("transform", [resized, augmented])
def test_the_pasted_lines_decode_as_it_was_measured(transform: Any, tmp_path: Path) -> None:
    dataset = image_folder(tmp_path, transform())
    job = workload_of(dataset)
    expected = pasted_batch(job_with(job, "draft_decoding").dataset)
    exec(lines_of("draft_decoding", job), {"torch": torch, "dataset": dataset})
    assert equal(expected, pasted_batch(dataset))


def test_behind_a_subset_the_lines_reach_the_folder(tmp_path: Path) -> None:
    dataset = Subset(image_folder(tmp_path, resized()), [4, 2, 0, 1, 3, 5])
    job = workload_of(dataset)
    before, expected = pasted_batch(dataset), pasted_batch(job_with(job, "draft_decoding").dataset)
    other = Subset(dataset.dataset, dataset.indices)
    exec(lines_of("draft_decoding", job), {"torch": torch, "dataset": dataset})
    assert equal(expected, pasted_batch(dataset))
    assert not equal(before, expected)
    assert equal(before, pasted_batch(other)), "another split of the same folder"


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a crop would show more": (v1.RandomCrop(16), {"pixels": 256}, "zoom would change"),
    "png": (v1.Resize((16, 16)), {"suffix": "png"}, "no JPEG"),
    "small": (v1.Resize((48, 48)), {}, "no JPEG"),
}


@pytest.mark.parametrize(("step", "files", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(step: Any, files: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(NotApplicableError, match=reason):
        job_with(workload_of(image_folder(tmp_path, v1.Compose([step, v1.ToTensor()]), **files)), "draft_decoding")
