"""The job with remedies: applied, compared with the job without them, and its loading timed."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from loadtune.changes.remedies import FEWEST_EXAMINED, REMEDIES, NotApplicableError, Remedy, in_order, num_examined
from loadtune.records.config import TrialConfig
from loadtune.records.result import Examined, Loading
from loadtune.training.describe import busy_s, one_thread
from loadtune.training.protocol import Line
from loadtune.workload.batches import Batch, map_tensors, num_bytes, tensors_of
from loadtune.workload.build import Workload
from loadtune.workload.samples import batch_of
from loadtune.workload.user_code import last_line

NUM_ROUNDS = 3
"""Times that a batch is loaded with and without the remedy, in turn."""

BATCH_S = 0.1
"""A timed batch is as large as that of the configuration, if it loads in about so many seconds at the most."""

ENOUGH_S = 1.5
"""After so many seconds of loading the samples of a remedy, no other round begins."""


class RemediedJobs:
    """The job with any remedies; each combination is made once."""

    def __init__(self, workload: Workload, device: torch.device, line: Line) -> None:
        self._device, self._line = device, line
        self._made: dict[tuple[str, ...], Workload] = {(): workload}

    def job(self, names: tuple[str, ...]) -> Workload:
        """Raises NotApplicableError."""
        if names not in self._made:
            self._made[names] = REMEDIES[names[-1]].apply(self.job(names[:-1]))
        return self._made[names]

    def examine(self, config: TrialConfig, names: Sequence[str]) -> tuple[Examined, ...]:
        """Each of these remedies on top of those that the configuration has."""
        self._line.enter("remedies")
        return tuple(self._examine(config, REMEDIES[name]) for name in names)

    def _examine(self, config: TrialConfig, remedy: Remedy) -> Examined:
        self._line.pulse()
        before = self.job(config.remedies)
        if remedy.loads and (before.loader.batches_are_ready or not before.epoch.indices):
            return Examined(name=remedy.name, refused="its samples are not read one by one, by their indices")
        try:
            after = self.job(in_order((*config.remedies, remedy.name)))
            code = remedy.own_code(before)
            seen = self._compared(remedy, before, after, config.batch_size) if remedy.loads else {}
            return Examined(name=remedy.name, code=code, **seen)
        except NotApplicableError as error:
            return Examined(name=remedy.name, refused=str(error))
        except Exception as error:  # what is wrong with one remedy is no end of the run
            return Examined(name=remedy.name, refused=f"it could not be applied: {last_line(error)}")

    def _compared(self, remedy: Remedy, before: Workload, after: Workload, batch_size: int) -> dict[str, Any]:
        """Under the names that `Examined` has for them."""
        # Files open and modules load meanwhile: the first times are longer.
        first = [self._load(before, nullcontext(), number, FEWEST_EXAMINED)[1] for number in range(2)]
        self._load(after, remedy.loading(), 0, FEWEST_EXAMINED)
        sample_s = min(wall_s for wall_s, _ in first) / FEWEST_EXAMINED
        num = max(num_examined(sample_s), min(batch_size, int(BATCH_S / max(1e-9, sample_s))))
        plain, changed = list[tuple[float, float]](), list[tuple[float, float]]()
        begun = time.monotonic()
        while len(plain) < NUM_ROUNDS and time.monotonic() - begun <= ENOUGH_S:
            number = len(plain)
            one, took = self._load(before, nullcontext(), number, num)
            plain.append(took)
            other, took = self._load(after, remedy.loading(), number, num)
            changed.append(took)
        num_bytes_before, num_bytes_after = num_bytes(one), num_bytes(other)
        one, before_s = _on(self._device, before, one)
        other, after_s = _on(self._device, after, other)
        if (compared := remedy.compared(before)) is not before:
            one, _ = _on(self._device, compared, self._load(compared, nullcontext(), number, num)[0])
        return {
            "before": _loading(plain, num, num_bytes_before, before_s),
            "after": _loading(changed, num, num_bytes_after, after_s),
            "difference": _difference(one, other, num),
        }

    def _load(
        self, job: Workload, loading: AbstractContextManager[None], number: int, num: int
    ) -> tuple[Batch, tuple[float, float]]:
        """A batch as a worker makes it, (seconds, CPU seconds). A number gives the same samples and augmentation."""
        self._line.pulse()
        indices = random.Random(number).choices(job.epoch.indices, k=num)
        with one_thread(), loading:
            random.seed(number)
            np.random.seed(number)
            torch.manual_seed(number)
            used_s, begun = busy_s(), time.monotonic()
            batch = batch_of(job, indices)
            return batch, (time.monotonic() - begun, busy_s() - used_s)


def _loading(rounds: Sequence[tuple[float, float]], num: int, batch_bytes: int, prepare_s: float) -> Loading:
    """By the quickest round: other load on the machine only slows."""
    sample_s = max(1e-9, min(wall_s for wall_s, _ in rounds) / num)
    cpu_s = min(sample_s, max(1e-9, min(cpu_s for _, cpu_s in rounds) / num))
    sample_bytes = max(1.0, batch_bytes / num)
    return Loading(sample_s=sample_s, sample_cpu_s=cpu_s, sample_bytes=sample_bytes, prepare_s=prepare_s / num)


def _on(device: torch.device, job: Workload, batch: Batch) -> tuple[Batch, float]:
    """(On the device, after what the job does with it there, seconds of that)."""
    there = map_tensors(batch, lambda tensor: tensor.to(device))
    if not job.on_device:
        return there, 0.0
    wait: Callable[[], None] = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    took = []
    for _ in range(1 + NUM_ROUNDS):
        wait()
        begun, ready = time.monotonic(), there
        for change in job.on_device:
            ready = change(ready)
        wait()
        took.append(time.monotonic() - begun)
    return ready, min(took)


def _difference(one: Batch, other: Batch, num_samples: int) -> str:
    """How the values that are trained on differ, in words."""
    apart = [torch.zeros(0, dtype=torch.float64)]
    for before, after in zip(tensors_of(one), tensors_of(other), strict=True):
        if before.shape != after.shape or before.dtype != after.dtype:
            raise NotApplicableError(
                f"a batch would hold {after.dtype} of {tuple(after.shape)} instead of {before.dtype} of "
                f"{tuple(before.shape)}"
            )
        same = (before == after) | (before.isnan() & after.isnan())
        apart.append(torch.where(same, 0.0, (before.double() - after.double()).abs()).flatten().cpu())
    every = torch.cat(apart)
    if not every.isfinite().all():
        raise NotApplicableError("some values of a sample would not be finite")
    if not every.any():
        return "none (samples are equal to the last bit)"
    return f"values of {num_samples} samples differ by at most {every.max():.2g}, on average by {every.mean():.2g}"
