"""A stream: an IterableDataset that reads files of samples and divides them among its workers.

Advice on workers:              loadtune exec -- python examples/shards.py
Batch size, workers, precision: loadtune run -- python examples/shards.py
The same by two functions:      loadtune run --loader examples/shards.py:make_loader \
                                    --model examples/shards.py:make_model

`exec` does not change the workers of a stream, because another number changes the order of its samples.
"""

import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

FOLDER = Path(tempfile.gettempdir()) / "loadtune-examples" / "shards"
SHARDS, ROWS = 16, 256


def write_shards() -> None:
    """16 files of 256 rows, written once; the last column is the class."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for number in range(SHARDS):
        path = FOLDER / f"{number:02}.npy"
        if not path.exists():
            values = np.random.default_rng(number).normal(size=(ROWS, 513)).astype(np.float32)
            values[:, -1] = values[:, :8].sum(axis=1) > 0
            np.save(path, values)


class Shards(IterableDataset):
    """Each worker reads every n-th file, in random order."""

    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        worker = get_worker_info()
        paths = self.paths if worker is None else self.paths[worker.id :: worker.num_workers]
        for path in random.sample(paths, len(paths)):
            for row in np.load(path):
                spectrum = np.log1p(np.abs(np.fft.rfft(row[:-1]))).astype(np.float32)
                yield torch.from_numpy(spectrum), int(row[-1])


def make_loader():
    write_shards()
    return DataLoader(Shards(sorted(FOLDER.glob("*.npy"))), batch_size=32, num_workers=1)


def make_model():
    return nn.Sequential(nn.Linear(257, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader, model = make_loader(), make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(int(sys.argv[1]) if sys.argv[1:] else 4):
        for spectra, labels in loader:
            loss = nn.functional.cross_entropy(model(spectra.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
