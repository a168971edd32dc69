"""Time saving a checkpoint with no worker there, and in the midst of training with a loader's workers running."""

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from loadtune.bench.endless_loader import EndlessLoader
from loadtune.bench.line import Line
from loadtune.bench.training import Trainer
from loadtune.records import LoaderConfig, SavingCost, TrialFailure
from loadtune.units import bytes_text
from loadtune.workload import Batch, Workload

_MAX_SAVES = 3
# A folder that a checkpoint would fill by more than this is not written to.
_MOST_OF_FREE = 0.5
# At the 1 to 2 GB/s of a page cache some three seconds; three saves are the least that it takes.
_MOST_BYTES = 4 << 30


def time_saving(
    trainer: Trainer,
    batch: Batch,
    workload: Workload,
    config: LoaderConfig,
    folder: Path,
    seconds: float,
    line: Line,
) -> SavingCost | TrialFailure:
    """Save into files in `folder`; each way at least once, further times within `seconds`.

    The files never have a name where the system offers that (Linux), and lose it at once elsewhere: whatever ends this
    process, none stays. A failure where the state is too large for that. `batch` is resident on the device.
    """
    line.enter("saving")
    trainer.step(batch)  # an optimizer has no state before its first step
    state = trainer.state()
    num_bytes = _num_bytes(state)
    most = min(_MOST_BYTES, _MOST_OF_FREE * shutil.disk_usage(folder).free)
    if num_bytes > most:
        may = f"to be timed in {folder} it may take {bytes_text(most)} at most"
        message = f"A checkpoint takes {bytes_text(num_bytes)}; {may}."
        return TrialFailure(kind="unsupported", phase="saving", message=message)
    until = time.monotonic() + seconds
    saver = _Saver(trainer, folder, line)
    saver.save()  # uncounted: a process's first is the slowest
    alone_s = [saver.save()]
    while len(alone_s) < _MAX_SAVES and time.monotonic() + max(alone_s) < until - seconds / 2:
        alone_s.append(saver.save())
    loader = EndlessLoader(workload, config, table=line.samples)
    beside_s = _beside_workers(saver, trainer, loader, config, until, line)
    return SavingCost(
        num_workers=config.num_workers,
        checkpoint_bytes=num_bytes,
        alone_s=tuple(alone_s),
        beside_workers_s=tuple(beside_s),
    )


class _Saver:
    def __init__(self, trainer: Trainer, folder: Path, line: Line) -> None:
        self._trainer, self._folder, self._line = trainer, folder, line

    def save(self) -> float:
        """Seconds of one save, the device idle before."""
        self._trainer.synchronize()
        started = time.monotonic()
        with tempfile.TemporaryFile(dir=self._folder) as file:
            torch.save(self._trainer.state(), file)
        took = time.monotonic() - started
        self._line.pulse()
        return took


def _beside_workers(
    saver: _Saver, trainer: Trainer, loader: EndlessLoader, config: LoaderConfig, until: float, line: Line
) -> list[float]:
    """Saves between rounds of training steps, so that the workers are as busy as training keeps them."""
    beside_s: list[float] = []
    try:
        while len(beside_s) < _MAX_SAVES and (not beside_s or time.monotonic() + max(beside_s) < until):
            for _ in range(max(1, config.num_workers)):
                trainer.step(trainer.to_device(loader.next_batch()))
                line.pulse()
            beside_s.append(saver.save())
    finally:
        loader.close()
    return beside_s


def _num_bytes(state: Any) -> int:
    """Of all tensors in nested dicts and lists."""
    if isinstance(state, torch.Tensor):
        return state.nbytes
    if isinstance(state, dict):
        return sum(map(_num_bytes, state.values()))
    return sum(map(_num_bytes, state)) if isinstance(state, (list, tuple)) else 0
