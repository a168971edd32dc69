"""What the trials so far say of loaders that were not run: samples/s they cannot exceed. Pure.

In: measured trials that waited for their loader, or what one sample takes at the least. Two things are taken for
granted, both of workers that have a core each: fewer workers make no more samples, and twice the workers make at most
twice as many (on an H200 machine 4, 8 and 12 workers made 429, 373 and 400/s each). A model that trains on the CPU
shares the cores with its workers, and there neither holds.
"""

from collections.abc import Callable, Iterable

from loadtune.records import LoaderConfig, Measurement, Trial, TrialConfig

WAITED = 0.3
"""A data wait from which on the loader counts as the wall: workers that keep up are seen below 0.05."""

FAR_FROM_COMPUTE = 0.7
"""Share of the compute-only rate below which the device cannot be the wall. Host time spent waiting alone says too
little: a host that has launched ahead waits for data while the device is still busy."""

ERROR = 0.2
"""A loader was seen up to a fifth slower or faster in one training run than in the next."""

NEAR = 2
"""Batches up to this many times apart are taken to cost a worker the same a sample."""


def loader_bound(
    config: TrialConfig, trials: Iterable[Trial], compute_rate: Callable[[TrialConfig], float | None]
) -> float | None:
    """Samples/s that this loader cannot exceed, widened by the error of what it is concluded from. None: not known.

    `compute_rate` is what a configuration's batch and recipe reach without a loader, at most; None where not known.
    """
    bounds = [
        _scale(trial.config.loader, config.loader) * _at_most(trial.measurement)
        for trial in trials
        if trial.measurement is not None
        and _alike(trial.config.loader, config.loader)
        and _loader_was_the_wall(trial.config, trial.measurement, compute_rate)
    ]
    return min(bounds, default=None)


def workers_bound(loader: LoaderConfig, trials: Iterable[Trial], least_sample_s: float | None) -> float | None:
    """Samples/s of so many workers that read what is cached, widened. None: not known, or a trial was faster than that.

    Without workers the training process makes the samples, at best while the device trains.
    """
    if least_sample_s is None:
        return None
    a_worker = (1 + ERROR) / least_sample_s
    rates = ((trial.config.loader, trial.measurement.samples_per_s) for trial in trials if trial.measurement)
    if any(rate > max(1, measured.num_workers) * a_worker for measured, rate in rates):
        return None
    return max(1, loader.num_workers) * a_worker


def _at_most(measurement: Measurement) -> float:
    width = measurement.half_width_fraction
    return measurement.samples_per_s * (1 + ERROR) * (1 + (ERROR if width is None else width))


def _loader_was_the_wall(
    config: TrialConfig, measurement: Measurement, compute_rate: Callable[[TrialConfig], float | None]
) -> bool:
    ceiling = compute_rate(config)
    if ceiling is None or measurement.wait_fraction < WAITED:
        return False
    return measurement.samples_per_s < FAR_FROM_COMPUTE * ceiling


def _alike(measured: LoaderConfig, asked: LoaderConfig) -> bool:
    """Whether the one says something of the other: nothing differs but the workers, and the batch a little.

    Without workers a process loads and trains in turn: that says nothing of workers, and one worker nothing of it.
    """
    if measured.num_workers == 0 or (asked.num_workers == 0 and measured.num_workers < 2):
        return False
    if not measured.batch_size <= NEAR * asked.batch_size <= NEAR * NEAR * measured.batch_size:
        return False
    return _rest(measured) == _rest(asked)


def _rest(loader: LoaderConfig) -> tuple[object, ...]:
    return loader.pin_memory, loader.prefetch_factor, loader.in_order


def _scale(measured: LoaderConfig, asked: LoaderConfig) -> float:
    return max(1.0, asked.num_workers / measured.num_workers)
