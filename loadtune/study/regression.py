"""Whether a stored winner still is as good as it was. In: its runs then and now. Out: a `Check`. Pure.

By what it was picked for: throughput, or samples per joule, which it may keep while both speed and power fall.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtune.errors import ResultError
from loadtune.records import (
    SCORE_UNITS,
    Change,
    Check,
    CheckOutcome,
    Measurement,
    Objective,
    Ratio,
    TrialConfig,
    TuningResult,
)
from loadtune.records.chosen import chosen_winner, finalist_of
from loadtune.study.ratio import Runs, confirmed_runs, ratio_of, repeated_runs
from loadtune.units import counted, percent_text, seconds_text

MIN_RUNS = 3
"""Before a check says anything. It looks again after every run from the third on: a truth at the very edge of the
tolerance is called a loss in 4 to 7% of simulated checks and held in 2 to 8%, with spreads of 2 and 6% on either side
(`benchmarks/check_errors.py`); a single look promises 2.5% each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What is checked."""

    result: TuningResult
    config: TrialConfig
    measured: tuple[Measurement, ...]
    """The confirmation's runs of it."""
    runs: Runs
    """The same in what it was picked for, with their spread."""
    tolerance_fraction: float
    """Loss of that which is let pass, above 0 and below 1."""

    @property
    def objective(self) -> Objective:
        return self.runs.objective

    @property
    def throughput(self) -> Runs:
        """Whatever it was picked for."""
        return self.runs if self.objective == "samples-per-s" else repeated_runs(self.measured)

    def ratio(self, runs: Sequence[Measurement]) -> Ratio | None:
        """Now over then. None: nothing ran."""
        return ratio_of(self.runs, repeated_runs(runs, self.objective)) if runs else None

    def outcome(self, runs: Sequence[Measurement]) -> CheckOutcome:
        """What the interval says of a loss of more than the tolerance."""
        ratio, least = self.ratio(runs), 1 - self.tolerance_fraction
        if ratio is None or ratio.low is None or ratio.high is None or len(runs) < MIN_RUNS:
            return "unclear"
        if ratio.high < least:
            return "fell"
        return "held" if ratio.low > least else "unclear"


def baseline_of(result: TuningResult, tolerance_fraction: float, *, keep_batch_size: bool = False) -> Baseline:
    """The winner of a result. Raises ResultError where there is none whose runs were kept, or nothing ran twice."""
    config = chosen_winner(result, keep_batch_size=keep_batch_size).config
    finalist = finalist_of(result, config)
    if finalist is None:
        raise ResultError(
            f"The run of {result.created} holds no runs of its winner, as an unchanged result does. Run `loadtune run`"
            " again, or name another result."
        )
    runs = confirmed_runs(finalist, result.finalists, result.config.objective)
    if runs.spread is None:
        raise ResultError(
            f"The run of {result.created} confirmed its winner by one run, and no other finalist by more, so its"
            " figure has no interval and no check could tell. A baseline needs two runs of a finalist at least."
            " Run `loadtune run` again, to its end, with a --time-budget above"
            f" {seconds_text(result.config.time_budget_s)}, or name another result."
        )
    return Baseline(
        result=result,
        config=config,
        measured=finalist.runs,
        runs=runs,
        tolerance_fraction=tolerance_fraction,
    )


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
    outcome = "unclear" if problem else baseline.outcome(runs)
    then, now = baseline.throughput, repeated_runs(runs) if runs else None
    by_energy = baseline.objective == "samples-per-joule"
    workload = baseline.result.config.workload
    return Check(
        outcome=outcome,
        reason=problem or _reason(baseline, runs, outcome),
        workload=workload.title,
        config=baseline.config,
        tolerance_fraction=baseline.tolerance_fraction,
        baseline_created=baseline.result.created,
        objective=baseline.objective,
        baseline_samples_per_s=then.mean,
        baseline_half_width_fraction=then.half_width_fraction,
        baseline_num_runs=then.num_runs,
        baseline_samples_per_joule=baseline.runs.mean if by_energy else None,
        ratio=baseline.ratio(runs),
        runs=tuple(runs),
        samples_per_s=None if now is None else now.mean,
        half_width_fraction=None if now is None else now.half_width_fraction,
        samples_per_joule=repeated_runs(runs, baseline.objective).mean if by_energy and runs else None,
        changes=changes,
        figures=figures,
        seconds=seconds,
    )


def _reason(baseline: Baseline, runs: Sequence[Measurement], outcome: CheckOutcome) -> str:
    ratio, share = baseline.ratio(runs), baseline.tolerance_fraction
    unit = SCORE_UNITS[baseline.objective]
    tolerance = percent_text(share, 0 if round(100 * share, 6).is_integer() else 1)
    if ratio is None or ratio.low is None or ratio.high is None:
        return _too_few(len(runs))
    if outcome == "fell":
        return (
            f"It lost {percent_text(1 - ratio.ratio, 1)} of its {unit} ({percent_text(1 - ratio.high, 1)} to"
            f" {percent_text(1 - ratio.low, 1)}), more than the tolerance of {tolerance}."
        )
    if outcome == "held":
        return f"It lost no more of its {unit} than the tolerance of {tolerance}: the whole interval lies above it."
    if len(runs) < MIN_RUNS:
        return _too_few(len(runs))
    return (
        f"The interval holds the edge of the tolerance of {tolerance}: it could have held or fallen."
        f" {_advice(baseline)}"
    )


def _too_few(num_runs: int) -> str:
    return f"Only {counted(num_runs, 'run')} fitted into the time, and it takes {MIN_RUNS}. Raise --time-budget."


def _advice(baseline: Baseline) -> str:
    known = baseline.runs.half_width_fraction
    if known is not None and known > baseline.tolerance_fraction:
        return (
            f"The baseline itself is known to ± {percent_text(known, 1)} only, so a longer check may not help: raise"
            " --tolerance, or make a baseline with a larger --time-budget on a quiet machine."
        )
    return "Raise --time-budget for more runs, or --tolerance."
