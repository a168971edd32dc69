"""The later stages: which is best. Space, study, confirmation, verdict."""

from collections.abc import Mapping
from dataclasses import replace

from loadtune.findings import Findings
from loadtune.probe.compute import compute_bound, knee, reaches
from loadtune.probe.host_memory import host_memory_refusal
from loadtune.records import (
    ComputePoint,
    Finalist,
    Measurement,
    Precision,
    Recipe,
    TrialConfig,
    TrialFailure,
    Winner,
    WorkloadFacts,
)
from loadtune.report.wording import settings_text
from loadtune.stages.probing import loader_top
from loadtune.stages.run import CONFIRM_SHARE, STUDY_SHARE, TRIAL_SHARE, Run
from loadtune.study.confirm import Outcome, between_run_spread, confirm, finalists, pick_finalists
from loadtune.study.failed import failure_notes, nothing_else_ran
from loadtune.study.loop import Refusal, StudyLoop
from loadtune.study.seeds import leaner, seed_configs
from loadtune.study.space import SearchSpace, batch_ladder, worker_ladder
from loadtune.study.stopping import StoppingRule
from loadtune.study.trial import run_trial
from loadtune.study.winner import judge, pick_winner
from loadtune.study.yours import assumed_settings, your_config
from loadtune.units import percent_text, rate_text, seconds_text

LADDER_SPAN = 16
"""The ladder begins this far below the smallest saturating batch: smaller ones train at a fraction of the rate."""

NEARLY_SATURATED = 0.9
"""Share of the compute-only rate at which the search starts: the last tenth costs twice the batch or more, and where
the loader or the transfer is the wall it is never seen."""

COMPUTE_STEPS = 4
"""Steps a compute point takes at the least: one or more to warm up, two to time."""

UNQUIET = 0.12
"""Relative spread between runs above which the machine is called unquiet: 6 to 7% is usual on an H200."""


