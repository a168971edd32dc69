"""What a loader costs beside its steady rate, where a checkpoint is saved."""

import statistics
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingCost:
    """Seconds of ``torch.save`` of the model's and the optimizer's state into a file, the loop standing still."""

    num_workers: int
    checkpoint_bytes: int
    alone_s: tuple[float, ...]
    """With no worker there."""
    beside_workers_s: tuple[float, ...]
    """In the midst of training, with the workers filling their queue meanwhile."""

    @property
    def median_alone_s(self) -> float:
        return statistics.median(self.alone_s)

    @property
    def median_beside_workers_s(self) -> float:
        return statistics.median(self.beside_workers_s)
