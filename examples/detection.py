"""Object detection. The collate function makes a batch of a list of images and a list of dicts.

Train:  python examples/detection.py
Tune:   loadtune run --loader examples/detection.py:make_loader --model examples/detection.py:make_model \
            --loss examples/detection.py:compute_loss
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.rpn import AnchorGenerator


class Scenes(Dataset):
    """2,000 images of 64 × 64 pixels, each with one to four bright boxes of one of three classes."""

    def __len__(self):
        return 2000

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
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    for step, batch in zip(range(5), make_loader(), strict=False):
        optimizer.zero_grad()
        loss = compute_loss(model, batch)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")
