"""Regression on a table in memory, read from a CSV file.

The rows of a batch are fetched one by one, as PyTorch does. loadtune also tries one indexing call a batch, and prints
the code for it if it gains.

Train:  python examples/tabular.py
Tune:   loadtune run --loader examples/tabular.py:make_loader --model examples/tabular.py:make_model \
            --loss examples/tabular.py:loss --optimizer examples/tabular.py:make_optimizer
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TABLE = Path(tempfile.gettempdir()) / "loadtune-examples" / "table.csv"
"""Of numbers, with a line of names; what is to be predicted is in the last column."""


def write_table() -> None:
    """8,192 rows of 32 numbers and a sum of eight squares, written once."""
    if TABLE.exists():
        return
    values = np.random.default_rng(0).normal(size=(8192, 33)).astype(np.float32)
    values[:, -1] = np.square(values[:, :8]).sum(axis=1)
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    names = ",".join([*(f"x{number}" for number in range(32)), "y"])
    part = TABLE.with_suffix(".part")
    np.savetxt(part, values, fmt="%.5f", delimiter=",", header=names, comments="")
    part.replace(TABLE)


class Rows(Dataset):
    def __init__(self):
        table = torch.from_numpy(np.loadtxt(TABLE, np.float32, delimiter=",", skiprows=1))
        self.rows, self.targets = table[:, :-1], table[:, -1]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], self.targets[index]


def make_loader():
    write_table()
    return DataLoader(Rows(), batch_size=64, shuffle=True)


def make_model():
    return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))


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
