"""Workloads that differ in what bounds them, at full size and small enough for a CPU of two cores.

Resolved by the training through their import path. How large they are comes by environment variables, since a factory
takes no arguments: ``WORKLOAD_SMALL`` and ``WORKLOAD_JPEGS``, which `spec_of` sets.
"""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from loadtune.host.machine import read_host
from loadtune.records.config import WorkloadSpec

SMALL, JPEGS = "WORKLOAD_SMALL", "WORKLOAD_JPEGS"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_CNN = "workloads:small_cnn"


def _own(dataset: str, model: str, small_model: str, optimizer: str = "sgd") -> tuple[WorkloadSpec, WorkloadSpec]:
    """With a dataset of this module: at full size, and small."""
    full = WorkloadSpec(dataset=f"workloads:{dataset}", model=model, optimizer=optimizer)
    return full, replace(full, model=small_model, optimizer="sgd")


SPECS = {
    "fake-resnet50": (
        WorkloadSpec(dataset="FakeData", model="resnet50"),
        WorkloadSpec(dataset="FakeData", model=_CNN, image_size=64, num_classes=10),
    ),
    "jpeg-vit": _own("jpegs", "vit_b_16", _CNN, "adamw"),
    "jpeg-resnet50": _own("jpegs", "resnet50", _CNN),
    "jpeg-bytes-resnet50": _own("jpeg_bytes", "workloads:resnet50_of_bytes", "workloads:small_cnn_of_bytes"),
    "large-jpeg-resnet50": _own("jpegs", "resnet50", _CNN),
    "erased-resnet50": _own("erased", "resnet50", _CNN),
    "memory-mlp": _own("vectors", "workloads:mlp", "workloads:mlp"),
    "rows": _own("rows", "workloads:small_mlp", "workloads:small_mlp"),
    "sleeping": _own("sleepers", "workloads:mlp", "workloads:mlp"),
    "filtered": _own("filtered", _CNN, _CNN),
    "opencv": _own("blurred", _CNN, _CNN),
    "compute": _own("pixels", "convnext_large", "resnet18", "adamw"),
}
"""By name: at full size, and small."""

PHOTOS = {
    **dict.fromkeys(("jpeg-vit", "jpeg-resnet50", "jpeg-bytes-resnet50"), ((600, 100_000, 500), (64, 256, 160))),
    "large-jpeg-resnet50": ((200, 400, 2_000), (64, 64, 640)),
}
"""Of those that read JPEG files: (photographs, files that are hard links to them, pixels of the longer side), at full
size and small."""


def spec_of(name: str, *, small: bool, folder: Path | None) -> WorkloadSpec:
    """The workload's names; sets what its factories read, for this process and those it starts."""
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, str(Path(here).parent), os.environ.get("PYTHONPATH", "")])
    os.environ[SMALL] = "1" if small else ""
    if name in PHOTOS:
        num_photos, num_files, side = PHOTOS[name][small]
        os.environ[JPEGS] = str((folder or Path(f"/tmp/loadtune-jpegs-{side}")).absolute())
        make_jpegs(Path(os.environ[JPEGS]), num_photos, num_files, side)
    return SPECS[name][small]


def make_jpegs(folder: Path, num_photos: int, num_files: int, side: int) -> None:
    """Photographs of noise on a slope, 5:4, about as hard to decode as photographs are; those there stay."""
    photos, files = folder / "photos", folder / "all" / "one class"
    photos.mkdir(parents=True, exist_ok=True)
    files.mkdir(parents=True, exist_ok=True)
    made = [photos / f"{number:06}.jpg" for number in range(num_photos)]
    if missing := [path for path in made if not path.exists()]:
        with ProcessPoolExecutor(read_host().num_usable_cores, get_context("spawn")) as pool:
            list(pool.map(partial(_make_jpeg, side=side), missing, chunksize=32))
    for number in range(num_files):
        if not (link := files / f"{number:06}.jpg").exists():
            link.hardlink_to(made[number % num_photos])


def _make_jpeg(path: Path, side: int) -> None:
    import numpy as np
    from PIL import Image

    height = 4 * side // 5
    slope = np.linspace(0, 200, height)[:, None, None] + np.linspace(0, 40, side)[None, :, None]
    noise = np.random.default_rng(int(path.stem)).normal(0, 12, (height, side, 3))
    Image.fromarray((slope + noise).clip(0, 255).astype("uint8")).save(path, quality=90)


