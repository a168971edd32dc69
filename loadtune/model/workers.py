"""What workers and cores allow a loop that trains: the part of the throughput model that needs no fit. And how many
workers memory and descriptors hold under `exec`, and what batches a loader of `run` may hold. Pure: what is free is
handed in.

Seconds a batch are the soft maximum of three demands, as in `resources`: of the workers, of the cores, of the step.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from loadtune.records.config import LoaderConfig
from loadtune.records.facts import HostFacts, WorkloadFacts
from loadtune.records.memory import CeilingLimit
from loadtune.units import bytes_text, counted

SHARPNESS = 8.0
"""Power of the soft maximum, dimensionless: near a tie of two demands each slows the other by up to 9%."""
BATCH_COST_S, HAND_COST_S = 1e-3, 5e-4
"""Seconds a batch that a worker takes beyond loading it, for queues and shared memory, and the training process for
taking it. Medians of the model's priors, fitted on H200s; used until a loop's own hand-over was measured."""
NEAR = 0.05
"""Share of the time a batch by which fewer workers may be slower: their number costs memory and starting."""
WAITS = 1.5
"""Seconds of loading ÷ its CPU seconds from which on workers wait, for storage, a network or a timer, so that more of
them than cores may be busy."""
MOST = 256
"""Workers on one machine at the most. RAM and /dev/shm may allow fewer."""
SHM_SHARE = 0.8
"""Of what is free in /dev/shm: other programs use it too, and a full one ends a worker with a bus error."""
RAM_SHARE = 0.5
"""Of the RAM that is available: the training itself and the page cache grow into the rest."""
DESCRIPTORS_SHARE = 0.5
"""Of the descriptors that a process may still open: the training opens files, too."""
USUAL_WORKER = 30 << 20
"""Bytes of RAM that a forked worker takes beside its batches, until one is measured."""
_DESCRIPTORS = 8
"""That the training process holds for a worker: pipes of its queues, its sentinel."""


def soft_maximum(needed: Any, sharpness: Any = SHARPNESS) -> Any:
    """Of demands along the first axis, none of which is negative."""
    import numpy as np  # here: whoever only shows what was found needs none

    needed = np.asarray(needed, dtype=float)
    most = needed.max(axis=0)
    return most * ((needed / most) ** sharpness).sum(axis=0) ** (1 / sharpness)


def most_by_cores(num_cores: float, load_s: float, cpu_s: float) -> int:
    """Workers that can be busy at a time: one a core, or `MOST` where they wait rather than compute."""
    return MOST if load_s >= WAITS * cpu_s else max(1, int(num_cores + 0.5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a batch takes, by the clocks of whoever loads and trains. Seconds a batch."""

    load_s: float
    """Of one worker, without the time in which it was ready to run and got no core."""
    cpu_s: float
    """CPU seconds of loading."""
    queued_s: float = 0.0
    """Seconds in which the worker was ready to run and got no core."""
    step_cpu_s: float = 0.0
    """CPU seconds of the training process, loading excluded. 0 where ranks wait for each other: not known."""
    cores_busy: float | None = None
    """Share of the time in which the usable cores ran something. None: not measured."""


class Loop(NamedTuple):
    """Of the training process: seconds a batch beside loading, the cores that are there, and whether it has workers."""

    step_s: float
    cores: float
    handover_s: float
    """Taking a batch that stands ready. 0: not measured."""


def demands(work: Work, loop: Loop, num_workers: int) -> dict[str, float]:
    """Seconds a batch that each of the three needs. Without workers the training process loads, and all add up."""
    if num_workers == 0:
        return {"workers": work.load_s + loop.step_s, "cores": 0.0, "the step": 0.0}
    return {
        "workers": (work.load_s + BATCH_COST_S) / num_workers,
        "cores": (work.cpu_s + work.step_cpu_s) / loop.cores,
        "the step": loop.step_s + (loop.handover_s or HAND_COST_S),
    }


def batch_s(work: Work, loop: Loop, num_workers: int) -> float:
    """Predicted seconds a batch."""
    return float(soft_maximum(list(demands(work, loop, num_workers).values())))


def fewest(work: Work, loop: Loop, most: int) -> int:
    """Workers from 1 on with which a batch takes at most `NEAR` longer than with any number up to ``most``."""
    predicted = [batch_s(work, loop, number) for number in range(1, most + 1)]
    return next(number for number, seconds in enumerate(predicted, 1) if seconds <= (1 + NEAR) * min(predicted))


# What memory and descriptors hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """What the machine has for one loader of one process."""

    num_ranks: int = 1
    """Processes that train on this machine and share what follows."""
    ram_bytes: int
    shm_bytes: int
    descriptors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """What one worker of a loader holds."""

    batch_bytes: int
    batch_tensors: int
    """0 where tensors are not shared by descriptors."""
    num_batches: int
    """Queued at a time, the one in the making included."""
    worker_bytes: int | None = None
    """RAM beside them. None: not measured."""


def most_workers(free: Free, queued: Queued, others: dict[str, int]) -> tuple[int, str]:
    """The least of all bounds, at least 1, and its name: ``RAM``, ``/dev/shm``, … ``others``: more of them by name."""
    held = queued.batch_bytes * queued.num_batches
    descriptors = _DESCRIPTORS + queued.batch_tensors * queued.num_batches
    bounds = {
        "the limit of workers": MOST // free.num_ranks,
        "RAM": int(RAM_SHARE * free.ram_bytes / free.num_ranks / ((queued.worker_bytes or USUAL_WORKER) + held)),
        "/dev/shm": int(SHM_SHARE * free.shm_bytes / free.num_ranks / max(1, held)),
        "descriptors": int(DESCRIPTORS_SHARE * free.descriptors / descriptors),
        **others,
    }
    reason = min(bounds, key=lambda name: bounds[name])
    return max(1, bounds[reason]), reason


# What the memory of the host allows: batch sizes, and the batches that a loader holds


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
