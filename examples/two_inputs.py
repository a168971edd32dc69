"""A model with two inputs: an image and a row of numbers. A batch is a dict; a function computes the loss from it.

Train:  python examples/two_inputs.py
Tune:   loadtune run --dataset examples/two_inputs.py:Listings --model examples/two_inputs.py:Price \
            --loss examples/two_inputs.py:compute_loss --optimizer adamw
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Listings(Dataset):
    """4,000 samples: an image, twelve numbers and a price."""

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 48, 48, generator=generator)
        numbers = torch.randn(12, generator=generator)
        return {"image": image, "numbers": numbers, "price": image.mean() + numbers[0]}


class Price(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 32)
        )
        self.numbers = nn.Linear(12, 32)
        self.head = nn.Linear(64, 1)

    def forward(self, image, numbers):
        return self.head(torch.cat([self.image(image), self.numbers(numbers)], dim=1).relu())[:, 0]


def compute_loss(model, batch):
    return nn.functional.l1_loss(model(batch["image"], batch["numbers"]), batch["price"])


if __name__ == "__main__":
    model = Price()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in zip(range(5), DataLoader(Listings(), batch_size=32, shuffle=True), strict=False):
        optimizer.zero_grad()
        loss = compute_loss(model, batch)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")
