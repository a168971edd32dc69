"""What limits the winner, and what would help: the throughput model fitted to all that a run measured."""

import math
from collections.abc import Sequence
from dataclasses import replace

from scipy.special import bdtrc

from loadtune.final.winner import as_finalist
from loadtune.late_batches import usually_late
from loadtune.model.answers import allowed, change, explained, formed, limits, predicted
from loadtune.model.fit import ThroughputModel
from loadtune.model.resources import Job
from loadtune.records.config import Objective, TrialConfig
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import Measurement
from loadtune.records.result import Bottleneck, ChangeKind, Finalist, PredictedChange, RooflinePoint, Trial
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


def bottleneck(
    job: Job,
    measured: Sequence[tuple[TrialConfig, Measurement]],
    winner: Finalist,
    num_workers: Sequence[int],
    trials: Sequence[Trial] = (),
    objective: Objective = "samples-per-s",
) -> Bottleneck:
    """Of the winner.

    ``measured``: trials, and runs of the confirmation; the winner is among them. ``num_workers``: of the roofline,
    fewest first; the winner's own is among them. ``trials``: whose predictions are judged.
    """
    model = ThroughputModel(job, segments_of(measured, [each.samples_per_s for _, each in measured], job))
    here = points_at([winner.config], job)
    tested = [trial for trial in trials if trial.predicted is not None and trial.measurement is not None]
    num_missed = sum(not _held(trial, objective) for trial in tested)
    share = explained(formed(model, here), winner.samples_per_s)
    points = points_at([_with_workers(winner.config, number) for number in num_workers], job)
    return Bottleneck(
        config=winner.config,
        num_predicted=len(tested),
        num_missed=num_missed,
        explained=share,
        holds=not _misses(num_missed, len(tested)) and abs(math.log(share)) < math.log(UNEXPLAINED),
        late=usually_late([run.workers for run in winner.runs]),
        limits=limits(model, here),
        changes=_changes(model, winner.config),
        roofline=tuple(
            RooflinePoint(num_workers=number, samples_per_s=rate, limits=each)
            for number, rate, each in zip(
                num_workers, predicted(model, points), allowed(model, points, here), strict=True
            )
        ),
    )


def _held(trial: Trial, objective: Objective) -> bool:
    found, measured = trial.predicted, trial.measurement
    assert found is not None
    assert measured is not None
    rate = measured.samples_per_s if objective == "samples-per-s" else measured.score(objective)  # as it was predicted
    return bool(found.holds(rate))


def _misses(num_missed: int, num_predicted: int) -> bool:
    return num_missed > 0 and float(bdtrc(num_missed - 1, num_predicted, 0.05)) < MISSED


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
    job = known_job(run, facts, searched)
    run.bottleneck = bottleneck(job, measured, winner, sorted(numbers), run.trials, run.config.objective)
