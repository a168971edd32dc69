"""Measure a stored winner again: is it still as good as it was? In: a result. Out: a `Check`. Brief, for CI.

Times real training steps, each time with new workers, until the interval of the ratio is narrow enough or the time is
spent. What counts is what the winner was picked for: throughput, or samples per joule, which it may keep while both
speed and power fall. Where the winner cannot be measured here, the outcome is "unclear".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from loadtune.bench import BenchClient
from loadtune.errors import BenchError, DeviceError, LoadtuneError, ResultError, UsageError, WorkloadError
from loadtune.host import MonotonicClock, Sampler, choose_device, rank_cores, rank_facts, read_host
from loadtune.records.answer import chosen_winner, compute_rate, finalist_of
from loadtune.records.config import SCORE_UNITS, Objective
from loadtune.records.facts import Device, HostFacts
from loadtune.records.interval import Interval
from loadtune.records.measurement import ComputePoint, Measurement, TrialFailure
from loadtune.records.result import Finalist, TuningResult, Winner
from loadtune.report.compare import (
    Change,
    Check,
    CheckOutcome,
    Mean,
    figure_changes,
    machine_changes,
    mean_of,
    ratio_of,
)
from loadtune.seams import Bench, Clock, Sensor
from loadtune.search.segment import Segment, run_trial, segment_seconds
from loadtune.units import counted, percent_text, seconds_text

RUN_SHARE = 0.1
"""Most of the time budget for the timed part of one run: several runs and the start-up have to fit."""

COMPUTE_S = 1.0
"""For the compute-only rate: before the runs to warm up, after a loss to see whether the device lost speed."""

MIN_RUNS = 3
"""Before a check says anything. It looks again after every run from the third on: a truth at the very edge of the
tolerance is called a loss in 4 to 7% of simulated checks and held in 2 to 8%, with spreads of 2 and 6% on either side
(`benchmarks/check_errors.py`); a single look promises 2.5% each."""

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
    if named := result.config.workload.objects:
        raise ResultError(
            f"The baseline cannot be measured again: its {' and '.join(named)} came to loadtune.tune as Python "
            "objects, which are not stored. `loadtune check` needs a baseline whose parts have names: torchvision "
            "names, or import paths `pkg.mod:factory`."
        )
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


def same_device(result: TuningResult, host: HostFacts) -> Device:
    """The baseline's device on this machine: the same GPU, or the freest of its model. Raises DeviceError."""
    wanted = result.device
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What is checked."""

    result: TuningResult
    winner: Winner
    finalist: Finalist
    """The winner's runs of the confirmation."""
    tolerance_fraction: float
    """Loss of what it was picked for that is let pass, above 0 and below 1."""

    @property
    def objective(self) -> Objective:
        return self.result.config.objective

    @property
    def mean(self) -> Mean:
        """Of what it was picked for."""
        return mean_of(self.finalist.runs, [each.runs for each in self.result.finalists], self.objective)

    def ratio(self, runs: Sequence[Measurement]) -> Interval | None:
        """Now over then. None: nothing ran."""
        return ratio_of(self.mean, mean_of(runs, (), self.objective)) if runs else None

    def outcome(self, runs: Sequence[Measurement]) -> CheckOutcome:
        return outcome_of(self.ratio(runs), len(runs), self.tolerance_fraction)


def outcome_of(ratio: Interval | None, num_runs: int, tolerance_fraction: float) -> CheckOutcome:
    """What the interval says of a loss of more than the tolerance."""
    if ratio is None or ratio.low is None or ratio.high is None or num_runs < MIN_RUNS:
        return "unclear"
    least = 1 - tolerance_fraction
    return "fell" if ratio.high < least else "held" if ratio.low > least else "unclear"


def baseline_of(result: TuningResult, tolerance_fraction: float, *, keep_batch_size: bool = False) -> Baseline:
    """The winner of a result. Raises ResultError where there is none whose runs were kept, or nothing ran twice."""
    winner = chosen_winner(result, keep_batch_size=keep_batch_size)
    finalist = finalist_of(result, winner.config)
    if finalist is None:
        raise ResultError(
            f"The run of {result.created} holds no runs of its winner, as an unchanged result does. Run `loadtune run`"
            " again, or name another result."
        )
    if all(len(each.runs) < 2 for each in result.finalists):
        raise ResultError(
            f"The run of {result.created} confirmed its winner by one run, and no other finalist by more, so its"
            " figure has no interval and no check could tell. A baseline needs two runs of a finalist at least."
            " Run `loadtune run` again, to its end, with a --time-budget above"
            f" {seconds_text(result.config.time_budget_s)}, or name another result."
        )
    return Baseline(result=result, winner=winner, finalist=finalist, tolerance_fraction=tolerance_fraction)


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
    started, runs, problem = clock.now(), list[Measurement](), None
    figures = tuple[Change, ...]()
    config, objective = baseline.winner.config, baseline.objective
    try:
        bench.describe()
        # The baseline was measured in a training process that was warm; the first steps of a fresh one are slow.
        warm = bench.time_compute(config.recipe, config.batch_size, COMPUTE_S)
        compile_s = (warm.compile_s or 0.0) if isinstance(warm, ComputePoint) else 0.0
        for run in _runs(bench, sensor, clock, baseline, started + time_budget_s + compile_s):
            if isinstance(run, TrialFailure):
                problem = f"Run {len(runs) + 1} failed ({run.kind}): {run.message}"
                break
            if objective == "samples-per-joule" and run.samples_per_joule is None:
                problem = (
                    "The winner was chosen by samples per joule, but the GPU's energy counter could not be read here."
                )
                break
            runs.append(run)
            share = mean_of([run], (), objective).value / baseline.mean.value
            tell(f"run {len(runs)}: {percent_text(share)} of the baseline's {SCORE_UNITS[objective]}")
            if baseline.outcome(runs) != "unclear":
                break
    except (WorkloadError, BenchError) as error:
        problem = f"The winner could not be measured here: {error}"
    if problem is None and baseline.outcome(runs) != "held":
        figures = (*_compute_change(bench, baseline), *figure_changes(baseline.finalist.runs, runs))
    changes = machine_changes(baseline.result.host, baseline.result.device, host, device)
    return conclude(baseline, runs, clock.now() - started, problem=problem, changes=changes, figures=figures)


