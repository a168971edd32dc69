"""What is read once a look: clocks of whoever loads and trains, what the machine has left for workers, and what the
ranks of a job tell each other. torch is imported where a batch or a process group is there.
"""

import json
import math
import os
import resource
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import count
from statistics import fmean, median
from typing import Any, NamedTuple

from loadtune.decide.inflight import ACT, Reading
from loadtune.host.processes import scheduled_s
from loadtune.host.usable import equal_share, num_local_ranks, num_ranks, read_num_usable_cores, read_ram, read_shm
from loadtune.inflight.words import say
from loadtune.model.workers import MOST, Free, Work
from loadtune.stream.sample_table import Row
from loadtune.units import percent_text


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
    import torch
    from torch.utils._pytree import tree_leaves

    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    by_descriptor = torch.multiprocessing.get_sharing_strategy() == "file_descriptor"  # type: ignore[no-untyped-call]
    return sum(leaf.nbytes for leaf in tensors), len(tensors) if by_descriptor else 0


def num_shards(stream: Any) -> int:
    """Of a rank, as webdataset's list of files or Hugging Face's datasets tell them; `MOST` where nothing does."""
    stages = getattr(stream, "pipeline", None)
    urls = getattr(stages[0], "urls", None) if isinstance(stages, list) and stages else None
    told = int(getattr(stream, "num_shards", getattr(stream, "n_shards", MOST)))
    return max(1, told if urls is None else len(urls) // num_ranks())


# What ranks tell each other, and what each may take of the cores that they share. Each leaves a word in the store of
# torch's process group and reads those of the others: two messages in ten seconds, from a thread and a connection of
# its own. Nothing waits for a rank: one that is late or dead has its equal share, and without a process group all have.

PAUSE_S = 10.0
"""Between two messages of a rank."""
_BEFORE_READING_S = 2.0
"""Between a rank's own word and its reading of the others': they measure at the same time."""
_STALE = 4
"""Pauses after which the word of a rank counts as that of a dead one."""
_PREFIX = "loadtune/"
_SLOWER, _WAITS, _HARDLY = 1.3, 0.1, 0.05
"""Seconds a batch ÷ the median of the others, from which on a rank is named; share of the time that a rank waits and is
named; and share that the others may wait, then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What one rank says of the loader that it waits for most."""

    rank: int
    cores: str
    """The machine and the cores on it that this rank may run on; ranks with the same share them."""
    num_cores: float
    cpu_s: float | None = None
    """CPU seconds that its workers spend on a batch. None: not measured."""
    load_s: float | None = None
    """Seconds in which one of its workers loads a batch, and of those queued for a core."""
    queued_s: float = 0.0
    waiting: float = 0.0
    """Share of the time in which it waits for data."""
    is_settled: bool = False
    """Whether it changes its workers no more."""
    num_switches: int = 0
    """Times that its workers were switched. More of them need more CPU time for a batch, so figures of before and
    after a switch are not compared."""
    num_told: int = 0
    """Words so far: one that does not grow is of a rank that is gone."""


def cores_of(own: Word, words: Sequence[Word], equal: float) -> float:
    """Cores for the workers of a rank that may use ``own.num_cores``, of which ``equal`` are its equal share.

    Each training process keeps a core. Ranks step together, so the others are divided by CPU seconds a batch. A rank
    that has told nothing needs what the others need in the mean.
    """
    num_ranks = max(1, round(own.num_cores / equal))
    left = max(own.num_cores - num_ranks, own.num_cores / 2)
    here = {each.rank: each for each in words if each.cores == own.cores} | {own.rank: own}
    needs = [each.cpu_s for each in here.values() if each.cpu_s is not None]
    if own.cpu_s is None or fmean(needs) <= 0:
        return left / num_ranks
    return left * own.cpu_s / (num_ranks * fmean(needs))


def differences(words: Sequence[Word]) -> dict[int, str]:
    """Ranks that load more slowly than the others, or wait while the others do not: for people."""
    found = dict[int, str]()
    for one in sorted(words, key=lambda each: each.rank):
        loads = [each.load_s for each in words if each.rank != one.rank and each.load_s is not None]
        waits = [each.waiting for each in words if each.rank != one.rank and each.is_settled]
        if one.load_s is not None and loads and one.load_s > _SLOWER * median(loads):
            queued = one.queued_s / one.load_s
            why = f", {percent_text(queued)} of that queued for a core" if queued > 0.1 else ""
            slower = percent_text(one.load_s / median(loads) - 1)
            batch = f"{1000 * one.load_s:.0f} ms a batch{why}"
            found[one.rank] = f"rank {one.rank} loads {slower} slower than the others: {batch}"
        elif one.is_settled and waits and one.waiting > _WAITS and median(waits) < _HARDLY:
            waited, others = percent_text(one.waiting), percent_text(median(waits))
            found[one.rank] = f"rank {one.rank} waits {waited} of its time for data, the others {others}"
    return found


class Ranks:
    """This rank among the others. `say` what is new, read `cores`; both only touch memory."""

    def __init__(self, store: Any, rank: int, num_ranks: int) -> None:
        cores = f"{socket.gethostname()} {','.join(map(str, sorted(os.sched_getaffinity(0))))}"
        self.own = Word(rank=rank, cores=cores, num_cores=read_num_usable_cores())
        """What it says next."""
        self.words: dict[int, Word] = {}
        self._store, self._num_ranks = store, num_ranks
        self._cores: float | None = None
        """As they were divided last."""
        self._named: dict[int, int] = {}
        """Ranks that differ, by how often they did in a row."""
        self._heard: dict[int, tuple[Word, int]] = {}
        """The newest word of each, and how often it was heard again since."""
        self._heard_s = -math.inf
        threading.Thread(target=self._exchange, name="loadtune-ranks", daemon=True).start()

    def say(self, work: Work, reading: Reading, *, is_settled: bool, num_switches: int) -> None:
        """With the next word."""
        waiting = reading.waiting_fraction if reading.waits else 0.0
        self.own = replace(
            self.own,
            load_s=work.load_s + work.queued_s,
            cpu_s=work.cpu_s,
            queued_s=work.queued_s,
            waiting=waiting,
            is_settled=is_settled,
            num_switches=num_switches,
        )

    def cores(self) -> float:
        """That the workers of this rank may take. They are divided anew once all ranks have switched as often."""
        words = list(self.words.values())
        if self._cores is None or all(each.num_switches == self.own.num_switches for each in words):
            self._cores = cores_of(self.own, words, equal_share(self._num_ranks))
        return self._cores

    def peers_wait(self) -> bool | None:
        """Whether another rank said lately that it waits for data. None: none has said a word yet."""
        if not self.words:
            return None
        if time.monotonic() - self._heard_s > _STALE * PAUSE_S:  # the store is gone, or does not answer
            return False
        return any(each.waiting >= ACT for each in self.words.values() if each.rank != self.own.rank)

    def _exchange(self) -> None:
        with suppress(Exception):  # the store is gone: what was known stays, and no more is learnt
            for num_told in count(1):
                while self.own.cpu_s is None:
                    time.sleep(0.5)
                word = asdict(replace(self.own, num_told=num_told))
                self._store.set(f"{_PREFIX}{self.own.rank}", json.dumps(word))
                time.sleep(_BEFORE_READING_S)
                self._read()
                time.sleep(PAUSE_S - _BEFORE_READING_S)

    def _read(self) -> None:
        """The words of all ranks. The store would wait for one that has said nothing yet, so it is asked for that."""
        keys = [f"{_PREFIX}{rank}" for rank in range(self._num_ranks)]
        if not self.words and not self._store.check(keys):
            return
        for text in self._store.multi_get(keys):
            word = Word(**json.loads(text))
            before, age = self._heard.get(word.rank, (None, 0))
            self._heard[word.rank] = word, age + 1 if before == word else 0
        self._heard_s = time.monotonic()
        self.words = {rank: word for rank, (word, age) in self._heard.items() if age < _STALE}
        if self.own.rank == 0:  # one voice for all: what was so twice is said once
            found = differences(list(self.words.values()))
            self._named = {rank: self._named.get(rank, 0) + 1 for rank in found}
            for rank, text in found.items():
                if self._named[rank] == 2:
                    say(None, text)


def join() -> Ranks | None:
    """This process among those of its process group. None: there is none yet, or it has one rank."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    with suppress(Exception):
        return Ranks(distributed_c10d._get_default_store().clone(), dist.get_rank(), dist.get_world_size())
    return None
