"""What loading takes, by the clocks of whoever loads; and how many workers may be, by cores, RAM, /dev/shm and
descriptors, looked at before one starts."""

import math
import os
import resource
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from loadtune.host.memory import read_ram, read_shm
from loadtune.host.processes import proportional_bytes
from loadtune.inflight.account import Account
from loadtune.inflight.environment import num_local_ranks, num_ranks
from loadtune.inflight.measure import Reading, Work
from loadtune.stream.sample_table import Row

MOST = 64
_WAITS = 0.15
"""Workers that use less of a core wait for a disk or a network; cores do not bound them."""
_SHARE = 0.5
"""Of what is free of RAM and /dev/shm, and of the descriptors: the rest is for everybody else."""
_USUAL_WORKER = 30 << 20
_HINTS = {"/dev/shm": ": docker run --shm-size gives more", "descriptors": ": ulimit -n gives more"}
_HINTS["the sampler"] = ", which may depend on the loop: a larger prefetch_factor allows more"


class Bound(NamedTuple):
    """The most workers, and what bounds them."""

    most: int
    reason: str
    """``cores``, ``RAM``, ``/dev/shm``, ``descriptors``, ``the sampler`` or ``--max-workers``; of a stream its own."""

    @property
    def text(self) -> str:
        if self.reason == "cores":
            return "the CPU cores have no time for more"
        return f"no more are allowed by {self.reason}{_HINTS.get(self.reason, '')}"


def num_shards(stream: Any) -> int:
    """Of a rank, as webdataset's list of files or Hugging Face's datasets tell them; `MOST` where nothing does."""
    stages = getattr(stream, "pipeline", None)
    urls = getattr(stages[0], "urls", None) if isinstance(stages, list) and stages else None
    told = getattr(stream, "num_shards", getattr(stream, "n_shards", MOST))
    return max(1, told if urls is None else len(urls) // num_ranks())


def batch_size(batch: Any) -> tuple[int, int]:
    """What one batch takes in a queue: bytes and tensors."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    return sum(leaf.nbytes for leaf in tensors), len(tensors)


def most_workers(
    work: Work,
    account: Account,
    prefetch_factor: int,
    cores: float,
    max_workers: int | None = None,
    worker_pid: int | None = None,
    shards: int | None = None,
) -> Bound:
    """The least of all bounds for the loader of this account.

    While a switch goes on there are the old workers, too, so half of what is free counts. ``cores``: that workers of
    other loaders of this rank leave. ``worker_pid``: one whose memory is measured. ``shards``: of a stream, whose
    workers do not tell how long they load: what share of a core each takes is not known.
    """
    ranks, cores = num_local_ranks(), max(1.0, cores)
    queued = account.batch_bytes * (prefetch_factor + 1)
    ram, shm = read_ram().available_bytes * _SHARE / ranks, read_shm()[1] * _SHARE / ranks
    own_bytes = None if worker_pid is None else proportional_bytes(worker_pid)
    per_worker, limit = 8, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    descriptors = (1 << 20 if limit == resource.RLIM_INFINITY else limit) - len(os.listdir("/proc/self/fd"))
    if torch.multiprocessing.get_sharing_strategy() == "file_descriptor":  # type: ignore[no-untyped-call]
        per_worker += account.batch_tensors * (prefetch_factor + 1)
    bounds = {
        "cores": math.ceil(cores / work.cpu_share - 1e-6) if work.cpu_share > _WAITS else MOST,
        "RAM": int(ram / ((own_bytes or _USUAL_WORKER) + queued)),
        "/dev/shm": int(shm / max(1, queued)),
        "descriptors": int(descriptors * _SHARE / per_worker),
        "--max-workers": MOST if max_workers is None else max_workers,
    }
    if shards is not None:
        bounds |= {"its shards": shards, "the number of cores": int(cores)}
    reason = min(bounds, key=lambda name: bounds[name])
    return Bound(max(1, bounds[reason]), reason)


class Clocks(NamedTuple):
    """Of whoever loads, so far."""

    batches: float
    cpu_s: float
    """CPU seconds, with those of the start."""
    queued_s: float = 0.0
    """Seconds ready to run without a core."""
    load_s: float | None = None
    """Seconds in which one worker loads a batch. None: a stream's workers and the training process tell none."""
    trained_s: tuple[float, float] = (0.0, 0.0)
    """Seconds; and those in which threads of the training process ran or were ready to run, their sum."""

    def work_since(self, then: "Clocks", reading: Reading, num_workers: int, cores: float) -> Work | None:
        """What a batch takes. None: too little was loaded since. ``cores``: for training and for loading."""
        made = self.batches - then.batches
        if made < 2 or self.load_s == 0:
            return None
        cpu_s, queued_s = (self.cpu_s - then.cpu_s) / made, max(0.0, (self.queued_s - then.queued_s) / made)
        passed_s, wanted_s = (new - old for new, old in zip(self.trained_s, then.trained_s, strict=True))
        step_cpu_s = reading.total_s * wanted_s / max(1e-9, passed_s) - (0.0 if num_workers else cpu_s)
        spare_s = max(0.0, cores * reading.step_s - step_cpu_s) if reading.step_s else math.inf
        if num_workers == 0:
            return Work(load_s=reading.blocked_s, cpu_s=min(reading.blocked_s, cpu_s), spare_s=spare_s)
        load_s = num_workers * reading.total_s if self.load_s is None else self.load_s  # a stream's all load meanwhile
        return Work(load_s=load_s, cpu_s=cpu_s, queued_s=queued_s, spare_s=spare_s)


def read_clocks(workers: Sequence[Row], pids: Iterable[int], num_delivered: int) -> Clocks:
    """``workers``: empty where they note nothing, as those of a stream."""
    ran_s, queued_s = scheduled_s(pids)
    if not workers:
        return Clocks(num_delivered, ran_s, queued_s)
    ended, cpu_s = sum(each.num_ended for each in workers), sum(each.cpu_s for each in workers)
    num_timed = sum(each.num_timed for each in workers)
    return Clocks(ended, cpu_s, queued_s, sum(each.made_s for each in workers) / num_timed if num_timed else 0.0)


def scheduled_s(pids: Iterable[int | str]) -> tuple[float, float]:
    """Seconds in which the main threads of these processes, or threads of this one as ``self/task/ID``, ran; and were
    ready to run and got no core. 0 where nothing tells."""
    try:
        read = [Path(f"/proc/{pid}/schedstat").read_text().split() for pid in pids]
        return sum(int(each[0]) for each in read) / 1e9, sum(int(each[1]) for each in read) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0
