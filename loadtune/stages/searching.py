"""The search: the study that tries configurations of the space, and what it starts with."""

from collections.abc import Sequence
from dataclasses import replace

from loadtune.errors import ResultError
from loadtune.findings import Findings
from loadtune.probe.compute import as_fast, knee, reaches
from loadtune.records import (
    ComputePoint,
    Precision,
    Trial,
    TrialConfig,
    WorkloadFacts,
)
from loadtune.report.journal import Searched, Tried
from loadtune.report.store import STUDY_FILE
from loadtune.stages.gpu_contention import check_budget
from loadtune.stages.probing import fastest
from loadtune.stages.refusing import refusal
from loadtune.stages.run import TRIAL_SHARE, Run
from loadtune.stages.search_notes import end_notes
from loadtune.stages.timing import outcome_text, timed
from loadtune.study.loop import Study, StudyLoop
from loadtune.study.seeds import Seed, seed_configs
from loadtune.study.space import SearchSpace

NEARLY_SATURATED = 0.9
"""Share of the compute-only rate at which the search starts: the last tenth costs twice the batch or more, and where
the loader or the transfer is the wall it is never seen."""

STRETCH = 1.7
"""Times as long as alone that such steps may take: ResNet-50 in fp16 on H200s, batches pinned, 1.1 to 1.7 in 25 of 29
runs, median 1.5, at the most 2.3; in bf16 and fp32 1.0."""

KEEPS_UP = 0.7
"""Share of the compute-only rate below which all workers, or the thread that pins, are taken for the wall: ResNet-50 on
H200s 0.5 to 0.8, an MLP on vectors 0.1 to 0.2, ConvNeXt-Large 0.9."""


