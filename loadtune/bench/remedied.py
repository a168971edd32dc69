"""The job with remedies: applied, compared with the job without them, and its loading timed."""

import random
import time
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from loadtune.bench.protocol import Line
from loadtune.bench.samples import busy_s, one_thread
from loadtune.changes import FEWEST_EXAMINED, REMEDIES, NotApplicableError, Remedy, in_order, num_examined
from loadtune.changes.datasets import batch_of
from loadtune.records.config import TrialConfig
from loadtune.records.result import Examined, Loading
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
        def both(
            number: int, num: int, jobs: tuple[Workload, Workload] = (before, after)
        ) -> list[tuple[Batch, tuple[float, float]]]:
            made = []
            for job, loading in zip(jobs, (nullcontext, remedy.loading), strict=True):
                self._line.pulse()
                with one_thread(), loading():
                    made.append(_timed_batch(job, number, num))
            return made

        # files open and modules load meanwhile: the first times are longer
        sample_s = min(both(number, FEWEST_EXAMINED)[0][1][0] for number in range(2)) / FEWEST_EXAMINED
        num = max(num_examined(sample_s), min(config.batch_size, int(BATCH_S / max(1e-9, sample_s))))
        times: list[list[tuple[float, float]]] = [[], []]
        begun = time.monotonic()
        for number in range(NUM_ROUNDS):
            loaded = both(number, num)
            for each, (_, took) in zip(times, loaded, strict=True):
                each.append(took)
            if time.monotonic() - begun > ENOUGH_S:
                break
        (one, one_s), (other, other_s) = (
            _on(device, job, batch) for job, (batch, _) in zip((before, after), loaded, strict=True)
        )
        difference = None
        if remedy.same_samples:
            jobs = self._compared(config, remedy)
            if jobs[0] is not before or jobs[1] is not after:
                one, other = (
                    _on(device, job, batch)[0] for job, (batch, _) in zip(jobs, both(0, num, jobs), strict=True)
                )
            difference = _difference(one, other, num)
        return Examined(
            name=remedy.name,
            before=_loading(loaded[0][0], num, times[0], one_s / num),
            after=_loading(loaded[1][0], num, times[1], other_s / num),
            difference=difference,
            code=code,
        )

    def _compared(self, config: TrialConfig, remedy: Remedy) -> tuple[Workload, Workload]:
        """The jobs without and with it whose samples are compared: without what stands for other samples."""
        others = tuple(name for name in config.remedies if REMEDIES[name].same_samples)
        return remedy.compared(self.job(others)), self.job(in_order((*others, remedy.name)))


def _timed_batch(job: Workload, number: int, num: int) -> tuple[Batch, tuple[float, float]]:
    """(A batch as a worker makes it, (seconds, CPU seconds)); the same random augmentation for every job."""
    indices = random.Random(number).choices(job.epoch.indices, k=num)
    _seed(number)
    used_s, begun = busy_s(), time.monotonic()
    batch = batch_of(job, indices)
    return batch, (time.monotonic() - begun, busy_s() - used_s)


def _seed(number: int) -> None:
    import numpy as np

    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def _loading(batch: Batch, num: int, times: Sequence[tuple[float, float]], prepare_s: float) -> Loading:
    """By the quickest round: other load on the machine only slows."""
    sample_s = max(1e-9, min(seconds for seconds, _ in times) / num)
    cpu_s = max(1e-9, min(cpu for _, cpu in times) / num)
    return Loading(
        sample_s=sample_s,
        sample_cpu_s=min(cpu_s, sample_s),
        sample_bytes=max(1.0, num_bytes(batch) / num),
        prepare_s=prepare_s,
    )


def _on(device: torch.device, job: Workload, batch: Batch) -> tuple[Batch, float]:
    """(On the device, after what the job does with it there, seconds of that)."""
    there, took = map_tensors(batch, lambda tensor: tensor.to(device)), []
    ready = there
    for number in range(1 + NUM_ROUNDS if job.on_device else 1):
        _seed(number)
        begun, ready = _now(device), there
        for change in job.on_device:
            ready = change(ready)
        took.append(_now(device) - begun)
        if number == 0:
            first = ready
    return first, min(took) if job.on_device else 0.0


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
