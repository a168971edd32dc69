"""Whether memory grows with each sample that is loaded, over all that was measured. Pure.

Filling a queue, a cache of the allocator or a worker's heap comes to an end; objects that a dataset keeps do not. So
only the later half of each measurement counts, and what grows there with every sample, in all measurements alike, is
growth that goes on.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadtune.records import Measurement, MemoryReading, TrialConfig
from loadtune.records.intervals import students_t

SHARE_OF_RAM = 0.1
"""Told is what takes more than this of the RAM in an epoch: a training lasts for ten epochs or more."""

_SURE = 2.0
"""Times the 95% interval that the growth is above 0 by. Runs are looked at all the time, and one in forty of them would
else be told of noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGrowth:
    """Memory that processes take with each sample and do not give back."""

    of_workers: bool
    """False: of the training process, at 0 workers."""
    bytes_per_sample: float
    half_width_bytes: float
    """Of the 95% interval."""
    longest_run: int
    """Samples of the measurement that had most."""

    def matters(self, dataset_length: int | None, ram_bytes: int) -> bool:
        """Whether an epoch of it, or one measurement, takes a considerable share of the RAM."""
        sure = self.bytes_per_sample - _SURE * self.half_width_bytes
        return sure * max(dataset_length or 0, self.longest_run) > SHARE_OF_RAM * ram_bytes


def memory_growth(timed: Iterable[tuple[TrialConfig, Measurement]], *, of_workers: bool) -> MemoryGrowth | None:
    """Over the measurements with workers, or those without. None: too little was read to tell.

    Each step from one reading to the next is a sample of the growth: memory that wanders, as a heap does, then makes
    the interval wide, where a line through the readings would take it for a trend.
    """
    own = [measured for config, measured in timed if (config.loader.num_workers > 0) == of_workers]
    steps = [step for measured in own for step in _later_steps(measured, of_workers=of_workers)]
    samples = math.fsum(step.num_samples for step in steps)
    if len(steps) < 2 or samples <= 0:
        return None
    rate = math.fsum(step.grown_bytes for step in steps) / samples
    squares = math.fsum((step.grown_bytes - rate * step.num_samples) ** 2 / step.num_samples for step in steps)
    error = math.sqrt(squares / (len(steps) - 1) / samples)
    return MemoryGrowth(
        of_workers=of_workers,
        bytes_per_sample=rate,
        half_width_bytes=students_t(len(steps) - 1) * error,
        longest_run=max(sum(window.num_samples for window in measured.windows) for measured in own),
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """From one reading to the next."""

    num_samples: float
    grown_bytes: int


def _later_steps(measured: Measurement, *, of_workers: bool) -> list[_Step]:
    """Of the later half. A step in which workers came or went says nothing of growth."""
    seen = measured.telemetry
    if seen is None:
        return []
    begun_s = measured.windows[0].start_s
    later = [reading for reading in seen.memory if reading.after_s >= seen.seconds / 2]
    steps = [
        _Step(
            _trained_at(measured, begun_s + after.after_s) - _trained_at(measured, begun_s + before.after_s),
            _held(after, of_workers) - _held(before, of_workers),
        )
        for before, after in pairwise(later)
        if before.num_workers == after.num_workers
    ]
    return [step for step in steps if step.num_samples > 0]


def _held(reading: MemoryReading, of_workers: bool) -> int:
    return reading.workers_bytes if of_workers else reading.main_bytes


def _trained_at(measured: Measurement, at_s: float) -> float:
    """Samples trained on by this moment: in a window at its mean rate."""
    ends = [window.end_s for window in measured.windows]
    index = min(bisect_right(ends, at_s), len(ends) - 1)
    window = measured.windows[index]
    before: Sequence[int] = [each.num_samples for each in measured.windows[:index]]
    return sum(before) + window.num_samples * min(1.0, max(0.0, (at_s - window.start_s) / window.seconds))
