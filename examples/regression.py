"""Regression on rows in memory. The dataset reads all rows of a batch at once, with `__getitems__`.

Train:  python examples/regression.py
Tune:   loadtune run --loader examples/regression.py:make_loader --model examples/regression.py:make_model \
            --loss examples/regression.py:loss --optimizer examples/regression.py:make_optimizer
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """8,192 rows of 64 numbers, and what is to be predicted from them."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randn(8192, 64, generator=generator)
        self.targets = self.rows[:, :8].square().sum(dim=1)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], self.targets[index]

    def __getitems__(self, indices):
        return list(zip(self.rows[indices], self.targets[indices], strict=True))


def make_loader():
    return DataLoader(Rows(), batch_size=64, shuffle=True)


def make_model():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))


def loss(outputs, targets):
    return nn.functional.mse_loss(outputs[:, 0], targets)


def make_optimizer(parameters):
    return torch.optim.RMSprop(parameters, lr=1e-3)


if __name__ == "__main__":
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    for step, (rows, targets) in zip(range(5), make_loader(), strict=False):
        optimizer.zero_grad()
        value = loss(model(rows), targets)
        value.backward()
        optimizer.step()
        print(f"step {step}: loss {value.item():.3f}")
