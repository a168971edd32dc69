"""The neutral loop: trains by one answer as a plain PyTorch script does, and counts samples ÷ wall seconds.

In: an answer's figures. Out: a timing's. Nothing of loadtune's measuring is in it, and it is the same for every tool.
The model is warm before the loader begins, since a queue that fills during a slow first step would be counted as
throughput later; then a queue's length of batches goes by unmeasured, and several of them are timed.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import memory_cells
import msgspec
import torch
from memory_grid import Cell, cell_named
from memory_orders import Order, Say
from memory_train import loss_of, make_optimizer
from memory_work import device_of
from peers_records import Answer, Timing
from torch.utils.data import DataLoader
from torchvision.transforms import v2

# GradScaler skips the optimizer in its first steps, and the libraries choose their kernels in the first.
WARM_STEPS = 8
QUEUES = 3
# A queue of batches goes by unmeasured, and this many seconds, or a quarter of what is timed where that is less.
WARM_S = 5.0
_DTYPE = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Script:
    """Model, optimizer and step, as the answer has them."""

    def __init__(self, cell: Cell, answer: Answer, device: torch.device) -> None:
        if answer.num_threads is not None:
            torch.set_num_threads(answer.num_threads)
        self.device, self.answer = device, answer
        self.format = torch.channels_last if answer.channels_last else torch.contiguous_format
        model = getattr(memory_cells, cell.model)().to(device, memory_format=self.format).train()
        self.optimizer = make_optimizer(replace(cell, fused=answer.fused), model)
        self.model = torch.compile(model) if answer.compile else model
        self.scaler = torch.amp.GradScaler(device.type, enabled=answer.precision == "fp16")
        if answer.fused and answer.precision == "fp16":  # the scaler may skip the first step, which would set it
            for parameter in model.parameters():
                self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def on_device(self, batch: Any) -> list[torch.Tensor]:
        return [part.to(self.device, non_blocking=self.answer.non_blocking) for part in batch]

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        if self.answer.uint8:
            inputs = inputs.float().div_(255)
        inputs = inputs.to(memory_format=self.format)
        with self._autocast():
            loss = loss_of(self.model(inputs), targets)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = _DTYPE.get(self.answer.precision)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def send_bytes(dataset: Any) -> None:
    """Its images stay uint8."""
    dataset.transform = v2.ToImage()
    dataset.transforms.transform = dataset.transform  # torchvision holds it a second time


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def time_loop(order: Order, say: Say) -> dict[str, object]:
    """Train by ``order["answer"]`` for ``timed_s`` and `QUEUES` queues, whichever is longer, ``max_s`` at most."""
    device, cell = device_of(order), cell_named(order["cell"])
    answer = msgspec.convert(order["answer"], Answer)
    torch.manual_seed(0)
    script = Script(cell, answer, device)
    dataset = getattr(memory_cells, cell.dataset)()
    _warm(script, dataset[0][0].shape, cell)
    if answer.uint8:
        send_bytes(dataset)
    loaded = endless(DataLoader(dataset, shuffle=True, drop_last=True, **answer.loader_kwargs()))
    batches = map(script.on_device, loaded)
    _run(script, batches, answer, answer.num_prefetched, min(WARM_S, order["timed_s"] / 4), order["max_s"] / 2)
    ends = _run(script, batches, answer, QUEUES * answer.num_prefetched, order["timed_s"], order["max_s"])
    loaded.close()  # the workers end by themselves: killed in the middle of a batch, they would leave shared memory
    return msgspec.to_builtins(timing(ends, answer, _peak(device)))


def _warm(script: Script, shape: tuple[int, ...], cell: Cell) -> None:
    batch = torch.rand(script.answer.batch_size, *shape, device=script.device)
    if script.answer.uint8:
        batch = (255 * batch).to(torch.uint8)
    targets = torch.randint(0, cell.num_classes, (len(batch),), device=script.device)
    for _ in range(WARM_STEPS):
        script.step(batch, targets)
    script.synchronize()


def _run(
    script: Script, batches: Iterator[Any], answer: Answer, num_batches: int, seconds: float, max_s: float
) -> list[float]:
    """Train that many batches and seconds, in whole rounds of the workers; the device is waited for at the ends alone.

    Returns when it began and when each step had been asked for, the last one when it was done.
    """
    script.synchronize()
    ends = [time.perf_counter()]
    a_round = max(1, answer.num_workers)
    while True:
        script.step(*next(batches))
        ends.append(time.perf_counter())
        num, elapsed = len(ends) - 1, ends[-1] - ends[0]
        if num % a_round == 0 and ((num >= num_batches and elapsed >= seconds) or elapsed >= max_s):
            break
    script.synchronize()
    ends[-1] = time.perf_counter()
    return ends


def timing(ends: list[float], answer: Answer, peak_reserved_bytes: int | None) -> Timing:
    """`ends` as `_run` gives them, seconds."""
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
        peak_reserved_bytes=peak_reserved_bytes,
    )


def _peak(device: torch.device) -> int | None:
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None


LOOP = {"loop": time_loop}
