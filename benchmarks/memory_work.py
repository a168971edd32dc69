"""What a plain process is asked to do: see whether a size trains, train for minutes, hold memory.

In: an order. Out: figures. Lack of memory stays an exception until `memory_child` has seen it, but for the soak, which
tells how far it came.
"""

import statistics
import threading
import time
from dataclasses import asdict

import torch
from memory_grid import cell_named
from memory_orders import Order, Say
from memory_train import Training, is_oom, memory_info

TRUTH_STEPS = 3
# A plain loop meets an evaluation and a last partial batch once an epoch; here often enough for a few in two minutes.
EPOCH_STEPS = 20


def device_of(order: Order) -> torch.device:
    """The only device that is visible, or the CPU in a rehearsal."""
    if order.get("device") == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    return torch.device("cuda", 0)


def truth(order: Order, say: Say) -> dict[str, object]:
    """Three training steps on a resident batch; that it returns means that the size fits."""
    device = device_of(order)
    free_bytes, _ = memory_info(device)
    training = Training(cell_named(order["cell"]), device)
    batch = training.make_batch(order["batch_size"])
    for _ in range(TRUTH_STEPS):
        training.step(*batch)
    training.synchronize()
    return {"free_bytes": free_bytes, **asdict(training.books())}


def soak(order: Order, say: Say) -> dict[str, object]:
    """Train for a while as a script does: a new batch each step, made while the last one still lives; after each epoch
    the partial batch that the dataset leaves over, and an evaluation of a full and of that partial batch."""
    device, batch_size = device_of(order), order["batch_size"]
    training = Training(cell_named(order["cell"]), device)
    partial = len(training.dataset) % batch_size
    run = _Soak(training, order["seconds"])
    oom: str | None = None
    try:
        while run.goes_on():
            inputs, targets = training.make_batch(batch_size)
            run.train(inputs, targets)
            if run.num_steps % EPOCH_STEPS == 0:
                if partial > 1:  # batch normalisation refuses 1
                    run.train(inputs[:partial].clone(), targets[:partial].clone())
                    run.evaluate(inputs[:partial].clone(), targets[:partial].clone())
                run.evaluate(inputs, targets)
    except RuntimeError as error:
        if not is_oom(error):
            raise
        oom = str(error).splitlines()[0]
    return run.figures() | {"oom": oom, "partial_batch_size": partial}


class _Soak:
    """Steps done so far, when, and the allocator's retries after each."""

    def __init__(self, training: Training, seconds: float) -> None:
        self._training, self._seconds = training, seconds
        self._started = time.monotonic()
        self._steps: list[tuple[float, int]] = []
        self._durations: list[float] = []
        self._num_evaluations = 0

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    def goes_on(self) -> bool:
        return time.monotonic() - self._started < self._seconds or self._num_evaluations == 0

    def train(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        begun = time.monotonic()
        self._training.step(inputs, targets)
        self._training.synchronize()
        now = time.monotonic()
        self._durations.append(now - begun)
        self._steps.append((now - self._started, self._training.books().num_retries or 0))

    def evaluate(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self._training.evaluate(inputs, targets)
        self._training.synchronize()
        self._num_evaluations += 1

    def figures(self) -> dict[str, object]:
        seconds = time.monotonic() - self._started
        total = self._steps[-1][1] if self._steps else 0
        first_half = [retries for at, retries in self._steps if at < seconds / 2]
        books = self._training.books()
        return {
            "num_steps": self.num_steps,
            "num_evaluations": self._num_evaluations,
            "seconds": seconds,
            "step_s": statistics.median(self._durations) if self._durations else None,
            "num_retries": books.num_retries,
            "num_late_retries": None if books.num_retries is None else total - (first_half or [0])[-1],
            "peak_allocated_bytes": books.peak_allocated_bytes,
            "peak_reserved_bytes": books.peak_reserved_bytes,
        }


def hold(order: Order, say: Say) -> dict[str, object]:
    """Take a share of the device and keep it until stdin closes."""
    device = device_of(order)
    total = memory_info(device)[1] or 1 << 24
    held = torch.empty(int(order["fraction"] * total), dtype=torch.uint8, device=device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    say(event="holding", bytes=held.nbytes)
    threading.Event().wait()
    return {}


WORK = {"truth": truth, "soak": soak, "hold": hold}
