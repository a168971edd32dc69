"""Object detection. A batch is a list of images and a list of dicts, made by a collate function. It needs torchvision.

Workers while it trains:        loadtune exec -- python examples/detection.py
Batch size, workers, precision: loadtune run -- python examples/detection.py
The same by functions:          loadtune run --loader examples/detection.py:make_loader \
                                    --model examples/detection.py:make_model --loss examples/detection.py:compute_loss
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.rpn import AnchorGenerator


class Scenes(Dataset):
    """200 images of 64 × 64 pixels, each with one to four bright boxes of one of three classes."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 64, 64, generator=generator) * 0.5
        count = 1 + index % 4
        corners = torch.randint(0, 40, (count, 2), generator=generator)
        boxes = torch.cat([corners, corners + torch.randint(8, 24, (count, 2), generator=generator)], dim=1)
        labels = torch.randint(1, 4, (count,), generator=generator)
        for (left, top, right, bottom), label in zip(boxes.tolist(), labels.tolist(), strict=True):
            image[label - 1, top:bottom, left:right] += 0.5
        return image, {"boxes": boxes.float(), "labels": labels}


def collate(samples):
    images, targets = zip(*samples, strict=True)
    return list(images), list(targets)


def make_loader():
    return DataLoader(Scenes(), batch_size=4, shuffle=True, collate_fn=collate)


def make_model():
    backbone = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=4, padding=1), nn.ReLU()
    )
    backbone.out_channels = 32
    anchors = AnchorGenerator(sizes=((8, 16, 32),), aspect_ratios=((0.5, 1.0, 2.0),))
    return FasterRCNN(
        backbone,
        num_classes=4,
        rpn_anchor_generator=anchors,
        min_size=64,
        max_size=64,
        rpn_post_nms_top_n_train=50,
        box_batch_size_per_image=32,
    )


def compute_loss(model, batch):
    """The model returns a dict of losses while it trains."""
    return sum(model(*batch).values())


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader, model = make_loader(), make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    for epoch in range(int(sys.argv[1]) if sys.argv[1:] else 4):
        for images, targets in loader:
            images = [image.to(device) for image in images]
            targets = [{name: value.to(device) for name, value in target.items()} for target in targets]
            loss = compute_loss(model, (images, targets))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
