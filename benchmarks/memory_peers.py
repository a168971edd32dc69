"""What other tools, and two plain rules, take for the largest batch of a cell. Runs in a process of its own.

Each answers: what it found, whether that size was really trained, sizes attempted, how many of those ran out of memory,
and its seconds, from the first line of its own search to its answer (imports and the device's context come before).
"""

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import version

import memory_peer_lightning
import numpy as np
import torch
from memory_grid import Cell, cell_named
from memory_orders import Order, Say
from memory_train import Training, is_oom, memory_info
from memory_work import device_of

STEPS = 3
ACCELERATE_START = 8192
LINE_SIZES = (1, 2, 4, 8, 16)
# YOLOv5's utils/autobatch.py: the fraction it solves for, and the size above which it falls back to 16.
LINE_FRACTION, LINE_BOUND = 0.8, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A tool's answer."""

    found: int | None
    was_run: bool
    num_attempts: int
    num_ooms: int
    seconds: float
    remark: str = ""


class Attempts:
    """Trains sizes afresh, as each tool asks for them, and keeps what became of them."""

    def __init__(self, cell: Cell, device: torch.device) -> None:
        self._cell, self._device = cell, device
        self.tried: list[int] = []
        self.fitted: list[int] = []

    def train(self, batch_size: int) -> None:
        """A fresh model, a few steps. Raises what PyTorch raises."""
        self.tried.append(batch_size)
        training = Training(self._cell, self._device)
        batch = training.make_batch(batch_size)
        for _ in range(STEPS):
            training.step(*batch)
        training.synchronize()
        self.fitted.append(batch_size)

    def fits(self, batch_size: int) -> bool:
        try:
            self.train(batch_size)
        except RuntimeError as error:
            if not is_oom(error):
                raise
            fits = False
        else:
            fits = True
        gc.collect()  # after the except block: its traceback held the step's tensors
        torch.cuda.empty_cache()
        return fits

    def found(self, batch_size: int | None, seconds: float, remark: str = "") -> dict[str, object]:
        answer = Found(
            found=batch_size,
            was_run=batch_size in self.fitted,
            num_attempts=len(self.tried),
            num_ooms=len(self.tried) - len(self.fitted),
            seconds=seconds,
            remark=remark,
        )
        return asdict(answer)


def _begin(order: Order) -> tuple[Cell, torch.device, Attempts]:
    cell, device = cell_named(order["cell"]), device_of(order)
    memory_info(device)  # makes the context, which no search should be billed for
    return cell, device, Attempts(cell, device)


def doubling(order: Order, say: Say) -> dict[str, object]:
    """2, 4, 8, … until one fails."""
    _, _, attempts = _begin(order)
    started = time.monotonic()
    size = 2
    while attempts.fits(size):
        size *= 2
    return attempts.found(max(attempts.fitted, default=None), time.monotonic() - started)


def accelerate(order: Order, say: Say) -> dict[str, object]:
    """Accelerate's decorator, around a function that builds everything anew, as its guide asks for."""
    find = import_module("accelerate.utils").find_executable_batch_size
    _, _, attempts = _begin(order)

    def train(batch_size: int) -> int:
        attempts.train(batch_size)
        return batch_size

    started = time.monotonic()
    found = find(train, starting_batch_size=order.get("start", ACCELERATE_START))()
    return attempts.found(found, time.monotonic() - started, f"accelerate {version('accelerate')}, its own step down")


def line(order: Order, say: Say) -> dict[str, object]:
    """YOLOv5's rule: reserved memory after steps at 1 to 16, a straight line, solved for the free memory."""
    cell, device, attempts = _begin(order)
    training = Training(cell, device)
    started = time.monotonic()
    total = memory_info(device)[1] or 1 << 30
    # Its rule takes off reserved and allocated memory, so the model counts twice.
    free = total - _reserved(device, 0) - (torch.cuda.memory_allocated(device) if device.type == "cuda" else 0)
    points = []
    for size in LINE_SIZES:
        inputs, targets = training.make_batch(size)
        for _ in range(STEPS):
            training.step(inputs, targets)
        training.synchronize()
        points.append(_reserved(device, size * inputs[0].nbytes))
        attempts.tried.append(size)
        attempts.fitted.append(size)
    slope, intercept = np.polyfit(LINE_SIZES, points, deg=1)
    share, whole = (int((free * fraction - intercept) / slope) for fraction in (LINE_FRACTION, 1.0))
    chosen = order["fraction"]
    beyond = f"; above {LINE_BOUND} its code falls back to 16" if max(share, whole) > LINE_BOUND else ""
    remark = f"reserved memory, free memory × {chosen:g}{beyond}"
    return attempts.found(whole if chosen == 1.0 else share, time.monotonic() - started, remark)


def _reserved(device: torch.device, rehearsed: int) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else rehearsed


def lightning(order: Order, say: Say) -> dict[str, object]:
    """Lightning's BatchSizeFinder, in mode binsearch where nothing else is asked; and how many workers it advises."""
    cell, device, attempts = _begin(order)
    searched = memory_peer_lightning.search(
        cell, device, order.get("mode", "binsearch"), own_data=order.get("own_data", False)
    )
    attempts.tried, attempts.fitted = searched.tried, searched.fitted
    found = attempts.found(searched.found, searched.seconds, searched.remark)
    return found | {"advised_workers": searched.advised_workers}


PEERS: dict[str, Callable[[Order, Say], dict[str, object]]] = {
    "lightning": lightning,
    "accelerate": accelerate,
    "line": line,
    "doubling": doubling,
}
