"""Measure a stored answer again: is it still as good as it was? In: a result. Out: another one, and a verdict.

Times real training steps, each time with new workers, until the interval of the ratio is narrow enough or the time is
spent. What counts is throughput. Where it cannot be measured here, the verdict is "unclear".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from loadtune import __version__
from loadtune.errors import DeviceError, ResultError, TrainingError, UsageError, WorkloadError
from loadtune.host import MonotonicClock, Sampler, choose_device, rank_cores, rank_facts, read_host
from loadtune.records.answer import chosen_winner, compute_fraction, finalist_of
from loadtune.records.config import TrialConfig
from loadtune.records.facts import Device, HostFacts
from loadtune.records.interval import Interval
from loadtune.records.measurement import ComputePoint, Measurement, TrialFailure
from loadtune.records.result import Finalist, TuningResult, Winner
from loadtune.report.compare import Comparison, compare, mean_of, ratio_of
from loadtune.seams import Clock, Sensor, Training
from loadtune.search.segment import Segment, run_trial, segment_seconds
from loadtune.training import TrainingClient
from loadtune.units import counted, percent_text, seconds_text

RUN_SHARE = 0.1
"""Most of the time budget for the timed part of one run: several runs and the start-up have to fit."""

COMPUTE_S = 1.0
"""For the compute-only rate, before the runs: it warms the device up, whose first steps are slow."""

MIN_RUNS = 3
"""Before a check says anything. It looks again after every run from the third on: a truth at the very edge of the
tolerance is called a loss in 4 to 7% of simulated checks and held in 2 to 8%, with spreads of 2 and 6% on either side;
a single look promises 2.5% each."""

Outcome = Literal["held", "fell", "unclear"]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A stored answer, measured again."""

    outcome: Outcome
    """``fell`` the whole interval of the ratio is below 1 − tolerance; ``held`` it is above; ``unclear`` neither, or
    nothing could be measured."""
    reason: str
    """One or two sentences."""
    comparison: Comparison | None = None
    """Of the stored result and the new one. None: nothing was measured."""
    result: TuningResult | None = None
    """The new one."""


def check_baseline(
    baseline: TuningResult,
    *,
    tolerance_fraction: float = 0.05,
    time_budget_s: float = 60.0,
    keep_batch_size: bool = False,
    tell: Tell = lambda line: None,
) -> Check:
    """Measure the answer of a stored result again on this machine.

    ``tolerance_fraction``, above 0 and below 1, is the loss of throughput that passes. ``time_budget_s`` bounds the
    time; torch.compile's time, once, is added to it. ``keep_batch_size`` checks the answer at the batch size that the
    run was given. ``tell`` is called with each line of progress.

    Raises ResultError where the result has no confirmed answer, or none of its finalists ran twice.
    """
    if named := baseline.config.workload.objects:
        raise ResultError(
            f"The baseline cannot be measured again: its {' and '.join(named)} came to loadtune.tune as Python objects,"
            " which are not stored. Name a baseline whose parts have names."
        )
    answer_of(baseline, keep_batch_size=keep_batch_size)
    ranks = baseline.config.ranks_per_node
    try:
        host = rank_facts(read_host(), ranks)
        device = same_device(baseline, host)
    except (DeviceError, UsageError) as error:
        return Check(outcome="unclear", reason=f"The answer could not be measured here: {error}")
    cores = rank_cores(host, ranks)
    with (
        TrainingClient(baseline.config.workload, device, cores=cores) as training,
        Sampler(device, lambda: training.pid, host.num_usable_cores, cores=cores) as sensor,
    ):
        training.start()
        return check_on(
            training,
            sensor,
            MonotonicClock(),
            baseline,
            host,
            device,
            tolerance_fraction=tolerance_fraction,
            time_budget_s=time_budget_s,
            keep_batch_size=keep_batch_size,
            tell=tell,
        )


def same_device(baseline: TuningResult, host: HostFacts) -> Device:
    """The baseline's device on this machine: the same GPU, or the freest of its model. Raises DeviceError."""
    wanted = baseline.device
    if wanted.kind == "cpu":
        device = choose_device(host, "cpu")
        if device.name == wanted.name:
            return device
        there = device.name
    elif gpus := tuple(gpu for gpu in host.gpus if gpu.name == wanted.name):
        same = any(gpu.uuid == wanted.uuid for gpu in gpus)
        return choose_device(replace(host, gpus=gpus), wanted.uuid if same else None)
    else:
        there = ", ".join(sorted({gpu.name for gpu in host.gpus})) or "no GPU"
    raise DeviceError(f"the baseline was measured on {wanted.name}, and this machine has {there}.")


def answer_of(baseline: TuningResult, *, keep_batch_size: bool = False) -> Finalist:
    """Its runs of the confirmation. Raises ResultError where it is not confirmed, or nothing ran twice."""
    found = finalist_of(baseline, chosen_winner(baseline, keep_batch_size=keep_batch_size).config)
    if found is None or all(len(each.runs) < 2 for each in baseline.finalists):
        raise ResultError(
            f"The run of {baseline.created} confirmed its answer by one run, and no other finalist by more, so its"
            " figure has no interval and no check could tell. Run `loadtune run` again, to its end, with a"
            f" --time-budget above {seconds_text(baseline.config.time_budget_s)}, or name another result."
        )
    if found.unconfirmed is not None:
        raise ResultError(
            f"The answer of the run of {baseline.created} is not confirmed, so no check could tell."
            f" {found.unconfirmed.explanation}"
        )
    return found