def space(run: Run, facts: WorkloadFacts, chosen: Mapping[Precision, Recipe]) -> SearchSpace:
    """Freeze what the study searches, and settle the user's own configuration."""
    found, config = run.found, run.found.config
    ceilings = {ceiling.precision: ceiling.batch_size for ceiling in found.ceilings}
    top = max(ceilings.values())
    if loader_top(run, facts) < top:
        top = loader_top(run, facts)
        found.note(
            f"Batches above {top} were not searched: a worker would need more than "
            f"{seconds_text(run.batch_limit_s)} for one, too long to see every worker deliver a few times. A larger "
            "--time-budget admits them."
        )
    found.yours = _yours(run, top)
    found.assumed = assumed_settings(config.yours)
    saturated = knee(found.compute_points, _fastest(found.compute_points).recipe).batch_size
    smallest = max(facts.min_batch_size, min(saturated, top) // LADDER_SPAN)
    found.batch_sizes = batch_ladder(smallest, top, _named_sizes(found, ceilings, top))
    most = run.found.host.num_usable_cores if config.max_workers is None else config.max_workers
    yours_workers = found.yours.loader.num_workers
    return SearchSpace(
        batch_sizes=found.batch_sizes,
        num_workers=worker_ladder(most, (yours_workers,) if config.max_workers is None else ()),
        pin_memory=(False, True) if found.device.kind == "cuda" else (False,),
        recipes=chosen,
        ceilings=ceilings,
    )


def _named_sizes(found: Findings, ceilings: Mapping[Precision, int], top: int) -> tuple[int, ...]:
    """Sizes that are rungs because somebody cares for them: the user's own, and hard ends that lie within reach."""
    hard = [c.batch_size for c in found.ceilings if c.limit != "time" and c.batch_size <= top]
    own = [found.yours.batch_size] if found.yours and found.yours.batch_size <= max(ceilings.values()) else []
    return (*hard, *own)


def _yours(run: Run, top: int) -> TrialConfig:
    """The user's own configuration; an assumed batch size is one that its precision was seen to train."""
    found = run.found
    wanted = found.config.yours.precision or "fp32"
    ceiling = next((c for c in found.ceilings if c.precision == wanted), None)
    yours = your_config(found.config.yours, top if ceiling is None else min(top, ceiling.batch_size))
    if yours.loader.pin_memory and found.device.kind != "cuda":
        found.note("pin_memory does nothing without a GPU; your own configuration is measured without it.")
        yours = replace(yours, loader=replace(yours.loader, pin_memory=False))
    if ceiling is not None and ceiling.limit == "memory" and yours.batch_size > ceiling.batch_size:
        found.note(
            f"Your batch of {yours.batch_size} is above {ceiling.batch_size}, the largest that was seen to train in "
            f"{wanted} here. The confirmation tries it."
        )
    return yours


def study(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> None:
    """Search the space; the user's own loader settings and the predicted corner come first."""
    from loadtune.study.optuna_study import OptunaStudy  # late: half a second that the bench's start hides

    found, config = run.found, run.found.config
    with found.stage("study"):
        fastest = _fastest(found.compute_points)
        start = knee(found.compute_points, fastest.recipe, NEARLY_SATURATED)
        seeds = seed_configs(searched, _in_space(found.yours, searched), start, facts.sample_s)
        loop = StudyLoop(
            study=OptunaStudy(searched, seeds, run.folder / "study.db", config.seed),
            run=lambda trial, best: _timed(run, trial, TRIAL_SHARE, best),
            refuse=lambda trial, best: _refusal(run, facts, searched, trial, best),
            clock=run.clock,
            num_trials=config.num_trials,
            until_s=run.until(STUDY_SHARE),
            num_seeds=len(seeds),
            ceiling_per_s=fastest.samples_per_s if _complete(run, searched, fastest) else None,
        )
        for trial in loop.trials():
            found.trials.append(trial)
            found.tell(_trial_text(trial.config, trial.measurement, trial.failure) if trial.screened is None else None)
        found.tell(f"The search ended: {loop.ended}.")
        if loop.out_of_time and sum(trial.origin != "search" for trial in found.trials) < len(seeds):
            found.note(
                f"The time budget of {seconds_text(config.time_budget_s)} ended the search before all that is "
                "predicted to be fast was tried. A larger --time-budget may find a faster configuration."
            )


def confirmation(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> None:
    """Measure the finalists and the user's own configuration again, in turn, and judge by those figures alone."""
    found, config = run.found, run.found.config
    given = config.yours.batch_size is not None
    with found.stage("confirm"):
        outcomes: list[Outcome] = []
        configs = pick_finalists(
            found.trials, found.yours, at_your_batch=given, leaner=lambda c, m: leaner(searched, c, m, facts.sample_s)
        )
        for outcome in confirm(
            configs, lambda c: _timed(run, c, CONFIRM_SHARE, None), run.clock, run.until(0.97), yours=found.yours
        ):
            outcomes.append(outcome)
            found.finalists = finalists(outcomes)
            found.tell(_trial_text(outcome[0], *_split(outcome[1])))
        for note in failure_notes(outcomes, found.yours, settings_text):
            found.note(note)
        if nothing_else_ran(found.trials, found.yours, found.finalists):
            found.note("Nothing but your own configuration could be run: it wins for want of any other.")
        _conclude(run, facts)


def _conclude(run: Run, facts: WorkloadFacts) -> None:
    """Winners, their distance from the compute-only rate, and the verdict."""
    found = run.found
    measured = {finalist.config: finalist for finalist in found.finalists}
    if found.yours in measured:
        _compute_rate(run, measured[found.yours])
    if found.yours is not None and found.config.yours.batch_size is not None:
        same_batch = pick_winner(found.finalists, found.yours, batch_size=found.yours.batch_size)
        found.best_at_your_batch = _with_ceiling(run, same_batch, measured)
    found.best = _with_ceiling(run, pick_winner(found.finalists, found.yours), measured)
    if found.best is not None:
        cores = found.host.num_usable_cores
        found.verdict = judge(found.best, measured[found.best.config], facts, found.device.kind, cores)
    spread = between_run_spread([f.runs for f in found.finalists])
    if spread is not None and spread.relative_sd > UNQUIET:
        found.note(
            f"Runs of one configuration differed by {percent_text(spread.relative_sd)} (standard deviation): something "
            "else was using this machine. Run again when it is quiet for a narrower answer."
        )


def _timed(run: Run, config: TrialConfig, share: float, best: float | None) -> Measurement | TrialFailure:
    run.found.running = config
    run.found.tell()
    seconds = max(0.5, share * run.found.config.time_budget_s)
    rule = StoppingRule(num_workers=config.loader.num_workers, max_s=seconds, best=best)
    return run_trial(run.bench, run.sensor, run.clock, config, rule, run.found.tell_window)


def _refusal(
    run: Run, facts: WorkloadFacts, searched: SearchSpace, config: TrialConfig, best: float | None
) -> Refusal | None:
    excess = searched.excess(config)
    if excess > 0:
        return Refusal(reason=f"above the memory ceiling by {excess}", excess=excess)
    no_room = host_memory_refusal(config.loader, facts.sample_bytes, run.found.host)
    if no_room is not None:
        return Refusal(reason=no_room, excess=1.0)
    bound = compute_bound(run.found.compute_points, config.recipe, config.batch_size)
    if best is not None and bound is not None and bound < best:
        return Refusal(reason=f"at most {rate_text(bound)} by compute alone", bound=bound)
    return None


def _with_ceiling(run: Run, winner: Winner | None, measured: Mapping[TrialConfig, Finalist]) -> Winner | None:
    """The winner beside the compute-only rate of exactly its batch size and recipe."""
    if winner is None:
        return None
    ceiling = _compute_rate(run, measured[winner.config])
    return winner if ceiling is None else replace(winner, compute_fraction=winner.samples_per_s / ceiling)


def _compute_rate(run: Run, finalist: Finalist) -> float | None:
    """Compute-only samples/s of exactly this batch size and recipe, measured now if it was not.

    None: it fails, or the time is spent.
    """
    config = finalist.config
    for point in run.found.compute_points:
        if (point.recipe, point.batch_size) == (config.recipe, config.batch_size):
            return point.samples_per_s
    if COMPUTE_STEPS * config.batch_size / finalist.samples_per_s > run.found.left_s:
        return None
    timed = run.bench.time_compute(config.recipe, config.batch_size, min(1.0, 0.1 * run.found.left_s))
    if isinstance(timed, TrialFailure):
        return None
    run.found.compute_points += (timed,)
    return timed.samples_per_s


def _in_space(yours: TrialConfig | None, searched: SearchSpace) -> TrialConfig | None:
    """The user's loader settings under the chosen recipe, or None where the space has no such point."""
    if yours is None or yours.precision not in searched.recipes or yours.batch_size not in searched.batch_sizes:
        return None
    if yours.loader.num_workers not in searched.num_workers:
        return None
    return replace(yours, recipe=searched.recipes[yours.precision])


def _complete(run: Run, searched: SearchSpace, fastest: ComputePoint) -> bool:
    """Whether the fastest rate is a ceiling, and not only as far as the curve came."""
    largest = min(searched.batch_sizes[-1], searched.ceilings[fastest.recipe.precision])
    return reaches(run.found.compute_points, fastest.recipe, largest)


def _fastest(points: tuple[ComputePoint, ...]) -> ComputePoint:
    return max(points, key=lambda p: p.samples_per_s)


def _split(outcome: Measurement | TrialFailure) -> tuple[Measurement | None, TrialFailure | None]:
    return (outcome, None) if isinstance(outcome, Measurement) else (None, outcome)


def _trial_text(config: TrialConfig, measurement: Measurement | None, failure: TrialFailure | None) -> str:
    what = settings_text(config)
    if measurement is None:
        return f"{what}: {failure.kind if failure else 'nothing'} ({failure.message if failure else ''})"
    return f"{what}: {rate_text(measurement.samples_per_s)}"
