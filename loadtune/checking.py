"""Measure a stored answer again: is it still as good as it was? In: a result. Out: another one, and a verdict.

Times real training steps, each time with new workers, until the interval of the ratio is narrow enough or the time is
spent. What counts is throughput. Where it cannot be measured here, the verdict is "unclear".
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from loadtune import __version__
from loadtune.errors import DeviceError, ResultError, TrainingError, UsageError, WorkloadError
from loadtune.host.machine import MonotonicClock, Sampler, choose_device, read_host
from loadtune.records.answer import chosen_winner, compute_fraction, finalist_of
from loadtune.records.facts import Device, HostFacts
from loadtune.records.measurement import ComputePoint, Measurement, TrialFailure
from loadtune.records.result import Finalist, TuningResult, Winner
from loadtune.report.compare import Comparison, compare
from loadtune.run import Run
from loadtune.run.measure import Measuring
from loadtune.run.state import State
from loadtune.statistics.interval import Interval, mean_of, ratio_of
from loadtune.training import TrainingClient
from loadtune.units import counted, percent_text, seconds_text

SEGMENTS = 10
"""Fewest whose timed parts fit into the time: several runs and the start-up have to."""

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
    try:
        host = read_host()
        device = same_device(baseline, host)
    except (DeviceError, UsageError) as error:
        return Check(outcome="unclear", reason=f"The answer could not be measured here: {error}")
    training = TrainingClient(baseline.config.workload, device)
    with training, Sampler(device, lambda: training.pid) as sensor:
        training.start()
        state = State(baseline.config, host, device, __version__)
        measuring = Run(state, MonotonicClock(), training, sensor, Path(), lambda: host).measuring
        return check_on(measuring, baseline, tolerance_fraction, time_budget_s, keep_batch_size, tell)


def same_device(baseline: TuningResult, host: HostFacts) -> Device:
    """The baseline's device on this machine: the same GPU, or the freest of its model. Raises DeviceError."""
    wanted = baseline.device
    alike = tuple(gpu for gpu in host.gpus if gpu.name == wanted.name)
    if wanted.kind == "cuda" and alike:
        same = any(gpu.uuid == wanted.uuid for gpu in alike)
        return choose_device(replace(host, gpus=alike), wanted.uuid if same else None)
    there = ", ".join(sorted({gpu.name for gpu in host.gpus})) or "no GPU"
    if wanted.kind == "cpu":
        device = choose_device(host, "cpu")
        if device.name == wanted.name:
            return device
        there = device.name
    raise DeviceError(f"the baseline was measured on {wanted.name}, and this machine has {there}.")


def answer_of(baseline: TuningResult, *, keep_batch_size: bool = False) -> Finalist:
    """Its runs of the confirmation. Raises ResultError where it is not confirmed, or nothing ran twice."""
    found = finalist_of(baseline.finalists, chosen_winner(baseline, keep_batch_size=keep_batch_size))
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


def judged(ratio: Interval, num_runs: int, tolerance_fraction: float) -> tuple[Outcome, str]:
    """What the interval says of a loss of more than the tolerance, and why."""
    tolerance, least = f"{100 * tolerance_fraction:g}%", 1 - tolerance_fraction
    if ratio.low is None or ratio.high is None or num_runs < MIN_RUNS:
        why = f"Only {counted(num_runs, 'run')} fitted into the time, and it takes {MIN_RUNS}. Raise --time-budget."
        return "unclear", why
    if ratio.high < least:
        return "fell", (
            f"It lost {percent_text(1 - ratio.value, 1)} of its samples/s ({percent_text(1 - ratio.high, 1)} to"
            f" {percent_text(1 - ratio.low, 1)}), more than the tolerance of {tolerance}."
        )
    if ratio.low > least:
        why = f"It lost no more of its samples/s than the tolerance of {tolerance}: the whole interval lies above it."
        return "held", why
    return "unclear", (
        f"The interval holds the edge of the tolerance of {tolerance}: it could have held or fallen. Raise"
        " --time-budget for more runs, or --tolerance."
    )


def check_on(
    measuring: Measuring,
    baseline: TuningResult,
    tolerance_fraction: float,
    time_budget_s: float,
    keep_batch_size: bool,
    tell: Tell,
) -> Check:
    """`check_baseline` over any training, sensor and clock."""
    answer, clock = answer_of(baseline, keep_batch_size=keep_batch_size), measuring.budget.clock
    journal, state, training = measuring.journal, measuring.journal.state, measuring.training
    then, config = answer.mean_among(baseline.finalists), answer.config
    outcome: Outcome = "unclear"
    runs, reason, longest_s = list[Measurement](), "", 0.0
    # Segments are as long as those of the confirmation were, or a share of the time.
    most_s = min(baseline.config.time_budget_s, SEGMENTS * time_budget_s)
    measuring.budget = replace(measuring.budget, total_s=most_s)
    try:
        with journal.stage("confirm"):
            state.facts = training.describe()
            measuring.epoch_samples = state.facts.dataset_length
            warm = training.time_compute(config.recipe, config.batch_size, COMPUTE_S)
            state.compute_points = (warm,) if isinstance(warm, ComputePoint) else ()
            compile_s = sum(point.compile_s or 0.0 for point in state.compute_points)
            until_s = measuring.budget.began_s + time_budget_s + compile_s
            while not runs or (outcome == "unclear" and clock.now() + longest_s <= until_s):
                begun = clock.now()
                measured = measuring.timed(config)
                if isinstance(measured, TrialFailure):
                    why = f"Run {len(runs) + 1} failed ({measured.kind}): {measured.message}"
                    return Check(outcome="unclear", reason=why)
                runs.append(measured)
                longest_s = max(longest_s, clock.now() - begun)
                now = mean_of([run.samples_per_s for run in runs])
                outcome, reason = judged(ratio_of(then, now), len(runs), tolerance_fraction)
                share = percent_text(measured.samples_per_s / then.value)
                tell(f"run {len(runs)}: {share} of the baseline's samples/s")
    except (WorkloadError, TrainingError) as error:
        return Check(outcome="unclear", reason=f"The answer could not be measured here: {error}")
    state.config = replace(baseline.config, time_budget_s=time_budget_s)
    state.finalists = (Finalist(config=config, runs=tuple(runs), half_width_fraction=now.half_width_fraction()),)
    state.confirmed_whole = True
    state.best = Winner(
        config=config,
        samples_per_s=now.value,
        half_width_fraction=now.half_width_fraction(),
        compute_fraction=compute_fraction(state.compute_points, config, now.value),
    )
    state.best_at_your_batch = state.best if keep_batch_size else None
    journal.note(f"Measured again: the answer of the run of {baseline.created}. Nothing else was tried.")
    result = journal.result()
    return Check(
        outcome=outcome,
        reason=reason,
        comparison=compare(baseline, result, keep_batch_size=keep_batch_size),
        result=result,
    )
