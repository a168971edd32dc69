"""Stand-ins for what the timed loop runs on: a trainer that sleeps, a controller that never speaks."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from loadtune.stream.sample_table import SampleTable

LINE: Any = SimpleNamespace(
    enter=lambda phase: None,
    pulse=lambda: None,
    window=lambda window: None,
    stop_asked=lambda: False,
    now=time.monotonic,
    samples=SampleTable(),
    phase="",
)


class SleepingTrainer:
    """Stands for a `Trainer` on a CPU; copies and steps are sleeps."""

    device, accumulate = torch.device("cpu"), 1

    def __init__(self, copy_s: float = 0.0, step_s: float = 0.0, halvings: Callable[[int], float] = lambda steps: 0.0):
        self.copy_s, self.step_s, self.num_steps, self._halvings = copy_s, step_s, 0, halvings

    def receive(self, batch: Any) -> Any:
        time.sleep(self.copy_s)
        return batch

    def step(self, batch: Any) -> None:
        time.sleep(self.step_s)
        self.num_steps += 1

    def num_samples(self, batch: Any) -> int:
        return len(batch[0])

    def synchronize(self) -> None: ...

    def loss_is_finite(self) -> bool | None:
        return None

    def num_halvings(self) -> float:
        return self._halvings(self.num_steps)
