"""Image classification on a folder of JPEGs, read by `torchvision.datasets.ImageFolder`. It needs torchvision.

Workers while it trains:        loadtune exec -- python examples/classification.py
Batch size, workers, precision: loadtune run -- python examples/classification.py --batch-size 32 --num-workers 1
The same by two functions:      loadtune run --loader examples/classification.py:make_loader \
                                    --model examples/classification.py:make_model
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.io import write_jpeg
from torchvision.transforms import v2

FOLDER = Path(tempfile.gettempdir()) / "loadtune-examples" / "photos"
CLASSES, IMAGES_PER_CLASS = 10, 80


def write_images() -> None:
    """800 JPEGs of 128 × 160 pixels, written once. `done` marks a complete folder."""
    if (FOLDER / "done").exists():
        return
    for label in range(CLASSES):
        (FOLDER / "train" / f"class-{label}").mkdir(parents=True, exist_ok=True)
        for number in range(IMAGES_PER_CLASS):
            small = torch.randint(0, 256, (3, 16, 20), dtype=torch.uint8)
            image = small.repeat_interleave(8, 1).repeat_interleave(8, 2)
            write_jpeg(image, str(FOLDER / "train" / f"class-{label}" / f"{number}.jpg"))
    (FOLDER / "done").touch()


def make_loader(batch_size: int = 32, num_workers: int = 1) -> DataLoader:
    write_images()
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(64, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    return DataLoader(ImageFolder(str(FOLDER / "train"), transform), batch_size, shuffle=True, num_workers=num_workers)


def make_model() -> nn.Module:
    layers = [nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--num-workers", type=int, default=1)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader, model = make_loader(options.batch_size, options.num_workers), make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(options.epochs):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