def outcome_of(ratio: Interval | None, num_runs: int, tolerance_fraction: float) -> Outcome:
    """What the interval says of a loss of more than the tolerance."""
    if ratio is None or ratio.low is None or ratio.high is None or num_runs < MIN_RUNS:
        return "unclear"
    least = 1 - tolerance_fraction
    return "fell" if ratio.high < least else "held" if ratio.low > least else "unclear"


def check_on(
    training: Training,
    sensor: Sensor,
    clock: Clock,
    baseline: TuningResult,
    host: HostFacts,
    device: Device,
    *,
    tolerance_fraction: float = 0.05,
    time_budget_s: float = 60.0,
    keep_batch_size: bool = False,
    tell: Tell = lambda line: None,
) -> Check:
    """`check_baseline` over any training, sensor and clock, such as the fakes of `loadtune.testing`."""
    started, runs = clock.now(), list[Measurement]()
    finalist = answer_of(baseline, keep_batch_size=keep_batch_size)
    then = mean_of(finalist.runs, [each.runs for each in baseline.finalists])
    config, outcome, ratio = finalist.config, outcome_of(None, 0, tolerance_fraction), None
    try:
        facts = training.describe()
        warm = training.time_compute(config.recipe, config.batch_size, COMPUTE_S)
        points = (warm,) if isinstance(warm, ComputePoint) else ()
        compile_s = sum(point.compile_s or 0.0 for point in points)
        for run in _runs(training, sensor, clock, baseline, config, started + time_budget_s + compile_s):
            if isinstance(run, TrialFailure):
                return Check(outcome="unclear", reason=f"Run {len(runs) + 1} failed ({run.kind}): {run.message}")
            runs.append(run)
            ratio = ratio_of(then, mean_of(runs))
            outcome = outcome_of(ratio, len(runs), tolerance_fraction)
            tell(f"run {len(runs)}: {percent_text(run.samples_per_s / then.value)} of the baseline's samples/s")
            if outcome != "unclear":
                break
    except (WorkloadError, TrainingError) as error:
        return Check(outcome="unclear", reason=f"The answer could not be measured here: {error}")
    seconds = clock.now() - started
    throughput = mean_of(runs)
    winner = Winner(
        config=config,
        samples_per_s=throughput.value,
        half_width_fraction=throughput.half_width_fraction,
        compute_fraction=compute_fraction(points, config, throughput.value),
    )
    result = TuningResult(
        loadtune_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        stage_seconds={"confirm": seconds},
        config=replace(baseline.config, time_budget_s=time_budget_s),
        host=host,
        device=device,
        facts=facts,
        compute_points=points,
        finalists=(Finalist(config=config, runs=tuple(runs), half_width_fraction=throughput.half_width_fraction),),
        confirmed_whole=True,
        best=winner,
        best_at_your_batch=winner if keep_batch_size else None,
        notes=(f"Measured again: the answer of the run of {baseline.created}. Nothing else was tried.",),
    )
    return Check(
        outcome=outcome,
        reason=_reason(ratio, len(runs), outcome, tolerance_fraction),
        comparison=compare(baseline, result, keep_batch_size=keep_batch_size),
        result=result,
    )


def _runs(
    training: Training, sensor: Sensor, clock: Clock, baseline: TuningResult, config: TrialConfig, until_s: float
) -> Iterator[Measurement | TrialFailure]:
    """One run at least, and as many as end in time if none takes longer than the longest so far."""
    as_confirmed = segment_seconds(baseline.config.time_budget_s)
    seconds = max(0.5, min(as_confirmed, RUN_SHARE * (until_s - clock.now())))
    longest_s = None
    epoch_samples = None if baseline.facts is None else baseline.facts.dataset_length
    while longest_s is None or clock.now() + longest_s <= until_s:
        begun = clock.now()
        segment = Segment(config.loader, seconds)
        outcome = run_trial(training, sensor, clock, config, segment, epoch_samples=epoch_samples)
        longest_s = max(longest_s or 0.0, clock.now() - begun)
        yield outcome


def _reason(ratio: Interval | None, num_runs: int, outcome: Outcome, allowed: float) -> str:
    tolerance = f"{100 * allowed:g}%"
    if ratio is None or ratio.low is None or ratio.high is None or num_runs < MIN_RUNS:
        return f"Only {counted(num_runs, 'run')} fitted into the time, and it takes {MIN_RUNS}. Raise --time-budget."
    if outcome == "fell":
        return (
            f"It lost {percent_text(1 - ratio.value, 1)} of its samples/s ({percent_text(1 - ratio.high, 1)} to"
            f" {percent_text(1 - ratio.low, 1)}), more than the tolerance of {tolerance}."
        )
    if outcome == "held":
        return f"It lost no more of its samples/s than the tolerance of {tolerance}: the whole interval lies above it."
    return (
        f"The interval holds the edge of the tolerance of {tolerance}: it could have held or fallen. Raise"
        " --time-budget for more runs, or --tolerance."
    )
