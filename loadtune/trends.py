"""Over all that was measured: whether memory grows with each sample, and where samples came from.

Filling a queue, a cache of the allocator or a worker's heap comes to an end; objects that a dataset keeps do not. So
only the later half of each measurement counts, and what grows there with every sample, in all measurements alike, is
growth that goes on.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadtune.records.config import TrialConfig
from loadtune.records.interval import students_t
from loadtune.records.measurement import Measurement
from loadtune.run import Run
from loadtune.training.process import GROWTH_ADVICE
from loadtune.units import bytes_text, count_text, percent_text, seconds_text

SHARE_OF_RAM = 0.1
"""Told is what takes more than this of the RAM in an epoch: a training lasts for ten epochs or more."""

_LEAST_BYTES, _LEAST_SHARE = 1024, 0.01
"""For each sample, and of its size: less is messages between processes, and says nothing of samples."""

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
    samples = math.fsum(num for num, _ in steps)
    if len(steps) < 2 or samples <= 0:
        return None
    rate = math.fsum(grown_bytes for _, grown_bytes in steps) / samples
    squares = math.fsum((grown_bytes - rate * num) ** 2 / num for num, grown_bytes in steps)
    error = math.sqrt(squares / (len(steps) - 1) / samples)
    return MemoryGrowth(
        of_workers=of_workers,
        bytes_per_sample=rate,
        half_width_bytes=students_t(len(steps) - 1) * error,
        longest_run=max(sum(window.num_samples for window in measured.windows) for measured in own),
    )


def _later_steps(measured: Measurement, *, of_workers: bool) -> list[tuple[float, int]]:
    """From one reading of the later half to the next: samples that were trained on, bytes that memory grew by.

    In a window samples are trained on at its mean rate. A step in which workers came or went says nothing of growth.
    """
    seen, begun_s = measured.telemetry, measured.windows[0].start_s
    if seen is None:
        return []
    later = [reading for reading in seen.memory if reading.after_s >= seen.seconds / 2]
    ends_s = [0.0, *(window.end_s - begun_s for window in measured.windows)]
    at_ends = np.cumsum([0, *(window.num_samples for window in measured.windows)])
    trained = np.interp([reading.after_s for reading in later], ends_s, at_ends).tolist()
    held = [reading.workers_bytes if of_workers else reading.main_bytes for reading in later]
    steps = [
        (trained[at + 1] - trained[at], held[at + 1] - held[at])
        for at, (before, after) in enumerate(pairwise(later))
        if before.num_workers == after.num_workers
    ]
    return [step for step in steps if step[0] > 0]


def data_source(measured: Iterable[Measurement], sample_bytes: int) -> str | None:
    """What to say. None: not known, or little was read from files: samples are made, in memory, or in mapped files."""
    num_samples = read = fetched = 0.0
    for run in measured:
        seen = run.telemetry
        if seen is None or seen.file_read_bytes_per_s is None or seen.disk_read_bytes_per_s is None:
            continue
        num_samples += run.samples_per_s * seen.seconds
        read += seen.file_read_bytes_per_s * seen.seconds
        fetched += seen.disk_read_bytes_per_s * seen.seconds
    if not num_samples or read < max(_LEAST_BYTES, _LEAST_SHARE * sample_bytes) * num_samples:
        return None
    share = min(1.0, fetched / read)
    found = f"{percent_text(share)} of the {bytes_text(read)} that were read came from storage"
    if share < 0.5:
        return (
            f"Samples were read from the page cache: {found}. The first epoch after a reboot reads them from storage "
            "and may be slower."
        )
    return f"Samples were read from storage: {found}. An epoch that finds them in the page cache may be faster."


def tell_growth(run: Run) -> None:
    """A note where memory grows, from what was measured; else from a trial that was ended for it."""
    length, ram_bytes = run.facts.dataset_length if run.facts else None, run.host.ram_limit_bytes
    own = [each for each in run.timed if not each[0].remedies]  # a change of the code loads otherwise, or from a cache
    fits = (memory_growth(own, of_workers=of_workers) for of_workers in (True, False))
    # The same dataset: where it keeps objects in workers, it keeps them without workers too.
    grown = next((fit for fit in fits if fit is not None and fit.matters(length, ram_bytes)), None)
    if grown is not None:
        run.note(_growth_text(run, grown, length))
        return
    failures = [failure for _, failure in run.failed]
    failures += [failure for finalist in run.finalists for failure in finalist.failures]
    worst = max(failures, key=lambda failure: failure.grown_bytes or 0, default=None)
    run.note(worst.message if worst is not None and worst.grown_bytes is not None else None)


def tell_source(run: Run) -> None:
    """A note where samples were read from files."""
    sample_bytes = run.facts.sample_bytes if run.facts else 0
    run.note(data_source((measured for _, measured in run.timed), sample_bytes))


def _growth_text(run: Run, fit: MemoryGrowth, length: int | None) -> str:
    """By how much, and when RAM is full. Workers that end with an epoch give their memory back."""
    who = "the workers" if fit.of_workers else "the training process"
    seen = [measured.telemetry for _, measured in run.timed if measured.telemetry]
    peak = max((telemetry.ram_used_bytes or 0 for telemetry in seen), default=0)
    reached = f" RAM in use reached {bytes_text(peak)} of {bytes_text(run.host.ram_limit_bytes)}." if peak else ""
    low, high = (fit.bytes_per_sample + sign * fit.half_width_bytes for sign in (-1, 1))
    samples = int(run.host.ram_available_bytes / fit.bytes_per_sample)
    rate = run.best.samples_per_s if run.best else max(measured.samples_per_s for _, measured in run.timed)
    kept = " if persistent_workers=True keeps the workers" if fit.of_workers and samples > (length or samples) else ""
    return (
        f"The memory of {who} grows with each sample loaded, by {bytes_text(fit.bytes_per_sample)} (95% interval "
        f"{bytes_text(low)} to {bytes_text(high)}).{reached} The {bytes_text(run.host.ram_available_bytes)} available "
        f"at the start are full after {count_text(samples)} samples{kept}, {seconds_text(samples / rate)} at "
        f"{rate:,.0f} samples/s. {GROWTH_ADVICE}"
    )
