"""The page-locked blocks that batches are pinned into: kept from run to run, locked while a first batch is awaited.

PyTorch locks a block when it first needs one more and reuses it ever after. Until a fresh loader's queue has once been
full, blocks are locked while the model trains, and the driver holds up the training thread's launches meanwhile: on an
H200, steps of 0.53 s took up to 0.94 s next to the locking of 512 MiB.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from loadtune.bench.endless_loader import EndlessLoader
from loadtune.bench.memory import DeviceMemory, host_books
from loadtune.bench.prefetch_queue import Depth
from loadtune.host.memory import read_ram
from loadtune.records import LoaderConfig

_LOCKED_SHARE = 0.5
"""Of the RAM that is available: what may be locked before any batch asks for it."""

_KEPT_SHARE = 0.15
"""Of the RAM that would be available without them: what a run may find locked that it has no use for. The queues of 16
workers and 128 and 256 images are 13 GiB, 11% of an H200's host; a run that locks either anew takes 2 to 5 s more."""

_KEPT_SHARE_OF_ONE = 0.01
"""The same where RAM and the device's memory are one, and every step would miss it: room for the run's own labels."""

_AS_LONG_AGAIN = 2.0
"""Times as long as the first batch takes: how long blocks are locked for batches to come. What is not locked by then is
locked while the model trains, and those windows are left out: 128 images by 16 workers took 1.4 s more of it on an
H200, and lost twice as much to them."""

_MOST_WAITING_S = 10.0
"""Since the workers were asked for: how long blocks are locked for batches that are there and wait for one. Left to the
windows where 256 MiB took 0.2 s, 256 images by 16 workers still locked in eight of the nine windows that counted."""


class PinnedBlocks:
    """PyTorch reuses a block for its own size alone."""

    def __init__(
        self,
        memory: DeviceMemory,
        available_bytes: Callable[[], int] = lambda: read_ram().available_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory, self._available_bytes, self._clock = memory, available_bytes, clock
        self._block_bytes = 0
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
        self._block_bytes = wanted
        self._book(needed)

    def _held_bytes(self) -> int:
        """Of all blocks, by the allocator's books, or else as many as were asked for."""
        held = self._memory.pinned_bytes()
        return sum(self._booked.values()) if held is None else held

    def _book(self, num_bytes: int) -> None:
        if self._block_bytes:
            self._booked[self._block_bytes] = max(self._booked.get(self._block_bytes, 0), num_bytes)

    def _give_back(self) -> None:
        self._memory.free_pinned()
        self._booked.clear()

    def lock_ahead(self, loader: EndlessLoader, started: float, pulse: Callable[[], None]) -> float:
        """Lock the blocks of the loader they are kept for: as many as go until a worker has made a batch, then for as
        long again, and from there on while more batches wait for a block than there are, since the thread would lock
        theirs at once. `started` is when the workers were asked for; answers the seconds since the first batch was
        there, in which `pulse` says that nothing hangs.

        Nothing else is done meanwhile, but the pinning thread begins: blocks that it took beside those locked here are
        there already. Blocks that were kept cost nothing.
        """
        if not self._block_bytes or not loader.config.num_workers:
            return 0.0
        most = min(loader.config.num_pinned, int(_LOCKED_SHARE * self._available_bytes() / self._block_bytes))
        blocks: list[Any] = []
        made: float | None = None
        while len(blocks) + _depth(loader).ready < most:
            if made is None and loader.any_made():
                made = self._clock()
            if made is not None:
                if self._is_enough(loader, len(blocks), started, made):
                    break
                pulse()
            block = self._memory.lock_block(self._block_bytes)
            if block is None:
                blocks.clear()
                self._give_back()  # the loader's own need may still be met, and is booked for that
                self._book(loader.config.num_pinned * self._block_bytes)
                break
            blocks.append(block)
        return 0.0 if made is None else self._clock() - made

    def _is_enough(self, loader: EndlessLoader, num_blocks: int, started: float, made: float) -> bool:
        """`made`: when the first batch was there."""
        spent = self._clock() - started
        none_waits = (_depth(loader).unpinned or 0) <= num_blocks
        return spent >= _AS_LONG_AGAIN * (made - started) and (none_waits or spent >= _MOST_WAITING_S)


def _depth(loader: EndlessLoader) -> Depth:
    """Batches before the pinning thread and behind it; none where the loader does not tell."""
    return loader.depth() or Depth(unpinned=None, ready=0)


def page_lock_s(device: torch.device) -> float | None:
    """Seconds this process has spent on page-locking memory for pinned batches, calls that have ended. None: not on
    CUDA, or not told."""
    micros = host_books("host_alloc_time", "total") if device.type == "cuda" else None
    return None if micros is None else micros / 1e6