def _runs(
    bench: Bench, sensor: Sensor, clock: Clock, baseline: Baseline, until_s: float
) -> Iterator[Measurement | TrialFailure]:
    """One run at least, and as many as end in time if none takes longer than the longest so far."""
    as_confirmed = segment_seconds(baseline.result.config.time_budget_s)
    seconds = max(0.5, min(as_confirmed, RUN_SHARE * (until_s - clock.now())))
    config, facts, longest_s = baseline.winner.config, baseline.result.facts, None
    epoch_samples = None if facts is None else facts.dataset_length
    while longest_s is None or clock.now() + longest_s <= until_s:
        begun = clock.now()
        segment = Segment(config.loader, seconds)
        outcome = run_trial(bench, sensor, clock, config, segment, epoch_samples=epoch_samples)
        longest_s = max(longest_s or 0.0, clock.now() - begun)
        yield outcome


def _compute_change(bench: Bench, baseline: Baseline) -> tuple[Change, ...]:
    """The compute-only rate then and now, where the baseline has it: did the device or the loader lose speed?"""
    config = baseline.winner.config
    then = compute_rate(baseline.result.compute_points, config)
    try:
        now = None if then is None else bench.time_compute(config.recipe, config.batch_size, COMPUTE_S)
    except LoadtuneError:  # the outcome does not depend on it
        return ()
    if then is None or not isinstance(now, ComputePoint):
        return ()
    return (Change(name="compute_only_samples_per_s", before=then.samples_per_s, after=now.samples_per_s),)


def conclude(
    baseline: Baseline,
    runs: Sequence[Measurement],
    seconds: float,
    *,
    problem: str | None = None,
    changes: tuple[Change, ...] = (),
    figures: tuple[Change, ...] = (),
) -> Check:
    """What was found, with its reason. A problem outweighs the runs: what fails is not told to be slower."""
    outcome: CheckOutcome = "unclear" if problem else baseline.outcome(runs)
    by_energy = baseline.objective == "samples-per-joule"
    return Check(
        outcome=outcome,
        reason=problem or _reason(baseline, runs, outcome),
        workload=baseline.result.config.workload.title,
        tolerance_fraction=baseline.tolerance_fraction,
        objective=baseline.objective,
        baseline_created=baseline.result.created,
        baseline=baseline.winner,
        baseline_num_runs=len(baseline.finalist.runs),
        ratio=baseline.ratio(runs),
        runs=tuple(runs),
        throughput=mean_of(runs).interval if runs else None,
        efficiency=mean_of(runs, (), "samples-per-joule").interval if runs and by_energy else None,
        changes=changes,
        figures=figures,
        seconds=seconds,
    )


def _reason(baseline: Baseline, runs: Sequence[Measurement], outcome: CheckOutcome) -> str:
    ratio, allowed, unit = baseline.ratio(runs), baseline.tolerance_fraction, SCORE_UNITS[baseline.objective]
    tolerance = percent_text(allowed, 0 if round(100 * allowed, 6).is_integer() else 1)
    if ratio is None or ratio.low is None or ratio.high is None or len(runs) < MIN_RUNS:
        fitted = counted(len(runs), "run")
        return f"Only {fitted} fitted into the time, and it takes {MIN_RUNS}. Raise --time-budget."
    if outcome == "fell":
        return (
            f"It lost {percent_text(1 - ratio.value, 1)} of its {unit} ({percent_text(1 - ratio.high, 1)} to"
            f" {percent_text(1 - ratio.low, 1)}), more than the tolerance of {tolerance}."
        )
    if outcome == "held":
        return f"It lost no more of its {unit} than the tolerance of {tolerance}: the whole interval lies above it."
    known = baseline.mean.half_width_fraction
    advice = "Raise --time-budget for more runs, or --tolerance."
    if known is not None and known > allowed:
        advice = (
            f"The baseline itself is known to ± {percent_text(known, 1)} only, so a longer check may not help: raise"
            " --tolerance, or make a baseline with a larger --time-budget on a quiet machine."
        )
    return f"The interval holds the edge of the tolerance of {tolerance}: it could have held or fallen. {advice}"
