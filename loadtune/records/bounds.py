"""What lies between a dataset and a training step, each timed by itself: the loader, and the way to the device."""

from dataclasses import dataclass

from loadtune.records.configs import LoaderConfig
from loadtune.records.window import Window, samples_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPoint:
    """A loader whose batches are dropped: nothing trains, nothing is copied to a device.

    Its rate is what workers and pinning can deliver on an otherwise idle machine. The same loader has been seen faster
    under training, so what training reached counts as well.
    """

    config: LoaderConfig
    windows: tuple[Window, ...]
    """Those after the first round of the workers, which comes in a burst. At least two."""
    first_batch_s: float
    """From ``iter(loader)`` to the first batch in hand: workers' start-up included."""

    @property
    def samples_per_s(self) -> float:
        return samples_per_s(self.windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPoint:
    """One batch in the host's memory, copied to the device again and again.

    At best: its pages are warm, and nothing else reads the memory. A batch fresh from a worker is copied more slowly.
    """

    batch_size: int
    batch_bytes: int
    pinned: bool
    """From page-locked memory, without the host's help; else from pageable memory, through the driver's own copy."""
    num_copies: int
    seconds: float | None
    """For all copies. None: there is no way to go, the device is the CPU."""

    @property
    def bytes_per_s(self) -> float | None:
        return self.num_copies * self.batch_bytes / self.seconds if self.seconds else None

    @property
    def samples_per_s(self) -> float | None:
        return self.num_copies * self.batch_size / self.seconds if self.seconds else None
