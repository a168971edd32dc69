"""Regression on a table in memory. A row is fetched by one indexing call, as PyTorch does.

Workers while it trains:        loadtune exec -- python examples/tabular.py
Batch size, workers, precision: loadtune run -- python examples/tabular.py
The same by functions:          loadtune run --loader examples/tabular.py:make_loader \
                                    --model examples/tabular.py:make_model --loss examples/tabular.py:loss \
                                    --optimizer examples/tabular.py:make_optimizer

The last command also tries one indexing call for a whole batch, and prints the code for it if training is faster so.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """8,192 rows of 32 random numbers. The target is the sum of eight squares."""

    def __init__(self):
        self.rows = torch.randn(8192, 32, generator=torch.Generator().manual_seed(0))
        self.targets = self.rows[:, :8].square().sum(dim=1)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], self.targets[index]


def make_loader():
    return DataLoader(Rows(), batch_size=64, shuffle=True)


def make_model():
    return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))


def loss(outputs, targets):
    return nn.functional.mse_loss(outputs[:, 0], targets)


def make_optimizer(parameters):
    return torch.optim.RMSprop(parameters, lr=1e-3)


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader, model = make_loader(), make_model().to(device)
    optimizer = make_optimizer(model.parameters())
    for epoch in range(int(sys.argv[1]) if sys.argv[1:] else 4):
        for rows, targets in loader:
            value = loss(model(rows.to(device)), targets.to(device))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {value.item():.3f}", flush=True)
