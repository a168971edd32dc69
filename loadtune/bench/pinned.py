"""The page-locked blocks that batches are pinned into: kept from trial to trial, given back where they are too many.

PyTorch locks a block when it first needs one more and reuses it ever after. While blocks are locked the driver holds up
the training thread's launches: on an H200, steps of 0.53 s took up to 0.94 s next to the locking of 512 MiB. A window
in which that happened is left out (`Window.is_settling`).
"""

from collections.abc import Callable

import torch

from loadtune.bench.memory import DeviceMemory, host_books
from loadtune.host.memory import read_ram
from loadtune.records import LoaderConfig

_LOCKED_SHARE = 0.5
"""Of the RAM that is available: what may be locked before blocks of other sizes are given back for it."""

_KEPT_SHARE = 0.15
"""Of the RAM that would be available without them: what a run may find locked that it has no use for. The queues of 16
workers and 128 and 256 images are 13 GiB, 11% of an H200's host; a run that locks either anew takes 2 to 5 s more."""

_KEPT_SHARE_OF_ONE = 0.01
"""The same where RAM and the device's memory are one, and every step would miss it: room for the run's own labels."""


class PinnedBlocks:
    """PyTorch reuses a block for its own size alone."""

    def __init__(
        self,
        memory: DeviceMemory,
        available_bytes: Callable[[], int] = lambda: read_ram().available_bytes,
    ) -> None:
        self._memory, self._available_bytes = memory, available_bytes
        self._booked: dict[int, int] = {}
        """Size of a block, and of all that were asked for of it, at the most."""

    def keep_for(self, loader: LoaderConfig, sample_bytes: int) -> None:
        """Keep the blocks of earlier runs for later ones of their size.

        All go back where those that this run has no use for are too many, or leave too little for what it has to lock:
        they would stay locked through it.
        """
        wanted = loader.block_bytes(sample_bytes) if loader.pin_memory else 0
        needed = loader.num_pinned * wanted
        held, available = self._held_bytes(), self._available_bytes()
        useful = min(needed, self._booked.get(wanted, 0))
        share = _KEPT_SHARE_OF_ONE if self._memory.is_the_hosts() else _KEPT_SHARE
        if held - useful > share * (available + held) or (
            held > useful and needed - useful > _LOCKED_SHARE * available
        ):
            self._give_back()
        if wanted:
            self._booked[wanted] = max(self._booked.get(wanted, 0), needed)

    def _held_bytes(self) -> int:
        """Of all blocks, by the allocator's books, or else as many as were asked for."""
        held = self._memory.pinned_bytes()
        return sum(self._booked.values()) if held is None else held

    def _give_back(self) -> None:
        self._memory.free_pinned()
        self._booked.clear()


def page_lock_s(device: torch.device) -> float | None:
    """Seconds this process has spent on page-locking memory for pinned batches, calls that have ended. None: not on
    CUDA, or not told."""
    micros = host_books("host_alloc_time", "total") if device.type == "cuda" else None
    return None if micros is None else micros / 1e6
