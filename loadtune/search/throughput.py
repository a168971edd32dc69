"""The throughput model of a run: what its probes found as a `Job`, its trials as segments. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from loadtune.model.fit import Segments, points_of
from loadtune.model.resources import Job, Points
from loadtune.records.config import Precision, Recipe, TrialConfig
from loadtune.records.facts import Device, HostFacts, WorkloadFacts
from loadtune.records.measurement import ComputePoint, Measurement

WAITS = 1.5
"""Seconds of a sample ÷ its CPU seconds from which on workers wait, for storage, a network or a timer."""


def job_of(
    facts: WorkloadFacts,
    host: HostFacts,
    device: Device,
    recipes: Mapping[Precision, Recipe],
    compute_points: Sequence[ComputePoint],
) -> Job:
    """What is known before the first trial. A precision that was not timed counts as the first one that was."""
    curves = {precision: _curve(compute_points, recipe) for precision, recipe in recipes.items()}
    known = next(curve for curve in curves.values() if curve)
    return Job(
        sample_s=facts.sample_s,
        sample_cpu_s=facts.sample_s if facts.sample_cpu_s is None else facts.sample_cpu_s,
        sample_bytes=float(facts.sample_bytes),
        num_cores=float(max(1, host.num_usable_cores)),
        on_gpu=device.kind == "cuda",
        compute={str(precision): curve or known for precision, curve in curves.items()},
        syncing=frozenset(str(precision) for precision, recipe in recipes.items() if recipe.waits_each_step),
    )


def _curve(points: Sequence[ComputePoint], recipe: Recipe) -> tuple[tuple[float, float], ...]:
    """(Batch size, seconds a sample), smallest batch first; of several timings the fastest."""
    rates: dict[int, float] = {}
    for point in points:
        if point.recipe == recipe:
            rates[point.batch_size] = max(point.samples_per_s, rates.get(point.batch_size, 0.0))
    return tuple((float(size), 1 / rate) for size, rate in sorted(rates.items()))


def points_at(configs: Sequence[TrialConfig], job: Job) -> Points:
    recipes, codes = list(job.compute), [each.changes for each in job.codes]
    settings = [
        (
            config.loader.batch_size,
            config.loader.num_workers,
            config.loader.pin_memory,
            recipes.index(config.precision),
        )
        for config in configs
    ]
    return points_of(settings, [codes.index(config.remedies) for config in configs])


def segments_of(trials: Sequence[tuple[TrialConfig, Measurement]], rates: Sequence[float], job: Job) -> Segments:
    """``rates``: what each trial is to be counted with, in samples/s."""
    return Segments(
        points=points_at([config for config, _ in trials], job),
        rates=np.array(rates, float),
        make_s=np.array([_make_s(config, measured) for config, measured in trials]),
        device_s=np.array([_device_s(measured) for _, measured in trials]),
        pin_s=np.array([_pin_s(config, measured) for config, measured in trials]),
        cpu_s=np.array([_cpu_s(config, measured, job) for config, measured in trials]),
        num=np.ones(len(trials)),
    )


def _make_s(config: TrialConfig, measured: Measurement) -> float:
    """Wall seconds for a sample of a worker, or of the training process with 0 workers; NaN where that was not seen.

    Without workers training waits for the loader as long as that takes, and, where it pins, for that too.
    """
    if not config.loader.num_workers and not config.loader.pin_memory:
        num_samples = sum(window.num_samples for window in measured.windows)
        return sum(window.wait_s for window in measured.windows) / num_samples or float("nan")
    num_made = sum(worker.num_made for worker in measured.workers)
    if not num_made:
        return float("nan")
    return sum(worker.made_s for worker in measured.workers) / num_made / config.batch_size


def _device_s(measured: Measurement) -> float:
    """Seconds a sample in which the device copied and computed; NaN where that was not measured."""
    windows = measured.windows
    if any(window.copy_s is None or window.compute_s is None for window in windows):
        return float("nan")
    busy_s = sum((window.copy_s or 0.0) + (window.compute_s or 0.0) for window in windows)
    return busy_s / sum(window.num_samples for window in windows)


def _pin_s(config: TrialConfig, measured: Measurement) -> float:
    """Seconds a sample of the pinning thread, over the windows in which batches were always queued for it; NaN where
    there are none, or it pinned nothing."""
    busy = [window for window in measured.windows if window.num_pinned and (window.least_unpinned or 0) > 0]
    num_pinned = sum(window.num_pinned or 0 for window in busy)
    if not num_pinned or not config.loader.pin_memory or not config.loader.num_workers:
        return float("nan")
    return sum(window.seconds for window in busy) / num_pinned / config.batch_size


def _cpu_s(config: TrialConfig, measured: Measurement, job: Job) -> float:
    """CPU seconds a sample of the workers; NaN where there are none, it was not read, or samples hardly wait: then
    `_make_s` is as much."""
    seen, hardly_waits = measured.telemetry, job.sample_s < WAITS * job.sample_cpu_s
    if not config.loader.num_workers or hardly_waits or seen is None or not seen.workers_cpu_cores:
        return float("nan")
    return seen.workers_cpu_cores / measured.samples_per_s
