"""What limits the winner, and what would help: the throughput model fitted to all that a run measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy.special import bdtrc

from loadtune.final.winner import as_finalist
from loadtune.late_batches import usually_late
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
from loadtune.run import Run
from loadtune.search.search import Search
from loadtune.search.searching import known_job
from loadtune.search.throughput import points_at, segments_of

MISSED = 0.05
"""Predictions are said to miss where so many misses would be less likely than this, if each had its 5%."""

UNEXPLAINED = 1.25
"""Ratio between what the resources give and what was measured, either way, from which on no resource is named: a rate
that far from the measured one would contradict it."""

WORTH = 1.03
"""Gain of a change that is worth a line."""

BEYOND = 2
"""How many times as many workers as were tried the roofline shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a run measured, as far as the model knows of it."""

    job: Job
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
    rate = measured.samples_per_s if objective == "samples-per-s" else measured.score(objective)  # as it was predicted
    return found.low <= rate <= found.high


def _misses(num_missed: int, num_predicted: int) -> bool:
    return num_missed > 0 and float(bdtrc(num_missed - 1, num_predicted, 0.05)) < MISSED


def _changes(known: Known, model: ThroughputModel, config: TrialConfig) -> tuple[PredictedChange, ...]:
    job, twice = known.job, _with_workers(config, 2 * config.loader.num_workers)
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


def name_bottleneck(run: Run, facts: WorkloadFacts, search: Search) -> None:
    """Nothing is run for it. Without a winner, or with one in a precision that was not searched, nothing is named."""
    winner, searched = as_finalist(run.best, run.finalists), search.space
    if winner is None or winner.config.precision not in searched.recipes:
        return
    own, top = winner.config.loader.num_workers, max(searched.num_workers)
    measured = [
        (config, each)
        for config, each in run.timed
        if config.precision in searched.recipes and (search.is_modelled(config) or config == winner.config)
    ]
    numbers = {*searched.num_workers, own, round(top * BEYOND**0.5), top * BEYOND} if top else {0, own}
    known = Known(
        job=known_job(run, facts, searched),
        measured=measured,
        trials=run.trials,
        num_workers=sorted(numbers),
        objective=run.config.objective,
    )
    run.bottleneck = bottleneck(known, winner)
