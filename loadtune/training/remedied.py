"""The job with remedies: applied, compared with the job without them, and its loading timed."""

import random
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch

from loadtune.changes import FEWEST_EXAMINED, REMEDIES, NotApplicableError, Remedy, in_order, num_examined
from loadtune.changes.datasets import batch_of
from loadtune.records.config import TrialConfig
from loadtune.records.result import Examined, Loading
from loadtune.training.protocol import Line
from loadtune.training.samples import busy_s, one_thread
from loadtune.workload import Batch, Workload, last_line, map_tensors, num_bytes, tensors_of

NUM_ROUNDS = 3
"""Times that a batch is loaded with and without the remedy, in turn."""

BATCH_S = 0.1
"""A timed batch is as large as that of the configuration, if it loads in about so many seconds at the most."""

ENOUGH_S = 1.5
"""After so many seconds of loading the samples of a remedy, no other round begins."""


class RemediedJobs:
    """The job with any remedies; each combination is made once."""

    def __init__(self, workload: Workload, line: Line) -> None:
        self._line = line
        self._made: dict[tuple[str, ...], Workload] = {(): workload}

    def job(self, names: tuple[str, ...]) -> Workload:
        """Raises NotApplicableError."""
        if names not in self._made:
            self._made[names] = REMEDIES[names[-1]].apply(self.job(names[:-1]))
        return self._made[names]

    def examine(self, config: TrialConfig, names: Sequence[str], device: torch.device) -> tuple[Examined, ...]:
        """Each of these remedies on top of those that the configuration has."""
        self._line.enter("remedies")
        return tuple(self._examine(config, REMEDIES[name], device) for name in names)

    def _examine(self, config: TrialConfig, remedy: Remedy, device: torch.device) -> Examined:
        self._line.pulse()
        before = self.job(config.remedies)
        if remedy.loads and (before.loader.batches_are_ready or not before.epoch.indices):
            return Examined(name=remedy.name, refused="its samples are not read one by one, by their indices")
        try:
            after = self.job(in_order((*config.remedies, remedy.name)))
            code = remedy.own_code(before)
            if not remedy.loads:
                return Examined(name=remedy.name, code=code)
            return self._compare(remedy, before, after, code, device, config)
        except NotApplicableError as error:
            return Examined(name=remedy.name, refused=str(error))
        except Exception as error:  # what is wrong with one remedy is no end of the run
            return Examined(name=remedy.name, refused=f"it could not be applied: {last_line(error)}")

    def _compare(
        self, remedy: Remedy, before: Workload, after: Workload, code: str, device: torch.device, config: TrialConfig
    ) -> Examined:
        jobs = (before, after)
        # files open and modules load meanwhile: the first times are longer
        first = [self._load(remedy, jobs, number, FEWEST_EXAMINED)[0] for number in range(2)]
        sample_s = min(loaded.took.wall for loaded in first) / FEWEST_EXAMINED
        num = max(num_examined(sample_s), min(config.batch_size, int(BATCH_S / max(1e-9, sample_s))))
        seconds: tuple[list[_Seconds], ...] = ([], [])
        begun = time.monotonic()
        for number in range(NUM_ROUNDS):
            loaded = self._load(remedy, jobs, number, num)
            for each, made in zip(seconds, loaded, strict=True):
                each.append(made.took)
            if time.monotonic() - begun > ENOUGH_S:
                break
        prepared = [_on(device, job, made.batch) for job, made in zip(jobs, loaded, strict=True)]
        one, other = (batch for batch, _ in prepared)
        if (compared := remedy.compared(before)) is not before:
            one, _ = _on(device, compared, self._load(remedy, (compared, after), number, num)[0].batch)
        difference = _difference(one, other, num)
        loadings = [
            _loading(made.batch, num, took, prepare_s / num)
            for made, took, (_, prepare_s) in zip(loaded, seconds, prepared, strict=True)
        ]
        return Examined(name=remedy.name, before=loadings[0], after=loadings[1], difference=difference, code=code)

    def _load(
        self, remedy: Remedy, jobs: tuple[Workload, Workload], number: int, num: int
    ) -> "tuple[_Loaded, _Loaded]":
        """A batch as a worker makes it, without the remedy and with it; the same random augmentation for both."""
        made = []
        for job, loading in zip(jobs, (nullcontext, remedy.loading), strict=True):
            self._line.pulse()
            indices = random.Random(number).choices(job.epoch.indices, k=num)
            with one_thread(), loading():
                _seed(number)
                used_s, begun = busy_s(), time.monotonic()
                batch = batch_of(job, indices)
                made.append(_Loaded(batch, _Seconds(time.monotonic() - begun, busy_s() - used_s)))
        return made[0], made[1]


class _Seconds(NamedTuple):
    wall: float
    cpu: float


class _Loaded(NamedTuple):
    batch: Batch
    took: _Seconds


def _seed(number: int) -> None:
    import numpy as np

    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def _loading(batch: Batch, num: int, rounds: Sequence[_Seconds], prepare_s: float) -> Loading:
    """By the quickest round: other load on the machine only slows."""
    sample_s = max(1e-9, min(took.wall for took in rounds) / num)
    cpu_s = max(1e-9, min(took.cpu for took in rounds) / num)
    return Loading(
        sample_s=sample_s,
        sample_cpu_s=min(cpu_s, sample_s),
        sample_bytes=max(1.0, num_bytes(batch) / num),
        prepare_s=prepare_s,
    )


def _on(device: torch.device, job: Workload, batch: Batch) -> tuple[Batch, float]:
    """(On the device, after what the job does with it there, seconds of that)."""
    there = map_tensors(batch, lambda tensor: tensor.to(device))
    if not job.on_device:
        return there, 0.0
    took = []
    for _ in range(1 + NUM_ROUNDS):
        begun, ready = _now(device), there
        for change in job.on_device:
            ready = change(ready)
        took.append(_now(device) - begun)
    return ready, min(took)


def _now(device: torch.device) -> float:
    """With the device idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


def _difference(one: Batch, other: Batch, num_samples: int) -> str:
    """How the values that are trained on differ, in words."""
    largest, total, num = 0.0, 0.0, 0
    for before, after in zip(tensors_of(one), tensors_of(other), strict=True):
        if before.shape != after.shape or before.dtype != after.dtype:
            raise NotApplicableError(
                f"a batch would hold {after.dtype} of {tuple(after.shape)} instead of {before.dtype} of "
                f"{tuple(before.shape)}"
            )
        same = (before == after) | (before.isnan() & after.isnan())
        apart = torch.where(same, 0.0, (before.double() - after.double()).abs())
        if not apart.isfinite().all():
            raise NotApplicableError("some values of a sample would not be finite")
        if apart.numel():
            largest, total, num = max(largest, float(apart.max())), total + float(apart.sum()), num + apart.numel()
    if largest == 0.0:
        return "none (samples are equal to the last bit)"
    return f"in {num_samples} samples, values differ by {largest:.2g} at most, by {total / num:.2g} in the mean"
