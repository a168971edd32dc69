"""A dataset that makes trouble where a change of the code is tried, and a stand-in for what tries it.

``python spare_rig.py TROUBLE`` starts such a process, prints ids of processes, and waits.
"""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from loadtune.records.loading import Examined, Loading, Values
from loadtune.records.statistics import Interval

CODE = "import copy\ndataset.transform = cheaper  # of a rig"
_trying: list[object] = []


def _print() -> None:
    print("printed by a dataset", flush=True)
    os.write(1, b"printed by a dataset")
    os.system("echo printed by a dataset >&2")
    warnings.warn("printed by a dataset", stacklevel=1)
    logging.getLogger().error("printed by a dataset")


def _hang() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    subprocess.Popen(["sleep", "600"])
    while True:
        time.sleep(0.01)


def _raise() -> None:
    raise KeyError("of a dataset")


def _exit() -> None:
    os._exit(3)


def _crash() -> None:
    ctypes.string_at(0)


def _look() -> None:
    info = get_worker_info()
    assert (info.id, info.num_workers, type(info.dataset)) == (0, 2, Samples)
    assert torch.get_num_threads() == 1


TROUBLES = {each.__name__[1:]: each for each in (_print, _hang, _raise, _exit, _crash, _look)}


class Samples(Dataset):
    """Each takes so many seconds of CPU time. ``trouble``: where it is tried. None: none."""

    def __init__(self, length: int = 640, seconds: float = 0.0005, trouble: str | None = None) -> None:
        self.length, self.seconds, self.trouble = length, seconds, trouble

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        if _trying and self.trouble is not None:
            TROUBLES[self.trouble]()
        return torch.full((4,), float(index))

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        install()  # in a process that was spawned


def stacked(way, is_over, too_little):
    """One change, twice as cheap. Without samples it goes on until its time is over."""
    _trying.append(way)
    begun, seen = time.process_time(), list(way.indices[:64])
    for index in seen:
        way.loader.dataset[index]
    while not seen and not is_over():
        pass
    cpu_s = (time.process_time() - begun) / max(1, len(seen))
    before, after = (Loading(sample_s=9.0, sample_cpu_s=part * cpu_s, sample_bytes=16.0) for part in (1.0, 0.5))
    yield Examined(
        name="uint8_transfer",
        before=before,
        after=after,
        cheaper=Interval(value=2.0, low=1.9, high=2.1),
        values=Values(num_samples=len(seen), most=0.018, mean=0.0003, spread=1.0),
        code=CODE,
    )


def install(put=sys.modules.__setitem__) -> None:
    """In the place of what tries changes."""
    module = ModuleType("loadtune.changes.trial")
    vars(module).update(stacked=stacked)
    put(module.__name__, module)


def spare(trouble=None, method=None, indices=range(64), **of_loader):
    from loadtune.changes.way import Way
    from loadtune.inflight.spare import Spare
    from loadtune.workload.loaders import LoaderParts

    loader = DataLoader(Samples(trouble=trouble), 8, num_workers=2, multiprocessing_context=method, **of_loader)
    way = Way(loader=LoaderParts.of(loader), indices=indices)
    return Spare(way, 2, 0.1)


def below(pid: int) -> set[int]:
    """Processes that this one started, and theirs."""
    children = set[int]()
    with suppress(OSError):  # it may end meanwhile
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            children.update(map(int, path.read_text().split()))
    return children.union(*map(below, children))


if __name__ == "__main__":
    install()
    made = spare(sys.argv[1])
    while len(found := below(os.getpid())) < 3:  # who keeps, who tries, and what the dataset started
        assert not made.poll()
    print(*found, flush=True)
    time.sleep(600)
