"""The search: its space, and the study that tries configurations of it."""

from collections.abc import Mapping
from dataclasses import replace

from loadtune.findings import Findings
from loadtune.probe.compute import compute_bound, knee, reaches
from loadtune.probe.host_memory import host_memory_refusal
from loadtune.records import (
    ComputePoint,
    MemoryCeiling,
    Precision,
    Recipe,
    TrialConfig,
    WorkloadFacts,
)
from loadtune.stages.memory import check_budget, excess_now
from loadtune.stages.probing import loader_top
from loadtune.stages.run import STUDY_SHARE, TRIAL_SHARE, Run
from loadtune.stages.timing import outcome_text, timed
from loadtune.study.loop import Refusal, StudyLoop
from loadtune.study.seeds import seed_configs
from loadtune.study.space import SearchSpace, batch_ladder, worker_ladder
from loadtune.study.yours import assumed_settings, your_config
from loadtune.units import rate_text, seconds_text

LADDER_SPAN = 16
"""The ladder begins this far below the smallest saturating batch: smaller ones train at a fraction of the rate."""

NEARLY_SATURATED = 0.9
"""Share of the compute-only rate at which the search starts: the last tenth costs twice the batch or more, and where
the loader or the transfer is the wall it is never seen."""


def space(run: Run, facts: WorkloadFacts, chosen: Mapping[Precision, Recipe]) -> SearchSpace:
    """Freeze what the study searches, and settle the user's own configuration."""
    found, config = run.found, run.found.config
    ceilings = {ceiling.precision: _searched_up_to(ceiling, config.yours.batch_size) for ceiling in found.ceilings}
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


def _searched_up_to(ceiling: MemoryCeiling, own: int | None) -> int:
    """The safe ceiling, or the user's own batch size where that is above it and was seen to fit."""
    return max(ceiling.safe_batch_size, own if own and own <= ceiling.batch_size else 0)


def _named_sizes(found: Findings, ceilings: Mapping[Precision, int], top: int) -> tuple[int, ...]:
    """Sizes that are rungs because somebody cares for them: the user's own, and ends that lie within reach."""
    ends = [c.safe_batch_size for c in found.ceilings if c.limit != "time" and c.safe_batch_size <= top]
    own = [found.yours.batch_size] if found.yours and found.yours.batch_size <= max(ceilings.values()) else []
    return (*ends, *own)


def _yours(run: Run, top: int) -> TrialConfig:
    """The user's own configuration; an assumed batch size is one that its precision was seen to train."""
    found = run.found
    wanted = found.config.yours.precision or "fp32"
    ceiling = next((c for c in found.ceilings if c.precision == wanted), None)
    yours = your_config(found.config.yours, top if ceiling is None else min(top, ceiling.safe_batch_size))
    if yours.loader.pin_memory and found.device.kind != "cuda":
        found.note("pin_memory does nothing without a GPU; your own configuration is measured without it.")
        yours = replace(yours, loader=replace(yours.loader, pin_memory=False))
    if ceiling is not None and ceiling.limit in ("memory", "failure") and yours.batch_size > ceiling.batch_size:
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
        check_budget(run)
        fastest = _fastest(found.compute_points)
        start = knee(found.compute_points, fastest.recipe, NEARLY_SATURATED)
        kept = config.yours.batch_size
        seeds = seed_configs(searched, _in_space(found.yours, searched), start, facts.sample_s, kept_batch_size=kept)
        loop = StudyLoop(
            study=OptunaStudy(searched, seeds, run.folder / "study.db", config.seed),
            run=lambda trial, best: timed(run, trial, TRIAL_SHARE, best),
            refuse=lambda trial, best: _refusal(run, facts, searched, trial, best),
            clock=run.clock,
            num_trials=config.num_trials,
            until_s=run.until(STUDY_SHARE),
            num_seeds=len(seeds),
            ceiling_per_s=fastest.samples_per_s if _complete(run, searched, fastest) else None,
        )
        for trial in loop.trials():
            found.trials.append(trial)
            found.tell(outcome_text(trial.config, trial.measurement, trial.failure) if trial.screened is None else None)
        found.tell(f"The search ended: {loop.ended}.")
        if loop.out_of_time and sum(trial.origin != "search" for trial in found.trials) < len(seeds):
            found.note(
                f"The time budget of {seconds_text(config.time_budget_s)} ended the search before all that is "
                "predicted to be fast was tried. A larger --time-budget may find a faster configuration."
            )


def _refusal(
    run: Run, facts: WorkloadFacts, searched: SearchSpace, config: TrialConfig, best: float | None
) -> Refusal | None:
    excess = searched.excess(config)
    if excess > 0:
        return Refusal(reason=f"above the memory ceiling by {excess}", excess=excess)
    excess = excess_now(run, config.precision, config.batch_size)
    if excess > 0:
        return Refusal(reason=f"above what other processes left of the GPU's memory by {excess}", excess=excess)
    no_room = host_memory_refusal(config.loader, facts.sample_bytes, run.found.host)
    if no_room is not None:  # virtual machines show 31 GiB at first and grow to 256: ask again before believing it
        no_room = host_memory_refusal(config.loader, facts.sample_bytes, run.host_now())
    if no_room is not None:
        return Refusal(reason=no_room, excess=1.0)
    if config.batch_size == run.found.config.yours.batch_size:
        return None  # it has a winner of its own, which need not beat other batch sizes
    bound = compute_bound(run.found.compute_points, config.recipe, config.batch_size)
    if best is not None and bound is not None and bound < best:
        return Refusal(reason=f"at most {rate_text(bound)} by compute alone", bound=bound)
    return None


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
