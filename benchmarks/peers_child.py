"""One piece of work of `peers.py` in a fresh process: asks a finder of batch sizes, or trains by an answer.

The neutral loop trains as a plain PyTorch script does, and counts samples ÷ wall seconds. Nothing of loadtune is in it,
and it is the same for every tool. The model is warm before the loader begins, since a queue that fills during a slow
first step would be counted as throughput later; then a queue's length of batches goes by unmeasured, and several of
them are timed.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from typing import Any, Literal

import msgspec
import torch
from cells import Cell, Training, cell_named, device_of, loss_of, make_optimizer
from processes import Order, Say, serve
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.transforms import v2
from workloads import MEAN, STD

WARM_STEPS = 8
"""GradScaler skips the optimizer in its first steps, and the libraries choose their kernels in the first."""

QUEUES, WARM_S = 3, 5.0
"""A queue of batches goes by unmeasured, and these seconds, or a quarter of what is timed where that is less."""

FINDER_STEPS = 3
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
LIGHTNING_PRECISION = {"fp32": "32-true", "bf16": "bf16-mixed"}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How a tool says to train. Its defaults are PyTorch's: what a tool does not decide stays there."""

    batch_size: int
    num_workers: int = 0
    pin_memory: bool = False
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    in_order: bool = True
    non_blocking: bool = False
    """Of the copies to the device."""
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    channels_last: bool = False
    fused: bool = False
    compile: bool = False
    uint8: bool = False
    """Workers send bytes, floats are made on the device."""

    @property
    def key(self) -> str:
        """The same for the same configuration: those are timed once."""
        return msgspec.json.encode(self).decode()

    @property
    def num_prefetched(self) -> int:
        """Batches asked for ahead."""
        return max(1, self.num_workers * (self.prefetch_factor or 2))

    def loader_kwargs(self) -> dict[str, Any]:
        """What ``DataLoader(dataset, **kwargs)`` takes."""
        kwargs: dict[str, Any] = {name: getattr(self, name) for name in ("batch_size", "num_workers", "pin_memory")}
        if self.num_workers > 0:
            kwargs["persistent_workers"] = self.persistent_workers
            kwargs |= {} if self.prefetch_factor is None else {"prefetch_factor": self.prefetch_factor}
            kwargs |= {} if self.in_order else {"in_order": False}
        return kwargs


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """One fresh process that trained by one answer."""

    samples_per_s: float | None = None
    num_batches: int = 0
    """Timed."""
    num_queues: float | None = None
    """The same in lengths of the prefetch queue."""
    seconds: float = 0.0
    drift: float | None = None
    """Rate of the first half over that of the second. Above 1: a queue that still ran down."""
    error: str | None = None


class Script:
    """Model, optimizer and step, as the answer has them."""

    def __init__(self, cell: Cell, answer: Answer, device: torch.device) -> None:
        self.device, self.answer, self.normalized = device, answer, cell.normalized
        self.format = torch.channels_last if answer.channels_last else torch.contiguous_format
        model = cell.make_model().to(device, memory_format=self.format).train()
        self.optimizer = make_optimizer(replace(cell, fused=answer.fused), model)
        self.model = torch.compile(model) if answer.compile else model
        self.scaler = torch.amp.GradScaler(device.type, enabled=answer.precision == "fp16")
        if answer.fused and answer.precision == "fp16":  # the scaler may skip the first step, which would set it
            for parameter in model.parameters():
                self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def to_floats(self, images: torch.Tensor) -> torch.Tensor:
        """Of bytes, as ``ToTensor`` and ``Normalize`` make them."""
        floats = images.float().div_(255)
        return v2.functional.normalize(floats, MEAN, STD, inplace=True) if self.normalized else floats

    def on_device(self, batch: Any) -> list[torch.Tensor]:
        return [part.to(self.device, non_blocking=self.answer.non_blocking) for part in batch]

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        if self.answer.uint8:
            inputs = self.to_floats(inputs)
        inputs = inputs.to(memory_format=self.format)
        dtype = DTYPES.get(self.answer.precision)
        with torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None):
            loss = loss_of(self.model(inputs), targets)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def run(self, batches: Iterator[Any], num_batches: int, seconds: float, max_s: float) -> list[float]:
        """Train that many batches and seconds, in whole rounds of the workers; the device is waited for at the ends
        alone. Returns when it began and when each step had been asked for, the last one when it was done."""
        self.synchronize()
        ends = [time.perf_counter()]
        a_round = max(1, self.answer.num_workers)
        while True:
            self.step(*next(batches))
            ends.append(time.perf_counter())
            num, elapsed = len(ends) - 1, ends[-1] - ends[0]
            if num % a_round == 0 and ((num >= num_batches and elapsed >= seconds) or elapsed >= max_s):
                break
        self.synchronize()
        ends[-1] = time.perf_counter()
        return ends


