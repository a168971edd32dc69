"""How many workers may be: cores, RAM, /dev/shm and descriptors, looked at before a worker starts."""

import math
import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from loadtune.host.memory import read_ram, read_shm
from loadtune.host.processes import proportional_bytes
from loadtune.inflight.account import Account
from loadtune.inflight.environment import num_local_ranks
from loadtune.inflight.measure import Work

MOST = 64
_WAITS = 0.15
"""Workers that use less of a core wait for a disk or a network; cores do not bound them."""
_SHARE = 0.5
"""Of what is free of RAM and /dev/shm, and of the descriptors: the rest is for everybody else."""
_USUAL_WORKER = 30 << 20


_HINTS = {"/dev/shm": ": docker run --shm-size gives more", "descriptors": ": ulimit -n gives more"}


class Bound(NamedTuple):
    """The most workers, and what bounds them."""

    most: int
    reason: str
    """``cores``, ``RAM``, ``/dev/shm``, ``descriptors`` or ``--max-workers``."""

    @property
    def text(self) -> str:
        return f"no more are allowed by {self.reason}{_HINTS.get(self.reason, '')}"


def batch_size(batch: Any) -> tuple[int, int]:
    """What one batch takes in a queue: bytes and tensors."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    return sum(leaf.nbytes for leaf in tensors), len(tensors)


def most_workers(
    work: Work,
    account: Account,
    prefetch_factor: int,
    cores: float,
    *,
    others_cpu: float = 0.0,
    max_workers: int | None = None,
    worker_pid: int | None = None,
) -> Bound:
    """The least of all bounds for the loader of this account.

    While a switch goes on there are the old workers, too, so half of what is free counts. ``cores``: of this rank;
    ``others_cpu``: of those, what workers of other loaders keep busy. ``worker_pid``: one whose memory is measured.
    """
    ranks, cores = num_local_ranks(), max(1.0, cores - others_cpu)
    queued = account.batch_bytes * (prefetch_factor + 1)
    ram, shm = read_ram().available_bytes * _SHARE / ranks, read_shm()[1] * _SHARE / ranks
    own_bytes = None if worker_pid is None else proportional_bytes(worker_pid)
    each = (own_bytes or _USUAL_WORKER) + queued
    by_cores = math.ceil(cores / work.cpu_share - 1e-6) if work.cpu_share > _WAITS else MOST
    descriptors, per_worker = _free_descriptors() * _SHARE, 8
    if torch.multiprocessing.get_sharing_strategy() == "file_descriptor":  # type: ignore[no-untyped-call]
        per_worker += account.batch_tensors * (prefetch_factor + 1)
    bounds = {
        "cores": by_cores,
        "RAM": int(ram / each),
        "/dev/shm": int(shm / max(1, queued)),
        "descriptors": int(descriptors / per_worker),
        "--max-workers": MOST if max_workers is None else max_workers,
    }
    reason = min(bounds, key=lambda name: bounds[name])
    return Bound(max(1, bounds[reason]), reason)


def scheduled_s(pids: Iterable[int]) -> tuple[float, float]:
    """Seconds in which the main threads of these processes ran; and were ready to run and got no core. 0 where nothing
    tells."""
    try:
        read = [Path(f"/proc/{pid}/schedstat").read_text().split() for pid in pids]
        return sum(int(each[0]) for each in read) / 1e9, sum(int(each[1]) for each in read) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0


def _free_descriptors() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return 1 << 20
    try:
        return max(0, limit - len(os.listdir("/proc/self/fd")))
    except OSError:
        return limit // 2
