"""Measure a stored winner again: is its throughput still the same? In: a baseline. Out: a `Check`. Brief, for CI.

Times real training steps, each time with new workers, until the interval of the ratio is narrow enough or the time is
spent. Where the winner cannot be measured here, the outcome is "unclear".
"""

from collections.abc import Callable
from dataclasses import replace

from loadtune.bench import BenchClient
from loadtune.errors import BenchError, DeviceError, LoadtuneError, ResultError, UsageError, WorkloadError
from loadtune.host import MonotonicClock, Sampler, choose_device, rank_cores, rank_facts, read_host
from loadtune.records import (
    SCORE_UNITS,
    Change,
    Check,
    ComputePoint,
    Device,
    HostFacts,
    Measurement,
    TrialFailure,
    TuningResult,
)
from loadtune.records.confirmed import compute_rate
from loadtune.seams import Bench, Clock, Sensor
from loadtune.stages.run import TRIAL_SHARE
from loadtune.study.changes import figure_changes, machine_changes
from loadtune.study.ratio import repeated_runs
from loadtune.study.regression import Baseline, baseline_of, conclude
from loadtune.study.segment import Segment
from loadtune.study.trial import run_trial
from loadtune.units import percent_text

RUN_SHARE = 0.1
"""Most of the time budget for the timed part of one run: several runs and the start-up have to fit."""

COMPUTE_S = 1.0
"""For the compute-only rate: before the runs to warm up, after a loss to see whether the device lost speed."""

Tell = Callable[[str], None]


def check_baseline(
    result: TuningResult,
    *,
    tolerance_fraction: float = 0.05,
    time_budget_s: float = 60.0,
    keep_batch_size: bool = False,
    tell: Tell = lambda line: None,
) -> Check:
    """Measure the winner of a stored result again on this machine.

    ``tolerance_fraction``, above 0 and below 1, is the loss of throughput that passes; of samples per joule where the
    run looked for those. ``time_budget_s`` bounds the time; torch.compile's time, once, is added to it.
    ``keep_batch_size`` checks the winner at the batch size that the run was given. ``tell`` is called with each line of
    progress.

    Raises ResultError where the result has no confirmed winner, or none of its finalists ran twice.
    """
    _refuse_objects(result)
    baseline = baseline_of(result, tolerance_fraction, keep_batch_size=keep_batch_size)
    ranks, clock = result.config.ranks_per_node, MonotonicClock()
    try:
        host = rank_facts(read_host(), ranks)
        device = same_device(result, host)
    except (DeviceError, UsageError) as error:
        return conclude(baseline, (), 0.0, problem=f"The winner could not be measured here: {error}")
    cores = rank_cores(host, ranks)
    with (
        BenchClient(result.config.workload, device, cores=cores) as bench,
        Sampler(device, lambda: bench.pid, host.num_usable_cores, cores=cores) as sensor,
    ):
        bench.start()
        return check_on(bench, sensor, clock, baseline, host, device, time_budget_s, tell)


def _refuse_objects(result: TuningResult) -> None:
    named = result.config.workload.objects
    if named:
        raise ResultError(
            f"The baseline cannot be measured again: its {' and '.join(named)} came to loadtune.tune as Python "
            "objects, which are not stored. `loadtune check` needs a baseline whose parts have names: torchvision "
            "names, or import paths `pkg.mod:factory`."
        )


def same_device(result: TuningResult, host: HostFacts) -> Device:
    """The baseline's device on this machine: the same GPU, or the freest of its model. Raises DeviceError."""
    wanted = result.device
    if wanted.kind == "cpu":
        device = choose_device(host, "cpu")
        if device.name != wanted.name:
            raise DeviceError(f"the baseline was measured on {wanted.name}, and this machine has {device.name}.")
        return device
    gpus = tuple(gpu for gpu in host.gpus if gpu.name == wanted.name)
    if not gpus:
        there = ", ".join(sorted({gpu.name for gpu in host.gpus})) or "no GPU"
        raise DeviceError(f"the baseline was measured on {wanted.name}, and this machine has {there}.")
    same = any(gpu.uuid == wanted.uuid for gpu in gpus)
    return choose_device(replace(host, gpus=gpus), wanted.uuid if same else None)


def check_on(
    bench: Bench,
    sensor: Sensor,
    clock: Clock,
    baseline: Baseline,
    host: HostFacts,
    device: Device,
    time_budget_s: float,
    tell: Tell = lambda line: None,
) -> Check:
    """`check_baseline` over any bench, sensor and clock, such as the fakes of `loadtune.testing`."""
    started, runs = clock.now(), list[Measurement]()
    figures = tuple[Change, ...]()
    try:
        bench.describe()
        # The baseline was measured in a training process that was warm; the first steps of a fresh one are slow.
        warm = bench.time_compute(baseline.config.recipe, baseline.config.batch_size, COMPUTE_S)
        compile_s = (warm.compile_s or 0.0) if isinstance(warm, ComputePoint) else 0.0
        problem = _measure(bench, sensor, clock, baseline, runs, started + time_budget_s + compile_s, tell)
    except (WorkloadError, BenchError) as error:
        problem = f"The winner could not be measured here: {error}"
    if problem is None and baseline.outcome(runs) != "held":
        figures = (*_compute_change(bench, baseline), *figure_changes(baseline.measured, runs))
    changes = machine_changes(baseline.result.host, baseline.result.device, host, device)
    return conclude(baseline, runs, clock.now() - started, problem=problem, changes=changes, figures=figures)


def _measure(
    bench: Bench,
    sensor: Sensor,
    clock: Clock,
    baseline: Baseline,
    runs: list[Measurement],
    until_s: float,
    tell: Tell,
) -> str | None:
    """Fill `runs` until the outcome is clear or the time is spent. Returns what prevented a run; None: nothing did."""
    took = 0.0
    as_confirmed = TRIAL_SHARE * baseline.result.config.time_budget_s
    seconds = max(0.5, min(as_confirmed, RUN_SHARE * (until_s - clock.now())))
    while not runs or clock.now() + took <= until_s:
        begun = clock.now()
        segment, facts = Segment(baseline.config.loader, seconds), baseline.result.facts
        epoch_samples = None if facts is None else facts.dataset_length
        found = run_trial(bench, sensor, clock, baseline.config, segment, epoch_samples=epoch_samples)
        if isinstance(found, TrialFailure):
            return f"Run {len(runs) + 1} failed ({found.kind}): {found.message}"
        if baseline.objective == "samples-per-joule" and found.samples_per_joule is None:
            return "The winner was chosen by samples per joule, but the GPU's energy counter could not be read here."
        took = max(took, clock.now() - begun)
        runs.append(found)
        share = repeated_runs([found], baseline.objective).mean / baseline.runs.mean
        tell(f"run {len(runs)}: {percent_text(share)} of the baseline's {SCORE_UNITS[baseline.objective]}")
        if baseline.outcome(runs) != "unclear":
            break
    return None


def _compute_change(bench: Bench, baseline: Baseline) -> tuple[Change, ...]:
    """The compute-only rate then and now, where the baseline has it: did the device or the loader lose speed?"""
    config = baseline.config
    then = compute_rate(baseline.result.compute_points, config)
    if then is None:
        return ()
    try:
        now = bench.time_compute(config.recipe, config.batch_size, COMPUTE_S)
    except LoadtuneError:  # the outcome does not depend on it
        return ()
    if isinstance(now, TrialFailure):
        return ()
    return (Change(name="compute_only_samples_per_s", before=then.samples_per_s, after=now.samples_per_s),)
