"""Trains an MLP on the rows of a table, as somebody would write it: nothing of loadtune is in it."""

import os
import sys
import time

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROWS, COLUMNS = int(os.environ.get("ROWS", "200000")), 300
FEATURES = [f"feature {number}" for number in range(COLUMNS)]


class Rows(Dataset):
    def __init__(self, table):
        self.table = table

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        row = self.table.iloc[index]
        return torch.tensor(row[FEATURES].to_numpy(dtype=np.float32)), int(row["label"])


def make_dataset():
    chance = np.random.default_rng(0)
    table = pd.DataFrame(chance.normal(size=(ROWS, COLUMNS)).astype(np.float32), columns=FEATURES)
    table["label"] = chance.integers(0, 10, ROWS)
    return Rows(table)


def make_model():
    return nn.Sequential(nn.Linear(COLUMNS, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))


def main(num_epochs):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    dataset, pinned = make_dataset(), device.type == "cuda"
    loader = DataLoader(dataset, 1024, shuffle=True, num_workers=4, pin_memory=pinned)
    for epoch in range(num_epochs):
        began = time.perf_counter()
        for rows, labels in loader:
            rows, labels = rows.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        print(f"epoch {epoch}: {seconds:.1f} s, {ROWS / seconds:,.0f} rows/s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 4)
