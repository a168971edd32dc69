"""What limits the winner, and what would help: the throughput model fitted to all that a run measured."""

import math
from collections.abc import Sequence
from dataclasses import replace

from scipy.special import bdtrc

from loadtune.model.answers import change, explain
from loadtune.model.fit import ThroughputModel
from loadtune.model.resources import Job
from loadtune.records.config import TrialConfig
from loadtune.records.measurement import Measurement
from loadtune.records.result import Bottleneck, ChangeKind, Finalist, PredictedChange, RooflinePoint, Trial
from loadtune.search.search import points_at, segments_of
from loadtune.search.space import SearchSpace

MISSED = 0.05
"""Predictions are said to miss where so many misses would be less likely than this, if each had its 5%."""

UNEXPLAINED = 1.25
"""Ratio between what the resources give and what was measured, either way, from which on no resource is named: a rate
that far from the measured one would contradict it."""

WORTH = 1.03
"""Gain of a change that is worth a line."""


def bottleneck(
    job: Job,
    measured: Sequence[tuple[TrialConfig, Measurement]],
    winner: Finalist,
    num_workers: Sequence[int],
    trials: Sequence[Trial] = (),
) -> Bottleneck:
    """Of the winner.

    ``measured``: trials, and runs of the confirmation; the winner is among them. ``num_workers``: of the roofline,
    fewest first; the winner's own is among them. ``trials``: whose predictions are judged.
    """
    model = ThroughputModel(job, segments_of(measured, job))
    here = points_at([winner.config], job)
    tested = [(trial.predicted, trial.measurement) for trial in trials if trial.predicted and trial.measurement]
    num_missed = sum(not said.holds(run.samples_per_s) for said, run in tested)
    so_many_by_chance = float(bdtrc(num_missed - 1, len(tested), 0.05))  # or more
    others = points_at([_with_workers(winner.config, number) for number in num_workers], job)
    found = explain(model, here, winner.samples_per_s, others)
    return Bottleneck(
        config=winner.config,
        num_predicted=len(tested),
        num_missed=num_missed,
        explained=found.share,
        holds=so_many_by_chance >= MISSED and abs(math.log(found.share)) < math.log(UNEXPLAINED),
        limits=found.limits,
        changes=_changes(model, winner.config),
        roofline=tuple(
            RooflinePoint(num_workers=number, samples_per_s=rate, limits=limits)
            for number, (rate, limits) in zip(num_workers, found.others, strict=True)
        ),
    )


def _changes(model: ThroughputModel, config: TrialConfig) -> tuple[PredictedChange, ...]:
    job, twice = model.job, _with_workers(config, 2 * config.loader.num_workers)
    halved = replace(job, sample_s=job.sample_s / 2, sample_cpu_s=job.sample_cpu_s / 2)
    candidates: list[tuple[ChangeKind, TrialConfig, Job]] = [
        ("twice_the_cores", twice, replace(job, num_cores=2 * job.num_cores)),
        ("half_the_loading", config, halved),
    ]
    found = list[PredictedChange]()
    for kind, to, changed_job in candidates:
        rate, gain, _ = change(model, points_at([config], job), points_at([to], job), changed_job)
        if gain.value >= WORTH:
            changed = PredictedChange(kind=kind, num_workers=to.loader.num_workers, samples_per_s=rate, gain=gain)
            found.append(changed)
    return tuple(sorted(found, key=lambda each: -each.gain.value))


def _with_workers(config: TrialConfig, num_workers: int) -> TrialConfig:
    return replace(config, loader=replace(config.loader, num_workers=num_workers))


def searched_bottleneck(
    job: Job,
    timed: Sequence[tuple[TrialConfig, Measurement]],
    winner: Finalist,
    space: SearchSpace,
    trials: Sequence[Trial],
) -> Bottleneck | None:
    """By what was ``timed`` of the space, and the winner. None: the winner's precision was not searched."""
    if winner.config.precision not in space.recipes:
        return None
    measured = [
        (config, each)
        for config, each in timed
        if config.precision in space.recipes and (space.has(config) or config == winner.config)
    ]
    numbers = {*space.num_workers, winner.config.loader.num_workers}
    return bottleneck(job, measured, winner, sorted(numbers), trials)
