"""The job with remedies: each examined before it is tried, and applied to what the training process trains."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from shutil import disk_usage

import torch

from loadtune.changes.trial import NUM_ROUNDS, Ways, examine
from loadtune.changes.way import Way
from loadtune.decide.bounds import RAM_SHARE, SHM_SHARE
from loadtune.host.memory import read_ram
from loadtune.records.config import TrialConfig
from loadtune.records.result import Examined
from loadtune.training.protocol import Line
from loadtune.workload.batches import Batch, map_tensors
from loadtune.workload.build import Workload


class RemediedJobs:
    """The job with any remedies; each combination is made once."""

    def __init__(self, workload: Workload, device: torch.device, line: Line) -> None:
        self._workload, self._device, self._line = workload, device, line
        is_own = "loader" in workload.own
        way = Way(loader=workload.loader, indices=workload.epoch.indices, on_device=workload.on_device)
        memory_bytes = int(min(RAM_SHARE * read_ram().available_bytes, SHM_SHARE * disk_usage("/dev/shm").free))
        self._ways = Ways(replace(way, on_gpu=device.type == "cuda", has_loader=is_own, memory_bytes=memory_bytes))

    def job(self, names: tuple[str, ...]) -> Workload:
        """Raises NotApplicableError."""
        way = self._ways.way(names)
        return replace(self._workload, loader=way.loader, on_device=way.on_device)

    def examine(self, config: TrialConfig, names: Sequence[str]) -> tuple[Examined, ...]:
        """Each of these remedies on top of those that the configuration has."""
        self._line.enter("remedies")
        examined = partial(
            examine,
            self._ways,
            config.remedies,
            batch_size=config.batch_size,
            ready=self._on_device,
            pulse=self._line.pulse,
        )
        return tuple(map(examined, names))

    def _on_device(self, way: Way, batch: Batch) -> tuple[Batch, float]:
        """(On the device, after what the way does with it there, seconds of that)."""
        there = map_tensors(batch, lambda tensor: tensor.to(self._device))
        if not way.on_device:
            return there, 0.0
        on_cuda = self._device.type == "cuda"
        wait: Callable[[], None] = partial(torch.cuda.synchronize, self._device) if on_cuda else lambda: None
        took = []
        for _ in range(1 + NUM_ROUNDS):
            wait()
            begun, ready = time.monotonic(), there
            for change in way.on_device:
                ready = change(ready)
            wait()
            took.append(time.monotonic() - begun)
        return ready, min(took)
