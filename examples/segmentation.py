"""Segmentation: a class for each pixel. Cross entropy, the default loss, takes such targets.

Train:  python examples/segmentation.py
Tune:   loadtune run --loader examples/segmentation.py:make_loader --model examples/segmentation.py:make_model
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2


class Discs(Dataset):
    """2,000 images of 96 × 96 pixels with a disc, and masks of three classes."""

    def __init__(self):
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomCrop(64), v2.GaussianBlur(3)])

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 96, 96, generator=generator)
        x, y, radius = (torch.rand(3, generator=generator) * torch.tensor([96, 96, 24]) + 8).tolist()
        across, down = torch.arange(96) - x, torch.arange(96)[:, None] - y
        distance = (across**2 + down**2).sqrt()
        mask = torch.where(distance < radius, 1 + index % 2, 0)
        image[:, distance < radius] *= 0.5
        mask[(distance - radius).abs() < 1] = -100  # the loss ignores the edge
        return self.transform(tv_tensors.Image(image), tv_tensors.Mask(mask))


def make_loader():
    return DataLoader(Discs(), batch_size=16, shuffle=True, num_workers=1)


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 2, stride=2),
    )


if __name__ == "__main__":
    model, loss = make_model(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (images, masks) in zip(range(5), make_loader(), strict=False):
        optimizer.zero_grad()
        value = loss(model(images), masks)
        value.backward()
        optimizer.step()
        print(f"step {step}: loss {value.item():.3f}")
