"""What is read once a look: clocks of whoever loads and trains, and what the machine has left for workers."""

import os
import resource
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from loadtune.decide.inflight import Reading
from loadtune.host.processes import scheduled_s
from loadtune.host.usable import read_ram, read_shm
from loadtune.inflight.environment import num_local_ranks, num_ranks
from loadtune.model.workers import MOST, Free, Work
from loadtune.stream.sample_table import Row


class Clocks(NamedTuple):
    """So far."""

    batches: float
    cpu_s: float
    """CPU seconds of loading, with those of starting."""
    queued_s: float = 0.0
    """Seconds in which workers were ready to run without a core."""
    load_s: float = 0.0
    """Seconds in which one worker loads a batch. 0: none has loaded several, or there is none."""
    train_s: float = 0.0
    """Seconds in which threads of the training process ran, or were ready to, their sum."""
    wall_s: float = 0.0
    busy_s: float | None = None
    """Seconds in which the usable cores ran something, their mean. None: not known."""

    def work_since(self, then: "Clocks", reading: Reading) -> Work | None:
        """What a batch takes. None: too little was loaded since."""
        made, passed_s, num = self.batches - then.batches, self.wall_s - then.wall_s, reading.num_workers
        if made < 2 or (num and not self.load_s):
            return None
        cpu_s, queued_s = (self.cpu_s - then.cpu_s) / made, max(0.0, (self.queued_s - then.queued_s) / made)
        train_s = reading.total_s * (self.train_s - then.train_s) / max(1e-9, passed_s) - (0.0 if num else cpu_s)
        is_known = None not in (self.busy_s, then.busy_s) and passed_s > 0
        busy = min(1.0, (self.busy_s - then.busy_s) / passed_s) if is_known else None  # type: ignore[operator]
        load_s = self.load_s if num else reading.blocked_s
        return Work(
            load_s=max(cpu_s, load_s - queued_s) if num else load_s,  # they may also queue between two batches
            cpu_s=cpu_s if num else min(load_s, cpu_s),
            queued_s=queued_s,
            step_cpu_s=max(0.0, train_s) if reading.step_s else 0.0,
            cores_busy=busy,
        )


def read_clocks(own: Clocks, workers: Sequence[Row], busy_s: float | None) -> Clocks:
    """With the threads of the training process. ``own``: where that loads itself, and has no ``workers``."""
    wall_s = time.perf_counter()
    if workers:
        num_timed, made_s = sum(each.num_timed for each in workers), sum(each.made_s for each in workers)
        own = Clocks(
            batches=sum(each.num_ended for each in workers),
            cpu_s=sum(each.cpu_s for each in workers),
            queued_s=scheduled_s(int(each.pid) for each in workers)[1],
            load_s=made_s / num_timed if num_timed else 0.0,
        )
    threads = (f"self/task/{each}" for each in os.listdir("/proc/self/task"))
    return own._replace(train_s=sum(scheduled_s(threads)), wall_s=wall_s, busy_s=busy_s)


def read_free() -> Free:
    """Of what loaders of this process may take."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = 1 << 20 if limit == resource.RLIM_INFINITY else limit
    return Free(
        num_ranks=num_local_ranks(),
        ram_bytes=read_ram().available_bytes,
        shm_bytes=read_shm()[1],
        descriptors=most - len(os.listdir("/proc/self/fd")),
    )


def batch_size(batch: Any) -> tuple[int, int]:
    """What one batch takes in a queue: bytes, and tensors whose memory is shared by descriptors."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    by_descriptor = torch.multiprocessing.get_sharing_strategy() == "file_descriptor"  # type: ignore[no-untyped-call]
    return sum(leaf.nbytes for leaf in tensors), len(tensors) if by_descriptor else 0


def num_shards(stream: Any) -> int:
    """Of a rank, as webdataset's list of files or Hugging Face's datasets tell them; `MOST` where nothing does."""
    stages = getattr(stream, "pipeline", None)
    urls = getattr(stages[0], "urls", None) if isinstance(stages, list) and stages else None
    told = int(getattr(stream, "num_shards", getattr(stream, "n_shards", MOST)))
    return max(1, told if urls is None else len(urls) // num_ranks())
