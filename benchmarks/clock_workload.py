"""A loader and a step that sleep for as long as a shared file says, and log what they did: the clock's known truth.

Imported in the bench and its workers, which `folder` reaches through the environment. One process serves every cell of
the benchmark, because the times are read from the file for each sample and each step.
"""

import mmap
import os
import struct
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

FOLDER = "LOADTUNE_CLOCK_FOLDER"
LENGTH = 1 << 20  # no epoch ends within a cell
_PAUSE_S = 0.03  # what collating, handing over and taking the next takes is less, mostly also in company
_TIMES = struct.Struct("3d")
_ENTRY = struct.Struct("3d")


class Times:
    """Seconds a sample takes, seconds a step takes, and those the next step takes once; shared by every process."""

    def __init__(self, folder: Path) -> None:
        path = folder / "times"
        if not path.exists():
            path.write_bytes(_TIMES.pack(0.0, 0.0, 0.0))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _TIMES.size)

    def set(self, sample_s: float, step_s: float, once_s: float = 0.0) -> None:
        _TIMES.pack_into(self._shared, 0, sample_s, step_s, once_s)

    @property
    def sample_s(self) -> float:
        return float(_TIMES.unpack_from(self._shared)[0])

    def take_step_s(self) -> float:
        """What this step takes; the first after `set` takes ``once_s`` instead."""
        sample_s, step_s, once_s = _TIMES.unpack_from(self._shared)
        if once_s:
            self.set(sample_s, step_s)
        return float(once_s or step_s)


class Pace:
    """Sleeps until a time after the last time it slept until, so that other work of the process, and what a busy
    machine adds to it, comes out of the sleep: the rate stays what it is in the company of other programs.

    After a pause the time begins anew: making up for that would be faster than the rate.
    """

    def __init__(self) -> None:
        self._until = 0.0

    def sleep(self, seconds: float) -> None:
        now = time.monotonic()
        self._until = (self._until if now - self._until < _PAUSE_S else now) + seconds
        time.sleep(max(0.0, self._until - now))


class Log:
    """When something was made, how many samples it was, and by which process; they all append to one file."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / name, os.O_CREAT | os.O_RDWR | os.O_APPEND)

    def add(self, count: int) -> None:
        os.write(self._file, _ENTRY.pack(time.monotonic(), count, os.getpid()))

    def per_s(self, begun: float, ended: float) -> float:
        """Samples a second in that span: of each process from its first entry to its last, all of them together.

        Entries of processes that are in step come in bursts, and a plain count would depend on how many bursts the
        span's ends cut off.
        """
        entries = np.frombuffer(os.pread(self._file, os.fstat(self._file).st_size, 0)).reshape(-1, 3)
        entries = entries[(entries[:, 0] > begun) & (entries[:, 0] <= ended)]
        makers = (entries[entries[:, 2] == process] for process in np.unique(entries[:, 2]))
        return float(sum(own[1:, 1].sum() / (own[-1, 0] - own[0, 0]) for own in makers if len(own) > 1))

    def clear(self) -> None:
        os.ftruncate(self._file, 0)


def _folder() -> Path:
    return Path(os.environ[FOLDER])


class SleepingSamples(Dataset[tuple[torch.Tensor, int]]):
    """Each batch is one sleep, logged when it ends: a sleep a sample would keep the cores busy."""

    def __init__(self) -> None:
        self._times, self._log, self._pace = Times(_folder()), Log(_folder(), "samples"), Pace()

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        self._pace.sleep(self._times.sample_s * len(indices))
        self._log.add(len(indices))
        return [(torch.zeros(4), index % 2) for index in indices]


class SleepingStep(nn.Module):
    """A forward pass that sleeps, logged when it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self._times, self._log, self._pace = Times(_folder()), Log(_folder(), "steps"), Pace()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self._pace.sleep(self._times.take_step_s())
        self._log.add(len(inputs))
        logits: torch.Tensor = self.layer(inputs)
        return logits
