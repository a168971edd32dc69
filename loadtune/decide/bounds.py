"""What the host's memory allows: batch sizes, and the batches that a loader holds. Plain arithmetic."""

import math

from loadtune.model.workers import RAM_SHARE, SHM_SHARE
from loadtune.records.config import LoaderConfig
from loadtune.records.facts import HostFacts, WorkloadFacts
from loadtune.records.memory import CeilingLimit
from loadtune.units import bytes_text, counted


def prefetch_bytes(loader: LoaderConfig, sample_bytes: int) -> int:
    """Bytes of the batches in flight: those asked for ahead, and one in the making per worker."""
    return (loader.num_prefetched + loader.num_workers) * loader.batch_size * sample_bytes


def caps_of(facts: WorkloadFacts, max_batch_size: int | None, host: HostFacts) -> dict[CeilingLimit, int]:
    """Limits of the batch size other than the device's memory. The host has to hold a batch once, as a loader without
    workers or pinning makes it. The smallest that trains is tried anyway."""
    caps: dict[CeilingLimit, int | None] = {"dataset": facts.dataset_length, "cap": max_batch_size}
    if facts.fixed_batch_size is not None:
        caps = {"fixed": facts.fixed_batch_size}
    held = int(RAM_SHARE * host.ram_available_bytes / max(1, facts.sample_bytes))
    caps["host_memory"] = max(facts.smallest_batch, held)
    return {limit: size for limit, size in caps.items() if size is not None}


def fits_host(loader: LoaderConfig, sample_bytes: int, host: HostFacts) -> bool:
    """Whether RAM and /dev/shm can hold this configuration's batches in flight.

    Where batches are pinned, a page-locked copy may stand for each of those asked for ahead. PyTorch rounds page-locked
    blocks up to a power of two: up to twice the batch.
    """
    needed = prefetch_bytes(loader, sample_bytes)
    if loader.pin_memory:
        batch_bytes = loader.batch_size * sample_bytes
        num_pinned = loader.num_prefetched + 2  # beside the batches in flight one being filled, one being copied
        needed = num_pinned * (1 << (batch_bytes - 1).bit_length()) + loader.num_workers * batch_bytes
    return needed <= RAM_SHARE * host.ram_available_bytes and shm_refusal(loader, sample_bytes, host) is None


def shm_refusal(loader: LoaderConfig, sample_bytes: int, host: HostFacts) -> str | None:
    """Why its workers do not fit into /dev/shm, and what to do about that. None: they do, or there are none."""
    needed, free = prefetch_bytes(loader, sample_bytes), host.shm_free_bytes
    if loader.num_workers == 0 or free is None or needed <= SHM_SHARE * free:
        return None
    size, workers = math.ceil(needed / SHM_SHARE / 2**30), counted(loader.num_workers, "worker")
    remedy = f"Start the container with --shm-size={size}g, or enlarge it: mount -o remount,size={size}g /dev/shm."
    if not host.shm_total_bytes:
        return f"Workers need a /dev/shm, which is missing or read-only here. {remedy}"
    return (
        f"{workers} at batch size {loader.batch_size} may need {bytes_text(needed)} of /dev/shm, of which "
        f"{bytes_text(SHM_SHARE * free)} can be used. {remedy}"
    )
