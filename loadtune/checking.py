"""Measure a stored winner again, now: is it still as good? In: a baseline. Out: a `Check`. For CI, so it is brief.

Real steps with fresh loaders on the real bench, as the confirmation did them, until the interval of the ratio tells or
the time is spent. What keeps the winner from being measured here is an answer too: it could not be told.
"""

from collections.abc import Callable
from dataclasses import replace

from loadtune.bench import BenchClient
from loadtune.errors import BenchError, DeviceError, LoadtuneError, ResultError, WorkloadError
from loadtune.host import MonotonicClock, Sampler, choose_device, read_host
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
from loadtune.seams import Bench, Clock, Sensor
from loadtune.stages.run import TRIAL_SHARE
from loadtune.study.changes import figure_changes, machine_changes
from loadtune.study.regression import Baseline, baseline_of, conclude
from loadtune.study.stopping import StoppingRule
from loadtune.study.trial import run_trial
from loadtune.units import percent_text

RUN_SHARE = 0.1
"""Of the time budget, for the timed part of one run at most: several have to fit beside the start of the bench."""

COMPUTE_S = 1.0
"""For the compute-only rate: before the runs to warm up, after a loss to tell whether it was the device's."""

Tell = Callable[[str], None]


def check_baseline(
    result: TuningResult,
    *,
    tolerance_fraction: float = 0.05,
    time_budget_s: float = 60.0,
    keep_batch_size: bool = False,
    tell: Tell = lambda line: None,
) -> Check:
    """Measure the winner of a stored result again on this machine, for `time_budget_s` at most.

    What torch.compile takes, once, comes on top: a fresh bench compiles for most of a minute before it can train.
    ``tolerance_fraction`` is the loss of samples/s that is let pass, above 0 and below 1; of samples per joule where
    the winner was picked for those. ``keep_batch_size`` takes the winner at the user's batch size. Raises ResultError
    where the result has no such winner.
    """
    _refuse_objects(result)
    baseline = baseline_of(result, tolerance_fraction, keep_batch_size=keep_batch_size)
    host, clock = read_host(), MonotonicClock()
    try:
        device = same_device(result, host)
    except DeviceError as error:
        return conclude(baseline, (), 0.0, problem=f"It could not be measured here: {error}")
    with (
        BenchClient(result.config.workload, device) as bench,
        Sampler(device, lambda: bench.pid, host.num_usable_cores) as sensor,
    ):
        bench.start()
        return check_on(bench, sensor, clock, baseline, host, device, time_budget_s, tell)


def _refuse_objects(result: TuningResult) -> None:
    named = result.config.workload.objects
    if named:
        raise ResultError(
            f"The baseline cannot be measured again: its {' and '.join(named)} came to tune_loader as Python objects, "
            "which are not stored. `loadtune check` needs a baseline whose dataset and model have names: torchvision "
            "names, or import paths `pkg.mod:factory`."
        )


def same_device(result: TuningResult, host: HostFacts) -> Device:
    """The device here that is the baseline's: the very GPU, or the freest of its name. Raises DeviceError."""
    wanted = result.device
    if wanted.kind == "cpu":
        device = choose_device(host, "cpu")
        if device.name != wanted.name:
            raise DeviceError(f"the baseline was measured on {wanted.name}, and this is {device.name}.")
        return device
    gpus = tuple(gpu for gpu in host.gpus if gpu.name == wanted.name)
    if not gpus:
        there = ", ".join(sorted({gpu.name for gpu in host.gpus})) or "no GPU"
        raise DeviceError(f"the baseline was measured on {wanted.name}, and here is {there}.")
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
    """`check_baseline` over any bench, sensor and clock: with the fakes of `loadtune.testing` it takes no time."""
    started, runs = clock.now(), list[Measurement]()
    figures = tuple[Change, ...]()
    try:
        bench.describe()
        # The baseline was confirmed on a bench that had trained for minutes; a fresh one is slow in its first steps.
        warm = bench.time_compute(baseline.config.recipe, baseline.config.batch_size, COMPUTE_S)
        compile_s = (warm.compile_s or 0.0) if isinstance(warm, ComputePoint) else 0.0
        problem = _measure(bench, sensor, clock, baseline, runs, started + time_budget_s + compile_s, tell)
    except (WorkloadError, BenchError) as error:
        problem = f"It could not be measured here: {error}"
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
    """Fill `runs` until they tell or the time is spent. Returns what kept it from going on; None: nothing did."""
    took = 0.0
    as_confirmed = TRIAL_SHARE * baseline.result.config.time_budget_s
    seconds = max(0.5, min(as_confirmed, RUN_SHARE * (until_s - clock.now())))
    facts, loader = baseline.result.facts, baseline.config.loader
    batch_s = loader.batch_size * facts.sample_s if facts else 0.0
    while not runs or clock.now() + took <= until_s:
        begun = clock.now()
        rule = StoppingRule(num_workers=loader.num_workers, max_s=seconds, batch_s=batch_s)
        found = run_trial(bench, sensor, clock, baseline.config, rule)
        if isinstance(found, TrialFailure):
            return f"Run {len(runs) + 1} failed ({found.kind}): {found.message}"
        if baseline.objective == "samples-per-joule" and found.samples_per_joule is None:
            return "It was picked for its samples per joule, and the GPU's energy counter could not be read here."
        took = max(took, clock.now() - begun)
        runs.append(found)
        share = found.score(baseline.objective) / baseline.runs.mean
        tell(f"run {len(runs)}: {percent_text(share)} of the baseline's mean {SCORE_UNITS[baseline.objective]}")
        if baseline.outcome(runs) != "unclear":
            break
    return None


def _compute_change(bench: Bench, baseline: Baseline) -> tuple[Change, ...]:
    """Where it was timed at this very size and recipe then: whether the device or the loader lost it."""
    asked, points = (baseline.config.recipe, baseline.config.batch_size), baseline.result.compute_points
    then = next((point.samples_per_s for point in points if (point.recipe, point.batch_size) == asked), None)
    if then is None:
        return ()
    try:
        now = bench.time_compute(*asked, COMPUTE_S)
    except LoadtuneError:  # what was concluded stands without it
        return ()
    if isinstance(now, TrialFailure):
        return ()
    return (Change(name="compute_only_samples_per_s", before=then, after=now.samples_per_s),)
