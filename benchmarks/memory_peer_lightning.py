"""Lightning's batch-size finder on one cell: a LightningModule with a DataLoader, nothing of it patched.

The samples are ready in memory, because what is looked for does not depend on them, and the other searches are given
batches on the device.

A module of its own because Lightning's base class exists only where Lightning is installed.
"""

import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import memory_cells
import torch
from memory_grid import Cell
from memory_train import loss_of, make_optimizer
from torch.utils.data import DataLoader, Dataset

# More than any size that fits: the finder takes the dataset's length for a bound.
LENGTH = 100_000
NUM_READY = 8
STEPS = 3
Mode = Literal["power", "binsearch"]
PRECISION = {"fp32": "32-true", "bf16": "bf16-mixed"}


@dataclass(frozen=True, slots=True)
class Searched:
    """What it found, and the sizes it trained on the way."""

    found: int | None
    seconds: float
    tried: list[int]
    fitted: list[int]
    remark: str
    advised_workers: int
    """What its warning about a loader with few workers names for this machine."""


class Ready(Dataset[Any]):
    """The first few samples of a dataset, again and again."""

    def __init__(self, dataset: Any) -> None:
        self._samples = [dataset[index] for index in range(NUM_READY)]

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return self._samples[index % NUM_READY]


def _import() -> Any:
    try:
        return import_module("lightning.pytorch")
    except ModuleNotFoundError:
        return import_module("pytorch_lightning")


def _module(base: type, cell: Cell, data: Dataset[Any]) -> Any:
    class Module(base):  # type: ignore[misc,valid-type]
        """The cell's model and step, in Lightning's terms; counts the steps begun and ended at each size."""

        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 2
            self.model = getattr(memory_cells, cell.model)()
            if cell.channels_last:
                self.model = self.model.to(memory_format=torch.channels_last)
            self.begun: Counter[int] = Counter()
            self.ended: Counter[int] = Counter()

        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(data, batch_size=self.batch_size, shuffle=True, drop_last=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(cell, self.model)

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            inputs, targets = batch
            if cell.channels_last:
                inputs = inputs.to(memory_format=torch.channels_last)
            return inputs, targets

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            inputs, targets = batch
            self.begun[len(inputs)] += 1
            return loss_of(self.model(inputs), targets)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.ended[len(batch[0])] += 1

    return Module()


def search(cell: Cell, device: torch.device, mode: Mode, *, own_data: bool) -> Searched:
    """Run the finder, all but its mode at its defaults; with `own_data` on the cell's dataset as it is.

    Raises ModuleNotFoundError where Lightning is not installed.
    """
    pl = _import()
    tuner = import_module(f"{pl.__name__}.tuner")
    torch.manual_seed(0)
    data = getattr(memory_cells, cell.dataset)()
    module = _module(pl.LightningModule, cell, data if own_data else Ready(data))
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="gpu" if device.type == "cuda" else "cpu",
            devices=1,
            precision=PRECISION[cell.precision],
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        started = time.monotonic()
        found = tuner.Tuner(trainer).scale_batch_size(module, mode=mode)
        seconds = time.monotonic() - started
    fitted = [size for size, begun in module.begun.items() if module.ended[size] == begun and begun >= STEPS]
    samples = "its own loader, no workers" if own_data else "samples ready in memory"
    remark = f"{pl.__name__} {pl.__version__}, {mode}, {samples}"
    advised = import_module(f"{pl.__name__}.utilities").suggested_max_num_workers(1)
    return Searched(found, seconds, list(module.begun), fitted, remark, advised)
