"""ResNet-50 on a folder of classes, as ImageNet is unpacked, on every GPU of a machine; on the CPU where there is none.

FOLDER holds a folder of images for each class: FOLDER/CLASS/NAME.jpg. Without FOLDER, random images are made.

Workers while it trains:        loadtune exec -- torchrun --nproc-per-node 2 examples/imagenet_ddp.py FOLDER
Batch size, workers, precision: loadtune run -- torchrun --nproc-per-node 2 examples/imagenet_ddp.py FOLDER
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder
from torchvision.io import write_jpeg
from torchvision.models import get_model
from torchvision.transforms import v2

RANDOM_IMAGES = Path(tempfile.gettempdir()) / "loadtune-examples" / "imagenet"


def write_images() -> None:
    """400 JPEGs of 256 × 320 pixels in ten classes, in `RANDOM_IMAGES`."""
    for number in range(400):
        path = RANDOM_IMAGES / f"class-{number % 10}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = torch.randint(0, 256, (3, 32, 40), dtype=torch.uint8)
        write_jpeg(small.repeat_interleave(8, 1).repeat_interleave(8, 2), str(path))


def make_loader(folder: str, batch_size: int, size: int) -> DataLoader:
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(size, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    dataset = ImageFolder(folder, transform)
    sampler = DistributedSampler(dataset)
    return DataLoader(dataset, batch_size, sampler=sampler, num_workers=2, pin_memory=True, drop_last=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", help="of images, a folder for each class; else some are made")
    parser.add_argument("--model", default="resnet50", help="of torchvision")
    parser.add_argument("--batch-size", type=int, default=128, help="of each rank")
    parser.add_argument("--size", type=int, default=224, help="of images, in pixels")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if options.folder is None and dist.get_rank() == 0:
        write_images()
    dist.barrier()
    loader = make_loader(options.folder or str(RANDOM_IMAGES), options.batch_size, options.size)
    model = get_model(options.model, weights=None, num_classes=len(loader.dataset.classes)).to(device)
    model = DistributedDataParallel(model, device_ids=[device] if on_gpu else None)
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), nn.CrossEntropyLoss()
    for epoch in range(options.epochs):
        loader.sampler.set_epoch(epoch)
        began = time.perf_counter()
        for images, labels in loader:
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                value = loss(model(images.to(device, non_blocking=True)), labels.to(device, non_blocking=True))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {value.item():.3f}, {time.perf_counter() - began:.1f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
