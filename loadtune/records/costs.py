"""What a loader costs beside its steady rate: where one epoch follows another, and where a checkpoint is saved."""

import statistics
from dataclasses import dataclass

from loadtune.records.configs import LoaderConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCost:
    """Seconds in which no batch comes because an epoch begins. Batches were only taken, not trained on.

    The epochs were short, one batch a worker; the dataset, the workers' start and end and the shuffling of all its
    indices were those of a whole one.
    """

    loader: LoaderConfig
    """Its own ``persistent_workers`` is not looked at: both ways were timed."""
    kept_s: tuple[float, ...]
    """From an epoch's last batch to the next one's first, with ``persistent_workers=True``."""
    anew_s: tuple[float, ...] = ()
    """Likewise with ``persistent_workers=False``: workers end and start anew. Empty: there was no time for it."""

    @property
    def boundary_kept_s(self) -> float:
        return statistics.median(self.kept_s)

    @property
    def boundary_anew_s(self) -> float | None:
        return statistics.median(self.anew_s) if self.anew_s else None


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