def send_bytes(dataset: Any) -> None:
    """Its images stay uint8."""
    steps = getattr(dataset.transform, "transforms", [dataset.transform])
    kept = [step for step in steps if not isinstance(step, transforms.ToTensor | transforms.Normalize)]
    dataset.transform = transforms.Compose([*kept, transforms.PILToTensor()])
    dataset.transforms.transform = dataset.transform  # torchvision holds it a second time


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def loop(order: Order, say: Say) -> dict[str, object]:
    """Train by ``order["answer"]`` for ``timed_s`` and `QUEUES` queues, whichever is longer, ``max_s`` at most."""
    device, cell = device_of(order), cell_named(order["cell"])
    answer = msgspec.convert(order["answer"], Answer)
    torch.manual_seed(0)
    script, dataset = Script(cell, answer, device), cell.make_dataset()
    warm = torch.rand(answer.batch_size, *dataset[0][0].shape, device=device)
    targets = torch.randint(0, cell.num_classes, (len(warm),), device=device)
    if answer.uint8:
        send_bytes(dataset)
        warm = (255 * warm).to(torch.uint8)
    for _ in range(WARM_STEPS):
        script.step(warm, targets)
    loaded = endless(DataLoader(dataset, shuffle=True, drop_last=True, **answer.loader_kwargs()))
    batches = map(script.on_device, loaded)
    script.run(batches, answer.num_prefetched, min(WARM_S, order["timed_s"] / 4), order["max_s"] / 2)
    ends = script.run(batches, QUEUES * answer.num_prefetched, order["timed_s"], order["max_s"])
    loaded.close()  # workers that are killed in a batch would leave shared memory
    return msgspec.to_builtins(timing(ends, answer))


def timing(ends: list[float], answer: Answer) -> Timing:
    """`ends` as `Script.run` gives them, seconds."""
    num_batches, seconds = len(ends) - 1, ends[-1] - ends[0]
    middle = num_batches // 2
    first = middle / (ends[middle] - ends[0]) if middle else None
    second = (num_batches - middle) / (ends[-1] - ends[middle])
    return Timing(
        samples_per_s=num_batches * answer.batch_size / seconds,
        num_batches=num_batches,
        num_queues=num_batches / answer.num_prefetched,
        seconds=seconds,
        drift=None if first is None else first / second,
    )


def accelerate(order: Order, say: Say) -> dict[str, object]:
    """Accelerate's decorator from its default of 128, around a function that builds everything anew, as its guide asks
    for."""
    find = import_module("accelerate.utils").find_executable_batch_size
    cell, device = cell_named(order["cell"]), device_of(order)
    tried = list[int]()

    def train(batch_size: int) -> int:
        tried.append(batch_size)
        training = Training(cell, device)
        batch = training.make_batch(batch_size)
        for _ in range(FINDER_STEPS):
            training.step(*batch)
        training.synchronize()
        return batch_size

    started = time.monotonic()
    found = find(train)()
    seconds = time.monotonic() - started
    remark = f"accelerate {version('accelerate')}; {len(tried)} sizes, {len(tried) - 1} of them out of memory"
    return {"found": found, "seconds": seconds, "remark": remark}


def lightning(order: Order, say: Say) -> dict[str, object]:
    """Lightning's BatchSizeFinder at its defaults, on a LightningModule with a DataLoader; and the workers that its
    warning about a loader with few of them names for this machine."""
    pl = import_module("lightning.pytorch")
    tuner, utilities = import_module("lightning.pytorch.tuner"), import_module("lightning.pytorch.utilities")
    cell, device = cell_named(order["cell"]), device_of(order)
    torch.manual_seed(0)
    module = _module(pl.LightningModule, cell)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="gpu" if device.type == "cuda" else "cpu",
            devices=1,
            precision=LIGHTNING_PRECISION[cell.precision],
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        started = time.monotonic()
        found = tuner.Tuner(trainer).scale_batch_size(module)
        seconds = time.monotonic() - started
    failed = sum(module.ended[size] < begun for size, begun in module.begun.items())
    remark = f"lightning {pl.__version__}; {len(module.begun)} sizes, {failed} of them out of memory"
    advised = utilities.suggested_max_num_workers(1)
    return {"found": found, "seconds": seconds, "remark": remark, "advised_workers": advised}


def _module(base: type, cell: Cell) -> Any:
    class Module(base):
        """The cell's model and step, in Lightning's terms; counts the steps begun and ended at each size."""

        def __init__(self) -> None:
            super().__init__()
            self.batch_size, self.model, self.data = 2, cell.make_model(), cell.make_dataset()
            self.begun: Counter[int] = Counter()
            self.ended: Counter[int] = Counter()

        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(self.data, batch_size=self.batch_size, shuffle=True, drop_last=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(cell, self.model)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            inputs, targets = batch
            self.begun[len(inputs)] += 1
            return loss_of(self.model(inputs), targets)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.ended[len(batch[0])] += 1

    return Module()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    serve({"loop": loop, "accelerate": accelerate, "lightning": lightning})
