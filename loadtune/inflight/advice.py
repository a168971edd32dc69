"""Changes of the user's code for one loader: tried once beside the loop at rest, and predicted."""

import time
from collections import deque
from contextlib import suppress
from itertools import chain
from typing import Any

import torch

from loadtune.changes.way import Way
from loadtune.decide import advice as decide
from loadtune.decide.advice import AtRest, Seen, Slices
from loadtune.decide.bounds import RAM_SHARE, SHM_SHARE
from loadtune.errors import raised_by_handler
from loadtune.inflight import readings
from loadtune.inflight.account import Account
from loadtune.inflight.spare import Spare
from loadtune.stream.unchanged import shared_state
from loadtune.workload.loaders import LoaderParts

_NUM_BATCHES, _ENOUGH = 16, 64
"""Newest batches whose samples are tried, and samples that are enough where there are fewer batches."""


class Advice:
    """Of one loader. It is over before it begins where nobody wants it."""

    def __init__(self, account: Account, *, is_wanted: bool, may_run_s: float) -> None:
        self.account, self.is_over, self._may_run_s = account, not is_wanted, may_run_s
        self.drawn: deque[Any] = deque(maxlen=_NUM_BATCHES)
        """Index batches that were delivered."""
        self.spare: Spare | None = None
        """While something is tried."""

    def parts_of(self, loader: Any) -> tuple[Any, LoaderParts] | None:
        """How workers are started, and what they load. None: nothing is tried with it."""
        with suppress(Exception):  # of a loader of a class of its own
            if not self.is_over:
                return loader.multiprocessing_context, LoaderParts.of(loader)
        return None

    def begin(self, loop: AtRest, loader: Any, refusal: str | None, *, is_settled: bool) -> None:
        """If that is due. ``loader``: its `parts_of`. ``refusal``: why no other process may read its dataset."""
        batches = [each if isinstance(each, list | tuple) else [each] for each in self.drawn]
        indices = list(chain.from_iterable(batches))
        if self.is_over or loader is None or (len(indices) < _ENOUGH and len(batches) < _NUM_BATCHES):
            return
        do, reason = decide.next_step(Seen(is_settled=is_settled, hoped=loop.hoped(), refusal=refusal))
        self.account.changes_reason = reason
        parts = loader[1]
        shared = shared_state(parts.dataset, parts.collate_fn, parts.worker_init_fn) if do == "begin" else None
        if shared is not None:
            do, self.is_over = "nothing", True
            self.account.changes_reason = f"processes share a part of the dataset ({shared})"
        if do == "begin":
            self._loop, self._slices = loop, Slices.of(loop.total_s, loop.num_workers)
            try:
                way = _way(loader[1], indices)
                gpu_uuid = _gpu_uuid() if way.on_gpu else None
                nice, slice_s = decide.niceness(loop.loop.cores), self._slices.slice_s
                self.spare = Spare(loader[0], way, max(1, loop.num_workers), slice_s, gpu_uuid, nice)
            except Exception as error:  # the system gives no process
                if raised_by_handler(error):
                    raise
                self.is_over, self.account.changes_reason = True, f"its process did not start ({error})"

    def step(self, seconds: float, *, is_settled: bool) -> bool:
        """A step of the loop, while something is tried. Whether that has ended, with changes that are worth a word."""
        spare, account, now = self.spare, self.account, time.monotonic()
        assert spare is not None
        is_over = spare.poll()
        if len(spare.found) > len(account.changes):
            account.changes = list(spare.found)
            account.changes_gain = self._loop.gain(spare.found, spare.gpu_busy)
        if not is_over:
            is_due = self._slices.add(now, seconds)
            rates = self._slices.rates if is_due else ()
            ran_s = now - spare.begun_s
            seen = Seen(is_settled=is_settled, ran_s=ran_s, may_run_s=self._may_run_s, rates=rates)
            do, reason = decide.next_step(seen)
            if do == "stop" and not self.is_over:
                self.is_over, account.changes_reason = True, reason
                spare.stop()
            return False
        self.spare, self.is_over = None, True
        account.changes_reason = account.changes_reason or spare.reason
        if not spare.found:
            account.changes_reason = account.changes_reason or "no change that applies makes loading much cheaper"
        return (account.changes_gain or 0.0) >= decide.TELLS


def _way(parts: LoaderParts, indices: list[Any]) -> Way:
    num_samples = 0
    with suppress(Exception):  # of a dataset without a length
        num_samples = len(parts.dataset)
    free = readings.read_free()
    memory_bytes = int(min(RAM_SHARE * free.ram_bytes, SHM_SHARE * free.shm_bytes) / free.num_ranks)
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return Way(loader=parts, indices=indices, num_samples=num_samples, memory_bytes=memory_bytes, on_gpu=on_gpu)


def _gpu_uuid() -> str | None:
    with suppress(Exception):  # no NVIDIA GPU
        return f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    return None
