"""What limits the winner, and what would help: the throughput model fitted to all that a run measured."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from scipy.special import bdtrc

from loadtune.final.winner import as_finalist
from loadtune.model.answers import allowed, change, explained, formed, limits, predicted
from loadtune.model.fit import ThroughputModel
from loadtune.model.resources import Job
from loadtune.records.config import TrialConfig
from loadtune.records.facts import WorkloadFacts
from loadtune.records.measurement import Measurement, WorkerShare
from loadtune.records.result import Bottleneck, ChangeKind, Finalist, LateBatches, PredictedChange, RooflinePoint, Trial
from loadtune.run import Run
from loadtune.search.search import Search, points_at, segments_of
from loadtune.search.searching import known_job

MISSED = 0.05
"""Predictions are said to miss where so many misses would be less likely than this, if each had its 5%."""

UNEXPLAINED = 1.25
"""Ratio between what the resources give and what was measured, either way, from which on no resource is named: a rate
that far from the measured one would contradict it."""

WORTH = 1.03
"""Gain of a change that is worth a line."""

MIN_BATCHES = 4
"""Batches each worker should have made before they are compared: one of them is left out, and two say little."""

SLOW = 1.5
"""Times the others' time a batch at which a worker is slow: workers that share cores differ by some tenths."""

LONG = 3.0
"""Times the usual time a batch at which a single batch is slow."""

CARRIES = 0.5
"""Share of all waiting that one worker or a few batches carry: more than all the others together."""


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
    measured = [
        (config, each)
        for config, each in run.timed
        if config.precision in searched.recipes and (search.is_modelled(config) or config == winner.config)
    ]
    numbers = {*searched.num_workers, winner.config.loader.num_workers}
    job = known_job(run, facts, searched)
    run.bottleneck = bottleneck(job, measured, winner, sorted(numbers), run.trials)


def late_batches(workers: Sequence[WorkerShare]) -> LateBatches | None:
    """One slow worker of a run, or a few slow samples, that hold up the batches of the others.

    A DataLoader delivers batches in order, so one late batch holds back all that were made after it. The wait at each
    worker's turn shows that, and cannot tell whose fault it is: workers that start together and are all alike finish
    together, and the loop then waits for the first of them in every round and takes the others' batches at once. So a
    worker is called slow by its own clock, and the waits only say whether that matters. None: nothing stands out, or
    too little was seen.
    """
    waited = sum(share.wait_s for share in workers)
    if len(workers) < 2 or waited <= 0 or any(share.num_made < MIN_BATCHES for share in workers):
        return None
    usual = [(share.made_s - share.max_made_s) / (share.num_made - 1) for share in workers]  # one batch is no worker
    slowest = max(range(len(usual)), key=usual.__getitem__)
    others = statistics.median(usual[:slowest] + usual[slowest + 1 :])
    if others <= 0:
        return None
    share = workers[slowest].wait_s / waited
    if usual[slowest] >= SLOW * others and share >= CARRIES:
        return LateBatches(by="worker", ratio=usual[slowest] / others, wait_fraction=share)
    late = [share for share in workers if share.max_made_s >= LONG * statistics.median(usual)]
    share = sum(each.max_wait_s for each in late) / waited
    if late and share >= CARRIES:
        longest = max(each.max_made_s for each in late)
        return LateBatches(by="samples", ratio=longest / statistics.median(usual), wait_fraction=share)
    return None


def usually_late(runs: Sequence[Sequence[WorkerShare]]) -> LateBatches | None:
    """What more than half of these runs show alike, in the run that shows it most: workers start anew for each run."""
    seen = [found for workers in runs if (found := late_batches(workers)) is not None]
    alike = max((([f for f in seen if f.by == by]) for by in ("worker", "samples")), key=len)
    return max(alike, key=lambda found: found.wait_fraction) if 2 * len(alike) > len(runs) else None
