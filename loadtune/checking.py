"""Measure a stored answer again: is it still as good as it was? In: a result. Out: another one, and a verdict.

Times real training steps, each time with new workers, until the interval of the ratio is narrow enough or the time is
spent. What counts is throughput. Where it cannot be measured here, the verdict is "unclear".
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from loadtune import __version__
from loadtune.errors import DeviceError, ResultError, TrainingError, UsageError, WorkloadError
from loadtune.host.machine import MonotonicClock, Sampler, choose_device, read_host
from loadtune.records.answer import chosen_winner, compute_fraction, finalist_of
from loadtune.records.config import TrialConfig
from loadtune.records.facts import Device, HostFacts
from loadtune.records.measurement import ComputePoint, Measurement, TrialFailure
from loadtune.records.result import Finalist, TuningResult, Winner
from loadtune.report.compare import Comparison, compare
from loadtune.run import Run
from loadtune.run.measure import Measuring
from loadtune.run.state import State
from loadtune.statistics.interval import Interval, mean_of
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


@contextmanager
def on_this_machine(baseline: TuningResult) -> Iterator[Measuring]:
    """A training of its workload, on its device. Raises DeviceError where that is not here."""
    host = read_host()
    device = same_device(baseline, host)
    training = TrainingClient(baseline.config.workload, device)
    with training, Sampler(device, lambda: training.pid) as sensor:
        training.start()
        state = State(baseline.config, host, device, __version__)
        yield Run(state, MonotonicClock(), training, sensor, Path(), lambda: host).measuring


def check_baseline(
    baseline: TuningResult,
    *,
    tolerance_fraction: float = 0.05,
    time_budget_s: float = 60.0,
    keep_batch_size: bool = False,
    tell: Callable[[str], None] = lambda line: None,
    measuring_of: Callable[[TuningResult], AbstractContextManager[Measuring]] = on_this_machine,
) -> Check:
    """Measure the answer of a stored result again, on this machine unless ``measuring_of`` gives another training.

    ``tolerance_fraction``, above 0 and below 1, is the loss of throughput that passes. ``time_budget_s`` bounds the
    time; torch.compile's time, once, is added to it. ``keep_batch_size`` checks the answer at the batch size that the
    run was given. ``tell`` is called with each line of progress.

    Raises ResultError where the result has no confirmed answer, or none of its finalists ran twice.
    """
    answer, runs = answer_of(baseline, keep_batch_size=keep_batch_size), list[Measurement]()
    try:
        with measuring_of(baseline) as measuring:
            journal = measuring.journal
            # Segments are as long as those of the confirmation were, or a share of the time.
            most_s = min(baseline.config.time_budget_s, SEGMENTS * time_budget_s)
            journal.budget = replace(journal.budget, total_s=most_s)
            with journal.stage("confirm"):
                for run in _runs(measuring, answer.config, time_budget_s):
                    runs.append(run)
                    _conclude(journal.state, answer.config, runs, keep_batch_size)
                    comparison = compare(baseline, journal.result(), keep_batch_size=keep_batch_size)
                    outcome, reason = judged(comparison.ratio, len(runs), tolerance_fraction)
                    share = percent_text(run.samples_per_s / answer.samples_per_s)
                    tell(f"run {len(runs)}: {share} of the baseline's samples/s")
                    if outcome != "unclear":
                        break
            journal.state.config = replace(baseline.config, time_budget_s=time_budget_s)
            journal.note(f"Measured again: the answer of the run of {baseline.created}. Nothing else was tried.")
            return Check(outcome=outcome, reason=reason, comparison=comparison, result=journal.result())
    except (DeviceError, UsageError, WorkloadError, TrainingError) as error:
        return Check(outcome="unclear", reason=f"The answer could not be measured here: {error}")


def same_device(baseline: TuningResult, host: HostFacts) -> Device:
    """The baseline's device on this machine: the same GPU, or the freest of its model. Raises DeviceError."""
    wanted = baseline.device
    alike = tuple(gpu for gpu in host.gpus if gpu.name == wanted.name)
    same = next((gpu.uuid for gpu in alike if gpu.uuid == wanted.uuid), None)
    device = choose_device(replace(host, gpus=alike), "cpu" if wanted.kind == "cpu" else same)
    if (device.kind, device.name) == (wanted.kind, wanted.name):
        return device
    there = device.name if wanted.kind == "cpu" else ", ".join(sorted({gpu.name for gpu in host.gpus})) or "no GPU"
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


def judged(ratio: Interval | None, num_runs: int, tolerance_fraction: float) -> tuple[Outcome, str]:
    """What the interval says of a loss of more than the tolerance, and why."""
    tolerance, least = f"{100 * tolerance_fraction:g}%", 1 - tolerance_fraction
    if ratio is None or ratio.low is None or ratio.high is None or num_runs < MIN_RUNS:
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


def _runs(measuring: Measuring, config: TrialConfig, time_budget_s: float) -> Iterator[Measurement]:
    """At least one, and another as long as the longest until then would fit into the time."""
    training, state, budget = measuring.training, measuring.journal.state, measuring.journal.budget
    state.facts = training.describe()
    warm = training.time_compute(config.recipe, config.batch_size, COMPUTE_S)
    state.compute_points = (warm,) if isinstance(warm, ComputePoint) else ()
    compile_s = sum(point.compile_s or 0.0 for point in state.compute_points)
    number, longest_s, until_s = 0, 0.0, budget.began_s + time_budget_s + compile_s
    while not number or budget.clock.now() + longest_s <= until_s:
        number, begun_s = number + 1, budget.clock.now()
        outcome = measuring.timed(config)
        if isinstance(outcome, TrialFailure):
            raise TrainingError(f"Run {number} failed ({outcome.kind}): {outcome.message}")
        longest_s = max(longest_s, budget.clock.now() - begun_s)
        yield outcome


def _conclude(state: State, config: TrialConfig, runs: Sequence[Measurement], keep_batch_size: bool) -> None:
    """The answer of these runs."""
    mean = mean_of([run.samples_per_s for run in runs])
    half_width = mean.half_width_fraction()
    state.finalists = (Finalist(config=config, runs=tuple(runs), half_width_fraction=half_width),)
    state.best = Winner(
        config=config,
        samples_per_s=mean.value,
        half_width_fraction=half_width,
        compute_fraction=compute_fraction(state.compute_points, config, mean.value),
    )
    state.best_at_your_batch = state.best if keep_batch_size else None
    state.confirmed_whole = True
