"""The settings of a loader that can change while a loop iterates it, and what the changes took."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import DataLoader


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Arguments of ``torch.utils.data.DataLoader``, in PyTorch's own spelling. Raises ValueError where torch would."""

    num_workers: int = 0
    pin_memory: bool = False
    prefetch_factor: int = 2
    """Batches asked for ahead per worker. Without meaning at 0 workers."""
    in_order: bool = True
    """Without meaning at 0 workers."""

    def __post_init__(self) -> None:
        if self.num_workers < 0:
            raise ValueError(f"num_workers is {self.num_workers}; it must be 0 or more.")
        if self.prefetch_factor < 1:
            raise ValueError(f"prefetch_factor is {self.prefetch_factor}; it must be 1 or more.")

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> "Settings":
        """The caller's own."""
        return cls(
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            prefetch_factor=loader.prefetch_factor or 2,
            in_order=loader.in_order,
        )

    def changed(self, **changes: Any) -> "Settings":
        """These with some changed. Raises TypeError for a name that is none of them, ValueError for a wrong value."""
        return replace(self, **changes)

    def same_workers(self, other: "Settings") -> bool:
        """Whether a change from one to the other needs no other worker processes: only what has no meaning without
        workers differs."""
        return self._workers() == other._workers()

    def _workers(self) -> tuple[object, ...]:
        ahead = (self.prefetch_factor, self.in_order) if self.num_workers else ()
        return (self.num_workers, self.pin_memory, *ahead)

    @property
    def num_ahead(self) -> int:
        """Batches asked for ahead of the loop."""
        return self.num_workers * self.prefetch_factor


@dataclass(slots=True, kw_only=True)
class Switch:
    """What one change of settings took."""

    settings: Settings
    asked_s: float
    """``time.monotonic()`` when it was asked for."""
    start_s: float | None = None
    """Seconds until all workers were ready. None: not yet."""
    delivers_s: float | None = None
    """Seconds until the new settings gave their first batch. None: not yet."""
    at: int | None = None
    """The number in the epoch of the first batch that the new settings load. None: not known yet."""


@dataclass(slots=True, kw_only=True)
class Counters:
    """Of everything that a loader delivered so far. They only grow: compare two readings."""

    num_batches: int = 0
    num_samples: int = 0
    """Of map-style datasets. A batch that was asked for by a single index counts as one sample."""
    switches: list[Switch] = field(default_factory=list)


def start_method(context: Any) -> str:
    """``fork``, ``forkserver`` or ``spawn``. ``context``: of a loader. None: the default."""
    return str((context or torch.multiprocessing).get_start_method())
