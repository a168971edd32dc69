"""What loading some samples with a change and without it tells: refused and why, bytes, values, lines."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from remedy_rig import delivered, fake_images, image_folder, job_with, way_of
from torch.utils.data import TensorDataset
from torchvision import transforms as v1
from torchvision.transforms import functional
from workload_rig import workload_of

from loadtune.changes import CHANGES, Change, Situation, trial
from loadtune.changes.trial import Ways, examine
from loadtune.changes.way import Way
from loadtune.records.config import TrialConfig
from loadtune.records.loading import Examined
from loadtune.workload.build import Workload

MEAN = (0.485, 0.456, 0.406)
SAME = "are equal to the last bit"
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "num_examined", lambda sample_s: 8)


def images() -> Workload:
    transform = v1.Compose([v1.RandomCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, MEAN)])
    return workload_of(fake_images(transform))


def examined(job: Workload, name: str, *before: str) -> Examined:
    seen = examine(Ways(way_of(job)), before, name)
    assert seen.name == name
    return seen


def text(seen: Examined) -> str:
    assert seen.refused is None
    return seen.values.text


def test_fewer_bytes_are_sent_of_an_augmented_dataset_too() -> None:
    """Both are loaded by the same random state: no sample differs."""
    seen = examined(images(), "uint8_transfer")
    assert seen.refused is None
    label_bytes, pixels = 8, 3 * 24 * 24
    assert seen.before.sample_bytes == 4 * pixels + label_bytes
    assert seen.after.sample_bytes == pixels + label_bytes
    assert SAME in text(seen)
    assert "s.float()" in seen.code
    for loading in (seen.before, seen.after):
        assert 0 < loading.sample_cpu_s <= loading.sample_s


class Broken(Change):
    """Fails in one of its methods."""

    name = title = "broken"

    def __init__(self, method: str) -> None:
        self.method = method

    def offer(self, situation: Situation) -> TrialConfig | None:
        return situation.config

    def apply(self, way: Way) -> Way:
        if self.method == "apply":
            raise RuntimeError("no such file\nand more")
        return way

    def own_code(self, before: Way, after: Way, *, is_whole: bool = True) -> str:
        return str(1 / 0) if self.method == "own_code" else ""


@pytest.mark.parametrize(("method", "reason"), [("apply", "RuntimeError: no such file"), ("own_code", "ZeroDivision")])
def test_a_remedy_that_fails_is_refused_and_ends_nothing(
    method: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHANGES, "broken", Broken(method))
    broken, other = (examined(images(), name) for name in ("broken", "uint8_transfer"))
    assert broken.refused.startswith(f"it could not be applied: {reason}")
    assert "and more" not in broken.refused
    assert other.refused is None


class Spoiling(Broken):
    """Loads something else."""

    def __init__(self, spoil: Any) -> None:
        super().__init__("none")
        self.spoil = spoil

    def apply(self, way: Way) -> Way:
        inputs, targets = way.loader.dataset.tensors
        return way.with_parts(dataset=TensorDataset(self.spoil(inputs.clone()), targets))


def spoiled(spoil: Any, inputs: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Examined:
    monkeypatch.setitem(CHANGES, "broken", Spoiling(spoil))
    return examined(workload_of(TensorDataset(inputs, torch.arange(len(inputs)))), "broken")


SPOILED: list[tuple[Any, str]] = [
    (torch.Tensor.double, "float64"),
    (lambda inputs: inputs[:, :2], "(1, 2)"),
    *((lambda inputs, value=value: inputs * torch.tensor([1.0, value, 1.0]), "finite") for value in (NAN, INF)),
]


@pytest.mark.parametrize(("spoil", "reason"), SPOILED)
def test_another_type_or_shape_or_values_no_longer_finite_are_refused(
    spoil: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reason in (spoiled(spoil, torch.ones(4, 3), monkeypatch).refused or "")


def test_the_difference_is_the_largest_and_the_mean_of_all_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_column(inputs: torch.Tensor) -> torch.Tensor:
        inputs[:, 0] += 0.5
        return inputs

    wide = torch.tensor([[-30.0, 0.0, 30.0]] * 4)
    assert text(spoiled(first_column, wide, monkeypatch)).startswith(
        "values of 4 samples differ by at most 0.5, on average by 0.17;"
    )
    assert "samples would be other ones" in (spoiled(first_column, wide / 30, monkeypatch).refused or "")


def test_integers_that_change_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spoiled(lambda inputs: inputs + 1, torch.arange(12).view(4, 3), monkeypatch)
    assert "integers" in (seen.refused or "")


@pytest.mark.parametrize("kept", ["uint8_transfer", "opencv_threads"])
def test_two_remedies_are_applied_in_one_order_whichever_was_kept_first(
    kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = SimpleNamespace(getNumThreads=lambda: 8, setNumThreads=lambda num: None)
    monkeypatch.setitem(sys.modules, "cv2", threads)
    names = ("uint8_transfer", "opencv_threads")
    (other,) = set(names) - {kept}
    assert SAME in text(examined(images(), other, kept))
    both = job_with(images(), *names)
    assert delivered(both)[0].dtype == torch.uint8
    assert both.loader.worker_init_fn is not None


@pytest.mark.parametrize("kept", [(), ("uint8_transfer",)])
def test_a_reduced_image_is_compared_with_the_same_part_of_the_whole_one(kept: tuple[str, ...], tmp_path: Path) -> None:
    """A random crop of a smaller image is another one: a difference of samples would tell nothing of decoding."""
    transform = v1.Compose([v1.RandomResizedCrop(16), v1.RandomHorizontalFlip(), v1.ToTensor()])
    seen = examined(workload_of(image_folder(tmp_path, transform, pixels=256)), "draft_decoding", *kept)
    (largest,) = re.findall(r"differ by at most (\S+), on", text(seen))
    assert 0.0 < float(largest) < 0.06, "values are between 0 and 1"


def test_a_dataset_that_fails_with_a_change_is_not_called_wrong(tmp_path: Path) -> None:
    folder = image_folder(tmp_path, lambda image: functional.to_tensor(image)[:, : image.size[0]])
    refused = examined(workload_of(folder), "tensor_decoding").refused or ""
    assert "TypeError" in refused
    assert "Correct the dataset" not in refused
