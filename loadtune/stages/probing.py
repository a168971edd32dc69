"""The first stages: the workload is built, and each precision calibrated: recipe, memory ceiling, compute curve."""

from collections.abc import Mapping
from dataclasses import replace

from loadtune.findings import Findings
from loadtune.probe.compiling import COMPILE_SHARE, compile_recipes, compiling_seconds
from loadtune.probe.recipe import choose_recipes
from loadtune.records import MEMORY_FORMATS, Precision, Recipe, RecipeChoice, WorkloadFacts
from loadtune.report.wording import recipe_line
from loadtune.stages.memory import bound_batches
from loadtune.stages.resuming import check_same_workload
from loadtune.stages.run import Run
from loadtune.stages.warm import warm_start
from loadtune.study.yours import assumed_settings, check_against_facts, stream_notes, with_facts
from loadtune.units import ratio_text, seconds_text


def start(run: Run) -> WorkloadFacts:
    """Build the workload in the training process, check the options against it, and settle the baseline's settings."""
    found = run.found
    with found.stage("start"):
        before = found.facts
        if before is None:  # else the study had its seeds, and the file may be gone
            found.warm = warm_start(found.config.warm_start)
        facts = run.bench.describe()
        if before is not None:
            check_same_workload(before, facts)
            facts = before  # the study was made with them
        found.facts = facts
        _settle_baseline(found, facts)
        if before is None:
            check_against_facts(found.config, facts, found.device.kind)
            found.tell(_facts_text(facts))
            for note in stream_notes(facts):
                found.note(note)
        run.save()
    return facts


def _settle_baseline(found: Findings, facts: WorkloadFacts) -> None:
    """Settings of the user's own loader are the baseline as if they had been given."""
    yours = with_facts(found.config.yours, facts)
    found.config, found.assumed = replace(found.config, yours=yours), assumed_settings(yours)


def _facts_text(facts: WorkloadFacts) -> str:
    shape = "×".join(map(str, facts.input_shape))
    samples = "a stream of samples" if facts.dataset_length is None else f"{facts.dataset_length:,} samples"
    trained = f"; the model has {facts.num_parameters:,} parameters" if facts.num_parameters else ""
    return f"{samples} of {shape} {facts.input_dtype}, loaded in {seconds_text(facts.sample_s)} each{trained}"


def calibrate(run: Run, facts: WorkloadFacts) -> Mapping[Precision, Recipe]:
    """Per precision: the recipe, chosen at a moderate batch, then two sizes that give memory line and compute curve."""
    found = run.found
    if not found.compute_points:
        with found.stage("calibrate"):
            _choose_recipes(run, facts)
            found.compute_points = bound_batches(run, facts)
            run.save()
    return {choice.chosen.precision: choice.chosen for choice in found.recipes}


def _choose_recipes(run: Run, facts: WorkloadFacts) -> None:
    """Choose memory format, optimizer and torch.compile for each precision."""
    config = run.found.config
    bounds = [size for size in (facts.largest_batch, config.max_batch_size) if size is not None]
    chosen = choose_recipes(
        run.bench,
        facts,
        config.considered or facts.precisions,
        optimizer=config.workload.named_optimizer,
        largest=min(bounds, default=None),
        time_budget_s=config.time_budget_s,
        memory_format=next((each for each in MEMORY_FORMATS if each == config.fixed("memory_format")), None),
    )
    if facts.precisions != ("own",) and ("compile" in config.tune or config.fixed("compile")):
        chosen = compile_recipes(
            run.bench,
            chosen,
            time_budget_s=config.time_budget_s,
            asked_for="compile" not in config.tune,
            left_s=lambda: run.found.left_s,
        )
    run.found.recipes = chosen.choices
    for note in chosen.notes:
        run.found.note(note)
    _tell_compiling(run, chosen.choices)
    for choice in chosen.choices:
        run.found.tell(recipe_line(choice))


def _tell_compiling(run: Run, choices: tuple[RecipeChoice, ...]) -> None:
    """Report what torch.compile took and gained, and what it leaves of the time budget."""
    for choice in choices:
        for point in (point for point in choice.points if point.compile_s is not None):
            plain = next(p for p in choice.points if p.recipe == replace(point.recipe, compile=False))
            run.found.tell(
                f"{choice.chosen.precision}: compiling a batch of {point.batch_size} took "
                f"{seconds_text(point.compile_s)}; {ratio_text(point.quickest_per_s / plain.quickest_per_s)} the rate "
                "of the same settings without torch.compile"
            )
    needed_s = compiling_seconds(choices)
    if needed_s > COMPILE_SHARE * max(0.0, run.found.left_s):
        run.found.note(
            f"torch.compile runs for each batch size, about {seconds_text(needed_s)} in all. Little of the time "
            f"budget of {seconds_text(run.found.config.time_budget_s)} is left for the search. Raise --time-budget, "
            "or limit the search to one precision (--precision) or one batch size (--fix batch_size=…)."
        )