def study(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> None:
    """Search the space; the user's own loader settings and the most promising ones come first."""
    from loadtune.study.optuna_study import OptunaStudy  # late: half a second that the bench's start hides

    found, config = run.found, run.found.config
    with found.stage("study"):
        check_budget(run)
        first, ended = first_configs(run, facts, searched), _has_ended(run)
        try:
            asked = OptunaStudy(
                searched,
                first,
                run.folder / STUDY_FILE,
                config.seed,
                known=found.trials,
                objective=config.objective,
            )
        except ResultError as error:
            if not ended:
                raise
            found.note(str(error))  # nothing is asked of it any more
            return
        if asked.renewed is not None:
            found.note(f"{asked.renewed} The study was rebuilt from the journal, which has every trial.")
        if ended:
            return
        loop = study_loop(run, facts, searched, asked, num_seeds=len(first))
        for trial in loop.trials():
            found.trials.append(trial)
            found.tell(None if trial.screened is not None else _trial_line(found, trial))
        found.tell(f"The search ended: {loop.ended}.")
        notes = end_notes(
            loop, found, searched, whole=run_whole(run, searched), predictions_left=asked.has_predictions_left
        )
        for note in notes:
            found.note(note)
        kept = "\n".join(notes) or None
        run.keep(Searched(num_trials=config.num_trials, time_budget_s=config.time_budget_s, note=kept))


def _has_ended(run: Run) -> bool:
    """Whether the search of a run that goes on had come to its end, and no more is asked for."""
    before = run.searched
    if before is None or not before.covers(run.found.config):
        return False
    for note in (before.note or "").splitlines():
        run.found.note(note)
    return True


def first_configs(run: Run, facts: WorkloadFacts, searched: SearchSpace) -> list[Seed]:
    """What is tried before the sampler is asked: the seeds, and all else where there are trials enough for all."""
    found = run.found
    top, by_speed = fastest(found), found.config.objective == "samples-per-s"
    seeds = seed_configs(
        searched,
        _in_space(found.yours, searched),
        knee(found.compute_points, top.recipe, NEARLY_SATURATED),
        facts.sample_s,
        knee_batch_size=_flat_from(run, searched),
        kept_batch_size=found.config.yours.batch_size,
        warm=found.warm,
        other_precisions=() if by_speed else _other_precisions(run, searched),
        as_fast=_as_fast(run, searched),
        unhindered=_unhindered(run, searched),
        enough_per_s=KEEPS_UP * top.samples_per_s if by_speed else None,
        tuned=found.config.tune,
    )
    return _whole(seeds, searched) if run_whole(run, searched) else seeds


def _whole(seeds: Sequence[Seed], searched: SearchSpace) -> list[Seed]:
    """The seeds, and behind them every other configuration: in case that time ends first, the likeliest come first."""
    seeded = {seed.config: Seed(seed.origin, seed.config) for seed in seeds}  # none follows: each is tried by itself
    rest = [config for config in searched.configs() if config not in seeded]
    corner = next((seed.config for seed in seeds if seed.origin == "seed"), None)
    if corner is not None:
        rest.sort(key=lambda config: searched.num_steps(config, corner))
    return [*seeded.values(), *(Seed("search", config) for config in rest)]


def _flat_from(run: Run, searched: SearchSpace) -> int:
    """Where the fastest curve is flat; where it was cut short, two doublings further, or the end of the ladder."""
    points, top = run.found.compute_points, fastest(run.found)
    if _complete(run, searched, top):
        return knee(points, top.recipe).batch_size
    last = max(point.batch_size for point in points if point.recipe == top.recipe)
    return min(4 * last, searched.batch_sizes[-1])


def _as_fast(run: Run, searched: SearchSpace) -> list[Precision]:
    """The precisions that the curve does not tell from the fastest."""
    points, top = run.found.compute_points, fastest(run.found).recipe
    return [each for each, recipe in searched.recipes.items() if recipe != top and as_fast(points, top, recipe)]


def _unhindered(run: Run, searched: SearchSpace) -> Precision | None:
    """The precision that may overtake the fastest, whose steps wait for the device: beside a thread that pins, what
    the host launches then comes late. None: there is no such thing here."""
    points, top = run.found.compute_points, fastest(run.found)
    if not (top.recipe.waits_each_step and searched.pin_memory[-1] and searched.num_workers[-1]):
        return None
    timed = {point.recipe for point in points}
    rates = {
        precision: knee(points, recipe).samples_per_s
        for precision, recipe in searched.recipes.items()
        if recipe in timed and not recipe.waits_each_step
    }
    best = max(rates, key=rates.__getitem__, default=None)
    return best if best is not None and rates[best] * STRETCH > top.samples_per_s else None


def _other_precisions(run: Run, searched: SearchSpace) -> list[ComputePoint]:
    """What a precision costs in power is not known before it trains, so each but the fastest is tried as well."""
    points = run.found.compute_points
    timed = {point.recipe for point in points} - {fastest(run.found).recipe}
    return [knee(points, recipe, NEARLY_SATURATED) for recipe in searched.recipes.values() if recipe in timed]


def run_whole(run: Run, searched: SearchSpace) -> bool:
    """Whether there are trials enough for every configuration: then no sampler is asked, and no bound."""
    return _num_configs(run, searched) <= run.found.config.num_trials


def _num_configs(run: Run, searched: SearchSpace) -> int:
    """All that fit, and the baseline, which may end its workers with each epoch where no other does."""
    own = _in_space(run.found.yours, searched)
    return len({*searched.configs(), *([] if own is None else [own])})


def study_loop(run: Run, facts: WorkloadFacts, searched: SearchSpace, asked: Study, *, num_seeds: int) -> StudyLoop:
    """The loop over a study, with what the probes found as its bounds: of samples/s, so of nothing else."""
    top, objective = fastest(run.found), run.found.config.objective
    by_speed = objective == "samples-per-s"
    screens = by_speed and not run_whole(run, searched)
    return StudyLoop(
        study=asked,
        run=lambda trial, best: timed(run, trial, TRIAL_SHARE, best if by_speed else None),
        refuse=lambda trial, best: refusal(run, facts, searched, trial, best if screens else None),
        clock=run.clock,
        num_trials=run.found.config.num_trials,
        until_s=run.study_until_s,
        enough_until_s=run.search_until_s,
        num_seeds=num_seeds,
        num_configs=_num_configs(run, searched),
        # By its fastest window: others on the machine slow a ceiling down, and the search must not end at that.
        ceiling_per_s=top.quickest_per_s if by_speed and _complete(run, searched, top) else None,
        objective=objective,
        known=tuple(run.found.trials),
        ahead=run.found.ahead,
        keep=lambda trial: run.keep(Tried(trial=trial)),
    )


def _trial_line(found: Findings, trial: Trial) -> str:
    number = sum(each.screened is None for each in found.trials)
    outcome = outcome_text(trial.config, trial.outcome, found.config.objective)
    return f"trial {number}/{found.config.num_trials}: {outcome}"


def _in_space(yours: TrialConfig | None, searched: SearchSpace) -> TrialConfig | None:
    """The user's loader settings under the chosen recipe, or None where the space has no such point."""
    if yours is None or yours.precision not in searched.recipes:
        return None
    near = searched.clip(replace(yours, recipe=searched.recipes[yours.precision]))
    # Persistence does not change the rate, so the baseline keeps its own value.
    near = replace(near, loader=replace(near.loader, persistent_workers=yours.loader.persistent_workers))
    return near if near.loader == yours.loader else None


def _complete(run: Run, searched: SearchSpace, top: ComputePoint) -> bool:
    """Whether the fastest rate is a ceiling, and not only as far as the curve came."""
    largest = min(searched.batch_sizes[-1], searched.ceilings[top.recipe.precision])
    return reaches(run.found.compute_points, top.recipe, largest)
