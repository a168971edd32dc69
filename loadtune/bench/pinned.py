"""The page-locked blocks that batches are pinned into: kept from run to run, locked while a first batch is awaited.

PyTorch locks a block when it first needs one more and reuses it ever after. Until a fresh loader's queue has once been
full, blocks are locked while the model trains, and the driver holds up the training thread's launches meanwhile: on an
H200, steps of 0.53 s took up to 0.94 s next to the locking of 512 MiB.
"""

from collections.abc import Callable
from typing import Any

import torch

from loadtune.bench.endless_loader import EndlessLoader
from loadtune.bench.memory import DeviceMemory
from loadtune.host.memory import read_ram
from loadtune.records import LoaderConfig

_KEPT_SHARE = 0.5
"""Of the RAM that is available: a loader that takes no more than this leaves room for blocks that only wait."""


class PinnedBlocks:
    """PyTorch rounds a block up to a power of two and reuses it for that size alone."""

    def __init__(
        self, memory: DeviceMemory, available_bytes: Callable[[], int] = lambda: read_ram().available_bytes
    ) -> None:
        self._memory, self._available_bytes = memory, available_bytes
        self._block_bytes = 0

    def keep_for(self, loader: LoaderConfig, sample_bytes: int) -> None:
        """Keep the blocks that the last runs pinned, where this one's batches go into them, or where it pins none and
        they are in nobody's way; else give them back: they would stay locked through all later runs."""
        batch_bytes = loader.batch_size * sample_bytes
        if not loader.pin_memory:
            in_flight = (loader.num_prefetched + loader.num_workers) * batch_bytes
            if in_flight <= _KEPT_SHARE * self._available_bytes():
                return
        wanted = 1 << (batch_bytes - 1).bit_length() if loader.pin_memory else 0
        if wanted != self._block_bytes:
            self._memory.free_pinned()
        self._block_bytes = wanted

    def lock_ahead(self, loader: EndlessLoader) -> None:
        """Lock what its queue will hold, for as long as its workers have made no batch: nothing else is done then."""
        if not loader.config.pin_memory or loader.depth() is None:
            return
        blocks: list[Any] = []
        while len(blocks) < loader.config.num_prefetched and not _any_made(loader):
            block = self._memory.lock_block(self._block_bytes)
            if block is None:
                return
            blocks.append(block)


def page_lock_s(device: torch.device) -> float | None:
    """Seconds this process has spent on page-locking memory for pinned batches. None: not on CUDA, or not told."""
    if device.type != "cuda":
        return None
    try:
        return float(torch.cuda.host_memory_stats_as_nested_dict()["host_alloc_time"]["total"]) / 1e6
    except (AttributeError, KeyError, RuntimeError):
        return None


def _any_made(loader: EndlessLoader) -> bool:
    depth = loader.depth()
    return depth is None or depth.ready + (depth.unpinned or 0) > 0
