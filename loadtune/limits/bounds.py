"""What else bounds a batch: the time of a step, and the host's memory for batches in flight. Pure arithmetic."""

import math
from collections.abc import Mapping

from loadtune.records.config import LoaderConfig
from loadtune.records.facts import HostFacts
from loadtune.units import bytes_text, counted

OVERSHOOT = 2.0
"""Times the limit that a step takes at most where the line is wrong altogether and a step grows with its batch."""

SHM_SHARE = 0.8
"""Of what is free in /dev/shm: other programs use it too, and a full one ends a worker with a bus error."""

RAM_SHARE = 0.5
"""Of the RAM that is available: the rest is for the workers themselves and the page cache that feeds them."""


def prefetch_bytes(loader: LoaderConfig, sample_bytes: int) -> int:
    """Bytes of the batches in flight: those asked for ahead, and one in the making per worker."""
    return (loader.num_prefetched + loader.num_workers) * loader.batch_size * sample_bytes


def ram_bytes(loader: LoaderConfig, sample_bytes: int) -> int:
    """The same as RAM: where batches are pinned, a page-locked copy may stand for each of those asked for ahead.

    PyTorch rounds page-locked blocks up to a power of two: up to twice the batch.
    """
    if not loader.pin_memory:
        return prefetch_bytes(loader, sample_bytes)
    batch_bytes = loader.batch_size * sample_bytes
    return loader.num_pinned * loader.block_bytes(sample_bytes) + loader.num_workers * batch_bytes


def largest_host_batch(sample_bytes: int, host: HostFacts) -> int:
    """Largest batch that the host can hold once, as a loader without workers or pinning makes it."""
    return int(RAM_SHARE * host.ram_available_bytes / max(1, sample_bytes))


def host_memory_refusal(loader: LoaderConfig, sample_bytes: int, host: HostFacts) -> str | None:
    """Why the host cannot hold this configuration's batches in flight; None: it can."""
    needed = ram_bytes(loader, sample_bytes)
    if needed > RAM_SHARE * host.ram_available_bytes:
        room = bytes_text(RAM_SHARE * host.ram_available_bytes)
        return f"prefetched batches need {bytes_text(needed)} of RAM, but {room} are available"
    return shm_refusal(loader, sample_bytes, host)


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


def largest_within(limit_s: float, step_s: Mapping[int, float]) -> int:
    """The largest batch whose step is predicted to stay within `limit_s`; `step_s` holds seconds above 0 by batch size.

    A line through the largest size and one at most half as large says what further samples cost. It is trusted to
    `OVERSHOOT` times what the best rate alone allows: n times the batch takes n times as long at most. One size alone
    may be doubled where its own step is within the limit.
    """
    surely = limit_s * max(size / took for size, took in step_s.items())
    last = max(step_s)
    if len(step_s) == 1:
        return max(int(surely), 2 * last if step_s[last] <= limit_s else 0)
    smaller = max((size for size in step_s if 2 * size <= last), default=min(step_s))
    per_sample_s = (step_s[last] - step_s[smaller]) / (last - smaller)
    most = OVERSHOOT * surely
    predicted = last + (limit_s - step_s[last]) / per_sample_s if per_sample_s > 0 else most
    return int(min(max(predicted, surely), most))