def jpegs() -> Any:
    """Files decoded, augmented and normalized as ImageNet's usually are."""
    from torchvision import transforms

    return image_folder(_augmented(transforms.ToTensor(), transforms.Normalize(MEAN, STD)))


def jpeg_bytes() -> Any:
    """The same as uint8 tensors; the model makes floats of them."""
    from torchvision import transforms

    return image_folder(_augmented(transforms.PILToTensor()))


def _augmented(*ending: Any) -> Any:
    from torchvision import transforms

    side = 64 if os.environ[SMALL] else 224
    return transforms.Compose([transforms.RandomResizedCrop(side), transforms.RandomHorizontalFlip(), *ending])


def image_folder(transform: Any, **reading: Any) -> Any:
    """Of the files that `spec_of` made."""
    from torchvision.datasets import ImageFolder

    return ImageFolder(str(Path(os.environ[JPEGS]) / "all"), transform, **reading)


def erased() -> Any:
    """Floats that the dataset changes: they cannot be sent as bytes."""
    from torchvision import transforms
    from torchvision.datasets import FakeData

    side = 64 if os.environ[SMALL] else 224
    return FakeData(
        100_000, (3, side, side), transform=transforms.Compose([transforms.ToTensor(), transforms.RandomErasing()])
    )


def vectors() -> Any:
    """In memory already: workers only add the way between processes."""
    return _tensors((256,), 100_000)


def rows() -> Any:
    """A table in memory, read row by row."""
    return _tensors((64,), 100_000)


def sleepers() -> Any:
    """Each sample waits for 4 ms, one in a hundred for 80 ms, as for a network."""
    import time

    from torch.utils.data import Dataset

    rows = vectors()

    class Sleepers(Dataset[Any]):
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.08 if index % 100 == 0 else 0.004)
            return rows[index]

    return Sleepers()


def filtered() -> Any:
    """Images from a transform of large PyTorch operations, which several threads can share."""
    return _Mapped(_tensors((3, 64, 64), 2_000), _filter)


def blurred() -> Any:
    """Images from OpenCV, which starts as many threads as there are cores in every worker."""
    return _Mapped(_tensors((3, 64, 64), 2_000), _blur)


def _filter(image: Any) -> Any:
    from torch.nn import functional

    large = functional.interpolate(image[None], size=(512, 512), mode="bilinear")
    return functional.avg_pool2d(large, 9, stride=1)[0, :, :64, :64].contiguous()


def _blur(image: Any) -> Any:
    import cv2
    import torch

    large = cv2.resize(image.permute(1, 2, 0).numpy(), (512, 512))
    return torch.from_numpy(cv2.GaussianBlur(large, (9, 9), 2.0)[:64, :64].copy()).permute(2, 0, 1)


class _Mapped:
    """Samples of a dataset with a transform of the image."""

    def __init__(self, samples: Any, transform: Callable[[Any], Any]) -> None:
        self.samples, self.transform = samples, transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        image, label = self.samples[index]
        return self.transform(image), label


def pixels() -> Any:
    """Images in memory, as light a loader as can be."""
    return _tensors((3, 64, 64), 2_000) if os.environ[SMALL] else _tensors((3, 224, 224), 4_000)


def _tensors(shape: tuple[int, ...], count: int) -> Any:
    import torch
    from torch.utils.data import TensorDataset

    chance = torch.Generator().manual_seed(0)
    return TensorDataset(torch.rand(count, *shape, generator=chance), torch.arange(count) % 10)


def mlp() -> Any:
    from torch import nn

    width = 256 if os.environ[SMALL] else 4096
    return nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def small_mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def small_cnn() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10)
    )


def resnet50_of_bytes() -> Any:
    from torchvision.models import resnet50

    return _of_bytes(resnet50())


def small_cnn_of_bytes() -> Any:
    return _of_bytes(small_cnn())


def _of_bytes(model: Any) -> Any:
    """`model`, with bytes made to normalized floats before it."""
    import torch
    from torch import nn

    class OfBytes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.register_buffer("mean", 255 * torch.tensor(MEAN)[:, None, None])
            self.register_buffer("std", 255 * torch.tensor(STD)[:, None, None])

        def forward(self, images: Any) -> Any:
            return self.model((images - self.mean) / self.std)

    return OfBytes()
