"""What the CUDA allocator and NVML say between two lines. Nothing is initialised for it: no CUDA in use, no reading."""

import time
from typing import NamedTuple, Protocol

import torch

from loadtune.host.gpu import read_gpus, read_memory_used_bytes

_NVML_EVERY_S = 0.01
"""NVML holds a driver lock while it answers: while reserved memory does not change, 100 questions a second at most."""


class CudaReading(NamedTuple):
    allocated_bytes: int
    peak_bytes: int
    """Highest allocated since `restart_peak`."""


class Meter(Protocol):
    """A GPU's counters; tests give their own."""

    device: str | None

    def read(self) -> CudaReading | None: ...

    def restart_peak(self) -> None: ...

    def used_bytes(self) -> int | None: ...


class CudaMeter:
    """Of the device that is current when CUDA is first seen in use; its allocator's peak counter is started anew."""

    def __init__(self) -> None:
        self.device: str | None = None
        self._index = 0
        self._uuid: str | None = None
        self._used: int | None = None
        self._reserved = -1
        self._asked_at = 0.0

    def read(self) -> CudaReading | None:
        if self.device is None and not self._found():
            return None
        # The flat `memory_stats` sorts 100 figures for every question.
        stats = torch.cuda.memory_stats_as_nested_dict(self._index)
        allocated = stats["allocated_bytes"]["all"]
        self._ask_nvml(stats["reserved_bytes"]["all"]["current"])
        return CudaReading(int(allocated["current"]), int(allocated["peak"]))

    def restart_peak(self) -> None:
        if self.device is not None:
            torch.cuda.reset_peak_memory_stats(self._index)

    def used_bytes(self) -> int | None:
        """As NVML answered when reserved memory last changed, or at most 10 ms before the last reading."""
        return self._used

    def _found(self) -> bool:
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return False
        self._index = torch.cuda.current_device()
        gpus = read_gpus()
        self._uuid = gpus[self._index].uuid if self._index < len(gpus) else None
        self.device = f"cuda:{self._index}"
        return True

    def _ask_nvml(self, reserved_bytes: int) -> None:
        now = time.monotonic()
        if self._uuid and (reserved_bytes != self._reserved or now - self._asked_at > _NVML_EVERY_S):
            self._used = read_memory_used_bytes(self._uuid)
            self._reserved, self._asked_at = reserved_bytes, now
