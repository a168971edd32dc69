"""JPEG files decoded at a reduced size: nearly the same pixels, by the same random state."""

from pathlib import Path
from typing import Any

import pytest
from remedy_rig import equal, image_folder, job_with, lines_of, pasted_batch
from torch.utils.data import Subset
from torchvision import transforms as v1
from workload_rig import workload_of

from loadtune.changes import NotApplicableError
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


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a crop would show more": (v1.RandomCrop(16), {"pixels": 256}, "zoom would change"),
    "png": (v1.Resize((16, 16)), {"suffix": "png"}, "no JPEG"),
    "small": (v1.Resize((48, 48)), {}, "no JPEG"),
}


@pytest.mark.parametrize(("step", "files", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(step: Any, files: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(NotApplicableError, match=reason):
        job_with(workload_of(image_folder(tmp_path, v1.Compose([step, v1.ToTensor()]), **files)), "draft_decoding")
