"""Image classification on a folder of JPEGs, as `torchvision.datasets.ImageFolder` reads them.

Train:  python examples/classification.py
Tune:   loadtune run --loader examples/classification.py:make_loader --model examples/classification.py:make_model
"""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.io import write_jpeg
from torchvision.models import mobilenet_v3_small
from torchvision.transforms import v2

FOLDER = Path(tempfile.gettempdir()) / "loadtune-examples" / "jpegs"
CLASSES, IMAGES_PER_CLASS = 10, 200


def write_images() -> None:
    """2,000 JPEGs of 128 × 160 pixels, written once. `done` marks a complete folder."""
    if (FOLDER / "done").exists():
        return
    for label in range(CLASSES):
        (FOLDER / "train" / f"class-{label}").mkdir(parents=True, exist_ok=True)
        for number in range(IMAGES_PER_CLASS):
            small = torch.randint(0, 256, (3, 16, 20), dtype=torch.uint8)
            image = small.repeat_interleave(8, 1).repeat_interleave(8, 2)
            write_jpeg(image, str(FOLDER / "train" / f"class-{label}" / f"{number}.jpg"))
    (FOLDER / "done").touch()


def make_loader() -> DataLoader:
    write_images()
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(64, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    return DataLoader(ImageFolder(str(FOLDER / "train"), transform), batch_size=32, shuffle=True, num_workers=1)


def make_model() -> nn.Module:
    return mobilenet_v3_small(num_classes=CLASSES)


if __name__ == "__main__":
    model, loss = make_model(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step, (images, labels) in zip(range(5), make_loader(), strict=False):
        optimizer.zero_grad()
        value = loss(model(images), labels)
        value.backward()
        optimizer.step()
        print(f"step {step}: loss {value.item():.3f}")
