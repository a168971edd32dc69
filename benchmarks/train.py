"""Trains a ResNet-50 on a folder of JPEG files, as somebody would write it: nothing of loadtune is in it."""

import argparse
import os
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", type=int, nargs="?", default=4)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--num-workers", type=int, default=4)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    memory_format = torch.channels_last if args.channels_last else torch.contiguous_format
    model = make_model().to(device, memory_format=memory_format)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    dataset, pinned = make_dataset(), device.type == "cuda"
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.num_workers, pin_memory=pinned)
    for epoch in range(args.epochs):
        began = time.perf_counter()
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            images = images.contiguous(memory_format=memory_format)
            with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        last = loss.item()  # waits for the GPU
        seconds = time.perf_counter() - began
        print(f"epoch {epoch}: {seconds:.1f} s, {IMAGES / seconds:,.0f} images/s, loss {last:.2f}", flush=True)


if __name__ == "__main__":
    main()
