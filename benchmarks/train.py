"""Trains a ResNet-50 on a folder of JPEG files, as somebody would write it: nothing of loadtune is in it."""

import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Subset
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

FOLDER, IMAGES = os.environ.get("PHOTOS", "photos"), int(os.environ.get("IMAGES", "25600"))


def make_dataset():
    augment = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return Subset(ImageFolder(FOLDER, transforms.Compose([*augment, normalize])), range(IMAGES))


def make_model():
    return models.resnet50()


def main(num_epochs):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    dataset, pinned = make_dataset(), device.type == "cuda"
    loader = DataLoader(dataset, 256, shuffle=True, num_workers=4, pin_memory=pinned)
    for epoch in range(num_epochs):
        began = time.perf_counter()
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds = time.perf_counter() - began
        print(f"epoch {epoch}: {seconds:.1f} s, {IMAGES / seconds:,.0f} images/s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 4)
