"""Small jobs whose code is changed, and batches as they are trained on, with a change and without it."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fakes import Surface, fake_facts
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import FakeData, ImageFolder

from loadtune.changes import CHANGES, Situation, in_order
from loadtune.changes.trial import Ways
from loadtune.changes.way import Way
from loadtune.records.config import LoaderConfig, Recipe, TrialConfig, WorkloadSpec
from loadtune.records.facts import Device
from loadtune.records.loading import Examined
from loadtune.workload.batches import Batch
from loadtune.workload.build import Workload
from loadtune.workload.loaders import LoaderParts

CPU = Device(kind="cpu", name="cpu")
GPU = Device(kind="cuda", name="gpu", uuid="GPU-0")

LOADER = LoaderConfig(batch_size=4, num_workers=2, pin_memory=True)


def situation(
    *,
    loader: LoaderConfig = LOADER,
    recipe: Recipe | None = None,
    remedies: tuple[str, ...] = (),
    facts: dict[str, Any] | None = None,
    **given: Any,
) -> Situation:
    """Of images on a GPU, with two workers, pinned, in fp16. ``given``: fields in place of the plain ones."""
    plain: dict[str, Any] = {"spec": WorkloadSpec(), "device": GPU}
    config = TrialConfig(loader=loader, recipe=recipe or Recipe(precision="fp16"), remedies=remedies)
    return Situation(config=config, facts=replace(fake_facts(Surface()), **(facts or {})), **(plain | given))


def fake_images(transform: Any, num: int = 12) -> Any:
    """Random pictures of 32×32 pixels; what is random in the transform goes by the global state."""
    return FakeData(size=num, image_size=(3, 32, 32), num_classes=3, transform=transform)


def image_folder(root: Path, transform: Any, *, suffix: str = "jpg", pixels: int = 96, num: int = 6) -> Any:
    """Files with smooth pictures, as photographs are, of two classes."""
    y, x = np.mgrid[0:pixels, 0:pixels] / pixels
    for at in range(num):
        waves = [np.sin(6 * x + at), np.cos(5 * y - at), np.sin(4 * (x + y))]
        folder = root / f"class{at % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels_of = (127 + 120 * np.stack(waves, axis=-1)).astype(np.uint8)
        Image.fromarray(pixels_of).save(folder / f"{at}.{suffix}")
    return ImageFolder(str(root), transform)


class Table(Dataset[Any]):
    """Rows of numbers, which can be indexed with a list too."""

    def __init__(self, num: int = 40) -> None:
        self.inputs = torch.arange(3.0 * num).reshape(num, 3)
        self.targets = torch.arange(num) % 3

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: Any) -> Any:
        return self.inputs[index], self.targets[index]


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def delivered(job: Workload, indices: Sequence[int] = range(6), *, seed: int = 0) -> Batch:
    """A batch of these samples as this job's loader delivers it, with the global random state of this seed."""
    loader = job.loader.make(LoaderConfig(batch_size=len(indices)), sampler=list(indices))
    seed_all(seed)
    (batch,) = loader
    return batch


def trained_on(job: Workload, indices: Sequence[int] = range(6), *, seed: int = 0) -> Batch:
    """The same, after what the job does with it on the device."""
    batch = delivered(job, indices, seed=seed)
    for change in job.on_device:
        batch = change(batch)
    return batch


def pasted_batch(dataset: Any, *, seed: int = 0, num: int = 6, **arguments: Any) -> Batch:
    """What a user's own loader over this dataset delivers first."""
    loader = DataLoader(dataset, batch_size=num, **arguments)
    seed_all(seed)
    return next(iter(loader))


def way_of(job: Workload, *, on_gpu: bool = True) -> Way:
    parts: dict[str, Any] = {"loader": job.loader, "indices": job.epoch.indices, "on_device": job.on_device}
    return Way(**parts, on_gpu=on_gpu, has_loader="loader" in job.own)


def lines_of(name: str, job: Workload, *before: str, **given: Any) -> str:
    """The lines to paste for this change on top of others; what they leave to the user (``...``) is left out."""
    change, ways = CHANGES[name], Ways(way_of(job))
    seen = Examined(name=name, code=change.own_code(ways.way(in_order(before)), ways.way(in_order((*before, name)))))
    return change.code(situation(**given), seen).replace(", ...)", ")")


def job_with(job: Workload, *names: str) -> Workload:
    """With these changes, in the order in which they are applied."""
    way = Ways(way_of(job)).way(in_order(names))
    return replace(job, loader=way.loader, on_device=way.on_device)


def parts_of(loader: "DataLoader[Any]") -> dict[str, Any]:
    """For `workload_of`: a loader of the user's own."""
    return {"loader": LoaderParts.of(loader), "own": {"loader"}}


def equal(one: Batch, other: Batch) -> bool:
    """Whether two batches are the same pair of tensors, to the last bit."""
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(one, other, strict=True))


def apart(one: Batch, other: Batch) -> float:
    """Largest difference of two batches' inputs; their targets are equal."""
    assert one[1].dtype == other[1].dtype
    assert torch.equal(one[1], other[1])
    return float((one[0].double() - other[0].double()).abs().max())
