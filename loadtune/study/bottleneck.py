"""What limits the winner, and what would help: the throughput model fitted to all that a run measured. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import bdtrc

from loadtune.model.answers import allowed, change, explained, formed, limits, predicted
from loadtune.model.fit import ThroughputModel
from loadtune.model.resources import Job
from loadtune.records import (
    Bottleneck,
    ChangeKind,
    Finalist,
    Measurement,
    Objective,
    PredictedChange,
    RooflinePoint,
    Trial,
    TrialConfig,
    WorkloadFacts,
)
from loadtune.study.late_batches import usually_late
from loadtune.study.throughput import points_at, segments_of

MISSED = 0.05
"""Predictions are said to miss where so many misses would be less likely than this, if each had its 5%."""

UNEXPLAINED = 1.25
"""Ratio between what the resources give and what was measured, either way, from which on no resource is named: a rate
that far from the measured one would contradict it."""

WORTH = 1.03
"""Gain of a change that is worth a line."""

WIDE_FLOATS = ("float32", "float64")
"""Whose elements would be smaller in 16 bits."""

IMAGE_DIMENSIONS = 3
"""Of a sample: (C, H, W). Floats of that shape were mostly bytes once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a run measured, as far as the model knows of it."""

    job: Job
    facts: WorkloadFacts
    measured: Sequence[tuple[TrialConfig, Measurement]]
    """Trials, and runs of the confirmation. The winner is among them."""
    trials: Sequence[Trial]
    num_workers: Sequence[int]
    """Of the roofline, fewest first; the winner's own is among them."""
    objective: Objective = "samples-per-s"


def bottleneck(known: Known, winner: Finalist) -> Bottleneck:
    """Of the winner; it has to be among what was measured."""
    rates = [measurement.samples_per_s for _, measurement in known.measured]
    model = ThroughputModel(known.job, segments_of(known.measured, rates, known.job))
    here = points_at([winner.config], known.job)
    tested = [trial for trial in known.trials if trial.predicted is not None and trial.measurement is not None]
    num_missed = sum(not _held(trial, known.objective) for trial in tested)
    share = explained(formed(model, here), winner.samples_per_s)
    others = [_with_workers(winner.config, number) for number in known.num_workers]
    points = points_at(others, known.job)
    return Bottleneck(
        config=winner.config,
        num_predicted=len(tested),
        num_missed=num_missed,
        explained=share,
        holds=not _misses(num_missed, len(tested)) and abs(math.log(share)) < math.log(UNEXPLAINED),
        late=usually_late([run.workers for run in winner.runs]),
        limits=limits(model, here),
        changes=_changes(known, model, winner.config),
        roofline=tuple(
            RooflinePoint(num_workers=config.loader.num_workers, samples_per_s=rate, limits=each)
            for config, rate, each in zip(others, predicted(model, points), allowed(model, points, here), strict=True)
        ),
    )


def _held(trial: Trial, objective: Objective) -> bool:
    found, measured = trial.predicted, trial.measurement
    assert found is not None
    assert measured is not None
    return found.low <= measured.score(objective) <= found.high


def _misses(num_missed: int, num_predicted: int) -> bool:
    return num_missed > 0 and float(bdtrc(num_missed - 1, num_predicted, 0.05)) < MISSED


def _changes(known: Known, model: ThroughputModel, config: TrialConfig) -> tuple[PredictedChange, ...]:
    found = list[PredictedChange]()
    for kind, to, job in _candidates(known, model, config):
        rate, gain = change(model, points_at([config], known.job), points_at([to], known.job), job)
        if gain.value >= WORTH:
            changed = PredictedChange(kind=kind, num_workers=to.loader.num_workers, samples_per_s=rate, gain=gain)
            found.append(changed)
    return tuple(sorted(found, key=lambda each: -each.gain.value))


def _candidates(
    known: Known, model: ThroughputModel, config: TrialConfig
) -> Iterator[tuple[ChangeKind, TrialConfig, Job | None]]:
    job, workers = known.job, config.loader.num_workers
    uint8, half = smaller_bytes(known.facts)
    if job.on_gpu and uint8 is not None:
        yield "uint8", config, replace(job, sample_bytes=float(uint8))
    elif job.on_gpu and half is not None:
        yield "half_precision", config, replace(job, sample_bytes=float(half))
    more = [_with_workers(config, number) for number in known.num_workers if number > workers]
    if more:
        rates = model.predict(points_at(more, job)).mean
        yield "more_workers", more[int(np.argmax(rates))], None
    twice = _with_workers(config, 2 * workers)
    yield "twice_the_cores", twice, replace(job, num_cores=2 * job.num_cores)
    yield "half_the_loading", config, replace(job, sample_s=job.sample_s / 2, sample_cpu_s=job.sample_cpu_s / 2)


def _with_workers(config: TrialConfig, num_workers: int) -> TrialConfig:
    return replace(config, loader=replace(config.loader, num_workers=num_workers))


def smaller_bytes(facts: WorkloadFacts) -> tuple[int | None, int | None]:
    """(as uint8, in 16 bits) of one sample, target included. None: it is no image of floats, or that small already."""
    num_elements = math.prod(facts.input_shape)
    floats = facts.input_dtype in (*WIDE_FLOATS, "float16", "bfloat16")
    width = {"float64": 8, "float32": 4}.get(facts.input_dtype, 2)
    rest = facts.sample_bytes - width * num_elements
    uint8 = num_elements + rest if floats and len(facts.input_shape) == IMAGE_DIMENSIONS else None
    return uint8, 2 * num_elements + rest if facts.input_dtype in WIDE_FLOATS else None
