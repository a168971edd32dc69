"""How many steps a run is warmed by."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loadtune.records.config import Recipe
from loadtune.training.steps import WarmUp

LINE: Any = SimpleNamespace(enter=lambda phase: None, pulse=lambda: None)
BATCH = (torch.zeros(2, 3), torch.zeros(2))


class Counting:
    """Stands for a `Trainer` whose scaler halves its scale, and whose model compiles, as told by the steps so far."""

    def __init__(self, halvings: Callable[[int], float], compiled: Callable[[int], int] = lambda steps: 0) -> None:
        self.num_steps, self._halvings, self._compiled = 0, halvings, compiled
        self.accumulate = 1

    device = torch.device("cpu")

    def step(self, batch: Any) -> None:
        self.num_steps += 1

    def num_samples(self, batch: Any) -> int:
        return len(batch[0])

    def synchronize(self) -> None: ...

    def num_halvings(self) -> float:
        return self._halvings(self.num_steps)

    def num_compiled(self) -> int:
        return self._compiled(self.num_steps)


@pytest.mark.parametrize(
    ("halvings", "num_steps"),
    [
        (lambda steps: 0.0, 1),
        (lambda steps: float(min(steps, 5)), 6),  # the sixth is the first that is not skipped
        (lambda steps: float(steps), 20),  # a model that goes on overflowing
    ],
)
def test_it_goes_on_until_a_step_is_not_skipped(halvings: Callable[[int], float], num_steps: int) -> None:
    trainer: Any = Counting(halvings)
    WarmUp().run(trainer, Recipe(precision="fp16"), BATCH, LINE)
    assert trainer.num_steps == num_steps


def test_on_a_cpu_a_recipe_is_warmed_once_a_batch_size() -> None:
    warm_up, trainer = WarmUp(), Counting(lambda steps: 0.0)
    stand_in: Any = trainer
    for batch in (BATCH, BATCH, (torch.zeros(3, 3), torch.zeros(3))):
        warm_up.run(stand_in, Recipe(), batch, LINE)
    assert trainer.num_steps == 2
